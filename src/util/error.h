// The one error style inside the library: throw Error. At the border, guarded (api/api_handles.h)
// turns it into a riffle_status and a text.
#pragma once
#include <cstdarg>
#include <stdexcept>
#include <string>

#include "riffle.h"
#include "riffle_tools.h"

namespace riffle {

class Error : public std::runtime_error {
 public:
  // PLAIN: the text stays unchanged; it may hold file names, and these may hold backquotes.
  // NAMES_SETTINGS: the text names settings by their ids in backquotes (util/settings.h).
  enum class Text { PLAIN, NAMES_SETTINGS };
  Error(riffle_status status, const std::string& text, Text kind = Text::PLAIN);
  riffle_status status() const { return status_; }
  // Returns the text with the caller's names of settings; what() has their ids.
  std::string text(riffle_setting_name_fn name) const;

 private:
  riffle_status status_;
  std::string text_;
  Text kind_;
};

// Throws Error with a printf-style text: one line with file, field, found value and expected value.
// If the format has a backquote, the text names settings.
[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(riffle_status status, const char* format, ...);

// Formats as printf, into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* format, ...);

}  // namespace riffle
