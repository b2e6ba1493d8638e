// Unicode normalisation form C (UAX #15), by utf8proc's tables.
#pragma once
#include <string>
#include <string_view>

namespace riffle {

// Returns the text in Unicode's normalisation form C. Takes n log n time at most, however many
// combining marks follow each other. Requires: text is UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace riffle
