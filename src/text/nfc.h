// Unicode normalisation form C (UAX #15), by utf8proc's tables.
#pragma once
#include <string>
#include <string_view>

namespace riffle {

// text must be UTF-8. Takes n log n time at most, however many combining marks follow each other.
std::string to_nfc(std::string_view text);

}  // namespace riffle
