// Formats numbers and texts as in the C locale, whatever locale the program around the library has
// chosen: in another locale printf, strtod and nlohmann's parser write and expect decimal commas,
// and the system's error texts are translated. tools/check_locale.py refuses functions that read
// the locale everywhere except in c_locale.cpp and, under a CLocale, in json.cpp.
#pragma once
#include <locale.h>

#include <cstdarg>
#include <cstddef>
#include <string>
#include <string_view>

namespace riffle {

// Returns the C locale for functions that take a locale, such as strtod_l. Valid as long as the
// process lives.
locale_t c_locale();

// Sets the C locale for its thread while it lives. Other threads keep theirs.
class CLocale {
 public:
  CLocale() : before_(uselocale(c_locale())) {}
  ~CLocale() { uselocale(before_); }
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  locale_t before_;
};

// Formats as format() of util/error.h does.
[[gnu::format(printf, 1, 0)]] std::string vformat(const char* format, va_list args);

// Returns the system's text for an errno value, in English.
std::string system_error_text(int code);

// Returns an ASCII letter in lower case, and any other byte as it is.
inline char ascii_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Copies as much of text as fits into size bytes, the NUL at the end included.
inline void copy_text(char* to, size_t size, std::string_view text) {
  if (size == 0) return;
  to[text.copy(to, size - 1)] = '\0';
}

}  // namespace riffle
