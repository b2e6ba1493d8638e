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

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    const size_t first = part.find_first_not_of(" \t\n"), last = part.find_last_not_of(" \t\n");
    parts.emplace_back(first == part.npos ? "" : part.substr(first, last - first + 1));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  std::string all;
  for (size_t i = 0; i < parts.size(); ++i) all.append(i ? between : "").append(parts[i]);
  return all;
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(float value) {
  return number(std::strtod(text_of("%.7g", static_cast<double>(value)).c_str(), nullptr));
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string without_mark(std::string text) {
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  return text;
}

}  // namespace riffle::cli
