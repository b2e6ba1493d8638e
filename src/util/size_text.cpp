#include "util/size_text.h"

#include <charconv>
#include <cmath>
#include <string>

namespace riffle {

std::optional<uint64_t> size_of(std::string_view text, bool bytes) {
  constexpr double kMost = 9.2e18;  // the largest int64
  double v = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, v);
  if (error != std::errc() || !(v >= 0)) return std::nullopt;
  std::string suffix(stop, end);
  for (char& c : suffix)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  if (suffix.empty()) {
    if (v != std::floor(v)) return std::nullopt;
  } else {
    const size_t power = std::string_view("kmgt").find(suffix[0]);
    const std::string rest = suffix.substr(1);
    const bool of_bytes = bytes && (rest == "b" || rest == "ib");
    if (power == std::string_view::npos || !(rest.empty() || of_bytes)) return std::nullopt;
    v = std::ldexp(v, 10 * static_cast<int>(power + 1));
  }
  if (!(v < kMost)) return std::nullopt;
  return static_cast<uint64_t>(v);
}

}  // namespace riffle
