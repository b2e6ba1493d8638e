#include "requests/marks.h"

#include <algorithm>

namespace riffle::requests {

std::string_view without_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
}

std::string_view without_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);  // npos + 1 is 0
}

size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size()); n > 0; n--) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace riffle::requests
