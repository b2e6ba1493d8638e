// JSON Schema's `format`, as regular expressions.
#pragma once
#include <string>

namespace riffle::grammar {

// Returns the regular expression of a format; null if riffle does not support it.
const char* format_pattern(const std::string& name);
std::string format_names();

}  // namespace riffle::grammar
