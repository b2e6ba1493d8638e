#include "cli/printable.h"

#include "cli/text.h"

namespace riffle::cli {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr char32_t kLeftToRightOverride = 0x202D, kRightToLeftOverride = 0x202E;

std::string escape(char32_t c) { return text_of("\\u%04x", static_cast<unsigned>(c)); }

// Returns the number of bytes of the character that begins with this byte; 0: none does.
size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// Returns whether the byte may be the second one of a character: no overlong forms, surrogates,
// values beyond U+10FFFF.
bool may_follow(unsigned char lead, unsigned char byte) {
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return byte >= low && byte <= high;
}

}  // namespace

void Printable::put_character(char32_t c, std::string& out) {
  const bool control = (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c <= 0x9F);
  const bool overrides = c == kLeftToRightOverride || c == kRightToLeftOverride;
  if (control || overrides) out += escape(c);
  else out += held_;
}

void Printable::break_character(std::string& out) {
  if (!held_.empty()) out += kReplacement;
  held_.clear();
}

void Printable::put_byte(unsigned char byte, std::string& out) {
  if (!held_.empty()) {
    const auto lead = static_cast<unsigned char>(held_[0]);
    const bool follows = held_.size() == 1 ? may_follow(lead, byte) : (byte & 0xC0) == 0x80;
    if (!follows) break_character(out);  // this byte begins a new character
  }
  if (held_.empty()) {
    length_ = length_of(byte);
    if (length_ == 0) {
      out += kReplacement;
      return;
    }
  }
  held_ += static_cast<char>(byte);
  if (held_.size() < length_) return;
  char32_t c =
      length_ == 1 ? byte : static_cast<unsigned char>(held_[0]) & (0xFFu >> (length_ + 1));
  for (size_t i = 1; i < length_; ++i) c = c << 6 | (static_cast<unsigned char>(held_[i]) & 0x3Fu);
  put_character(c, out);
  held_.clear();
}

std::string Printable::put(std::string_view piece) {
  std::string out;
  for (const char c : piece) {
    if (return_ && c != '\n') out += escape('\r');
    return_ = c == '\r';
    if (return_) break_character(out);
    else put_byte(static_cast<unsigned char>(c), out);
  }
  return out;
}

std::string Printable::finish() {
  std::string out;
  if (return_) out += escape('\r');
  return_ = false;
  break_character(out);
  return out;
}

std::string printable(std::string_view text) {
  Printable p;
  std::string out = p.put(text);
  return out + p.finish();
}

std::string one_line(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\n' || c == '\t') out += escape(static_cast<unsigned char>(c));
    else out += c;
  }
  return out;
}

}  // namespace riffle::cli
