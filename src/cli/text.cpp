#include "cli/text.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace riffle::cli {

std::string text_of(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int n = std::vsnprintf(nullptr, 0, format, args);
  std::string s(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) std::vsnprintf(s.data(), s.size() + 1, format, again);
  va_end(again);
  va_end(args);
  return s;
}

size_t find_bad_utf8(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  for (size_t i = 0; i < text.size();) {
    const unsigned c = byte(i);
    if (c < 0x80) {
      ++i;
    } else if (c >= 0xC2 && c <= 0xDF && follows(i + 1)) {
      i += 2;
    } else if (c >= 0xE0 && c <= 0xEF && follows(i + 1) && follows(i + 2) &&
               !(c == 0xE0 && byte(i + 1) < 0xA0) &&
               !(c == 0xED && byte(i + 1) >= 0xA0)) {  // overlong; surrogates
      i += 3;
    } else if (c >= 0xF0 && c <= 0xF4 && follows(i + 1) && follows(i + 2) && follows(i + 3) &&
               !(c == 0xF0 && byte(i + 1) < 0x90) && !(c == 0xF4 && byte(i + 1) >= 0x90)) {
      i += 4;
    } else {
      return i;
    }
  }
  return std::string_view::npos;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(float value) {
  return number(std::strtod(text_of("%.7g", static_cast<double>(value)).c_str(), nullptr));
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace riffle::cli
