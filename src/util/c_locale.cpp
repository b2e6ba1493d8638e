#include "util/c_locale.h"

#include <cstdio>
#include <cstring>

namespace riffle {

// The system's C libraries hold this locale as a constant, so no memory is taken or freed.
locale_t c_locale() { return newlocale(LC_ALL_MASK, "C", nullptr); }

std::string vformat(const char* format, va_list args) {
  const CLocale here;
  va_list again;
  va_copy(again, args);
  const int n = vsnprintf(nullptr, 0, format, args);
  std::string out(n > 0 ? static_cast<size_t>(n) : 0, '\0');
  if (n > 0) vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string system_error_text(int code) { return strerror_l(code, c_locale()); }

}  // namespace riffle
