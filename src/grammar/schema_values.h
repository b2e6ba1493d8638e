// Values inside of schemas: numbers in decimals, and which values are equal.
#pragma once
#include <optional>
#include <string>

#include "grammar/number_range.h"
#include "util/json.h"

namespace riffle::grammar {

bool is_true(const Json& value);
// As JSON, cut to what an error text has room for.
std::string shown_value(const Json& value);
// Nothing if the number has more than 400 digits.
std::optional<Decimal> decimal_of(const Json& number);
// The same text for equal values.
std::string canonical(const Json& value);
// SchemaNode::Type of the value.
unsigned type_of(const Json& value);

}  // namespace riffle::grammar
