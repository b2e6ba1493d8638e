// Values in schemas: exact decimal numbers, and equality of values.
#pragma once
#include <optional>
#include <string>

#include "grammar/number_range.h"
#include "util/json.h"

namespace riffle::grammar {

bool is_true(const Json& value);
// Returns the value as JSON, shortened for an error text.
std::string shown_value(const Json& value);
// Returns nothing if the number has more than 400 digits.
std::optional<Decimal> decimal_of(const Json& number);
// Returns the same text for equal values.
std::string canonical(const Json& value);
// Returns the SchemaNode::Type of the value.
unsigned type_of(const Json& value);

}  // namespace riffle::grammar
