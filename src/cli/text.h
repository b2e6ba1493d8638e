// Functions on text that need neither the library nor a terminal.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace riffle::cli {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...);

// Returns the parts between separators, without the blanks around them; "" gives one empty part.
std::vector<std::string> split(std::string_view text, char separator);
std::string joined(const std::vector<std::string>& parts, std::string_view between = ", ");

using Json = nlohmann::ordered_json;

Json number(double value);  // null if not finite
Json number(float value);   // 0.1F as 0.1
// Returns one line, always valid UTF-8 (bad bytes become U+FFFD).
std::string dump(const Json& json);

// White space that is trimmed from the ends of messages and answers.
inline constexpr const char* kSpaces = " \t\r\n";

// Returns a text without the byte order mark that some editors put before it.
std::string without_mark(std::string text);

}  // namespace riffle::cli
