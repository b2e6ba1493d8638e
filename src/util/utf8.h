// Characters of valid UTF-8.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string_view>

namespace riffle {

// Returns the bytes of the character that begins at pos.
inline size_t char_bytes(std::string_view text, size_t pos) {
  const uint8_t c = static_cast<uint8_t>(text[pos]);
  const size_t n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
  return std::min(n, text.size() - pos);
}

inline size_t char_count(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace riffle
