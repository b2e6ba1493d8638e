#include "util/error.h"

#include <cstdio>
#include <vector>

#include "util/settings.h"

namespace riffle {

Error::Error(riffle_status status, const std::string& text)
    : std::runtime_error(name_settings(text, nullptr)), status_(status), text_(text) {}

std::string Error::text(riffle_setting_name_fn name) const { return name_settings(text_, name); }

static std::string vformat(const char* text, va_list args) {
  va_list again;
  va_copy(again, args);
  const int n = vsnprintf(nullptr, 0, text, args);
  std::string out(n > 0 ? n : 0, '\0');
  if (n > 0) vsnprintf(out.data(), out.size() + 1, text, again);
  va_end(again);
  return out;
}

void fail(riffle_status status, const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string out = vformat(text, args);
  va_end(args);
  throw Error(status, out);
}

std::string format(const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string out = vformat(text, args);
  va_end(args);
  return out;
}

}  // namespace riffle
