// JSON Schema's `format`, as regular expressions.
#pragma once
#include <string>

namespace riffle::grammar {

// Null for a format that riffle does not know.
const char* format_pattern(const std::string& name);
std::string format_names();

}  // namespace riffle::grammar
