// Texts around markers: tags of reasoning, and markers of calls.
#pragma once
#include <string_view>

namespace riffle::requests {

// White space that is trimmed around markers.
inline constexpr const char* kSpaces = " \t\r\n";

// Return the text without white space at its beginning, and at its end.
std::string_view without_left(std::string_view text);
std::string_view without_right(std::string_view text);
// Returns the length of the longest suffix of text that is a prefix of mark.
size_t partial_mark(std::string_view text, std::string_view mark);

}  // namespace riffle::requests
