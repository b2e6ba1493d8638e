// The one error style inside the library: throw Error; api/api.cpp turns it into riffle_status +
// text at the border.
#pragma once
#include <cstdarg>
#include <stdexcept>
#include <string>

#include "riffle.h"

namespace riffle {

class Error : public std::runtime_error {
 public:
  Error(riffle_status status, const std::string& text)
      : std::runtime_error(text), status_(status) {}
  riffle_status status() const { return status_; }

 private:
  riffle_status status_;
};

// printf-style; the text is one line that names file, field, what was found and what was expected.
[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(riffle_status status, const char* format, ...);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* format, ...);

}  // namespace riffle
