#include "util/error.h"

#include <cstring>

#include "util/c_locale.h"
#include "util/settings.h"

namespace riffle {

static std::string named(const std::string& text, Error::Text kind, riffle_setting_name_fn name) {
  return kind == Error::Text::NAMES_SETTINGS ? name_settings(text, name) : text;
}

Error::Error(riffle_status status, const std::string& text, Text kind)
    : std::runtime_error(named(text, kind, nullptr)), status_(status), text_(text), kind_(kind) {}

std::string Error::text(riffle_setting_name_fn name) const { return named(text_, kind_, name); }

void fail(riffle_status status, const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string out = vformat(text, args);
  va_end(args);
  const bool names = std::strchr(text, '`') != nullptr;
  throw Error(status, out, names ? Error::Text::NAMES_SETTINGS : Error::Text::PLAIN);
}

std::string format(const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string out = vformat(text, args);
  va_end(args);
  return out;
}

}  // namespace riffle
