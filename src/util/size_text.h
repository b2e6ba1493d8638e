// Sizes as users write them.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace riffle {

// Returns the number in a text with a suffix: "4096", "32K", "1.5G" (K = 1024), for bytes also
// "12GB" and "12GiB", in upper or lower case. Returns nothing if the text is anything else, no
// whole number, or above 9.2e18.
std::optional<uint64_t> size_of(std::string_view text, bool bytes);

// Returns the examples of a size that messages give: "such as 4096 or 32K".
inline const char* size_examples(bool bytes) {
  return bytes ? "such as 512M, 12G or 1.5G" : "such as 4096 or 32K";
}

}  // namespace riffle
