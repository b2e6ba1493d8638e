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

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(float value) {
  return number(std::strtod(text_of("%.7g", static_cast<double>(value)).c_str(), nullptr));
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace riffle::cli
