#include "chat/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "util/error.h"

namespace riffle {

char32_t char_at(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[pos + i]); };
  switch (char_bytes(text, pos)) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1FU) << 6 | (byte(1) & 0x3FU);
    case 3: return (byte(0) & 0x0FU) << 12 | (byte(1) & 0x3FU) << 6 | (byte(2) & 0x3FU);
    default:
      return (byte(0) & 0x07U) << 18 | (byte(1) & 0x3FU) << 12 | (byte(2) & 0x3FU) << 6 |
             (byte(3) & 0x3FU);
  }
}

size_t char_begin(std::string_view text, size_t end) {
  do end--;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

size_t char_offset(std::string_view text, size_t n) {
  size_t pos = 0;
  for (; n > 0 && pos < text.size(); n--) pos += char_bytes(text, pos);
  return pos;
}

void append_char(std::string* out, char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

size_t find_text(std::string_view text, std::string_view what, size_t pos) {
  if (pos > text.size()) return text.npos;
  if (what.empty()) return pos;
  const void* const at = ::memmem(text.data() + pos, text.size() - pos, what.data(), what.size());
  return at ? static_cast<size_t>(static_cast<const char*>(at) - text.data()) : text.npos;
}

bool is_space(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

std::string_view strip_left(std::string_view text) {
  while (!text.empty() && is_space(char_at(text, 0))) text.remove_prefix(char_bytes(text, 0));
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const size_t last = char_begin(text, text.size());
    if (!is_space(char_at(text, last))) break;
    text = text.substr(0, last);
  }
  return text;
}

CharKind char_kind(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CharKind::LETTER;
    case UTF8PROC_CATEGORY_ND: return CharKind::DECIMAL;
    case UTF8PROC_CATEGORY_NL: return CharKind::NUMERIC;
    case UTF8PROC_CATEGORY_NO:
      return c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0x2070 && c <= 0x2089)
                 ? CharKind::DIGIT
                 : CharKind::NUMERIC;
    default: return CharKind::OTHER;
  }
}

bool is_upper(char32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)); }
bool is_lower(char32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)); }
bool is_titled(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LT;
}
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_titled(c); }

namespace {

// Returns the upper or title case of a character that becomes several; null for all others.
const char* long_upper(char32_t c, bool title) {
  switch (c) {
    case 0xDF: return title ? "Ss" : "SS";
    case 0x149:
      return "\xCA\xBC"
             "N";
    case 0x1F0: return "J\xCC\x8C";
    case 0xFB00: return title ? "Ff" : "FF";
    case 0xFB01: return title ? "Fi" : "FI";
    case 0xFB02: return title ? "Fl" : "FL";
    case 0xFB03: return title ? "Ffi" : "FFI";
    case 0xFB04: return title ? "Ffl" : "FFL";
    case 0xFB05:
    case 0xFB06: return title ? "St" : "ST";
    default: return nullptr;
  }
}

void append_upper(std::string* out, char32_t c, bool title) {
  const auto one = static_cast<utf8proc_int32_t>(c);
  if (const char* several = long_upper(c, title)) *out += several;
  else
    append_char(out, static_cast<char32_t>(title ? utf8proc_totitle(one) : utf8proc_toupper(one)));
}

// Tells whether a capital sigma ends a word: its lower case is then another letter.
bool is_final_sigma(std::string_view text, size_t pos) {
  const auto ignored = [](char32_t c) {
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2019 ||
           category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
           category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
           category == UTF8PROC_CATEGORY_SK;
  };
  size_t at = pos;
  while (at > 0 && ignored(char_at(text, char_begin(text, at)))) at = char_begin(text, at);
  if (at == 0 || !is_cased(char_at(text, char_begin(text, at)))) return false;
  for (at = pos + char_bytes(text, pos); at < text.size() && ignored(char_at(text, at));)
    at += char_bytes(text, at);
  return at >= text.size() || !is_cased(char_at(text, at));
}

void append_lower(std::string* out, std::string_view text, size_t pos) {
  const char32_t c = char_at(text, pos);
  if (c == 0x3A3) append_char(out, is_final_sigma(text, pos) ? 0x3C2 : 0x3C3);
  else if (c == 0x130) *out += "i\xCC\x87";
  else append_char(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace

SourcedText with_case(const SourcedText& text, Case what) {
  SourcedText out;
  const std::string_view all = text.view();
  bool after_cased = false;
  size_t run = 0;
  std::string one;
  for (size_t pos = 0; pos < all.size();) {
    const char32_t c = char_at(all, pos);
    one.clear();
    bool upper = what == Case::UPPER || (what == Case::CAPITAL && pos == 0);
    if (what == Case::TITLE) upper = !after_cased;
    if (what == Case::SWAPPED) upper = is_lower(c);
    if (what == Case::SWAPPED && !is_cased(c)) append_char(&one, c);
    else if (upper) append_upper(&one, c, what == Case::TITLE || what == Case::CAPITAL);
    else append_lower(&one, all, pos);
    after_cased = is_cased(c);
    while (text.runs()[run].end <= pos) run++;
    out.append(one, text.runs()[run].source);
    pos += char_bytes(all, pos);
  }
  return out;
}

namespace {

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

}  // namespace

void append_repr(const SourcedText& text, SourcedText* out) {
  const std::string_view all = text.view();
  const char quote = all.find('\'') != all.npos && all.find('"') == all.npos ? '"' : '\'';
  out->append(std::string_view(&quote, 1));
  for (size_t pos = 0; pos < all.size();) {
    const char32_t c = char_at(all, pos);
    const size_t n = char_bytes(all, pos);
    const int source = text.source_at(pos);
    std::string escaped;
    if (c == '\\' || c == static_cast<char32_t>(quote)) escaped = {'\\', static_cast<char>(c)};
    else if (c == '\n') escaped = "\\n";
    else if (c == '\r') escaped = "\\r";
    else if (c == '\t') escaped = "\\t";
    else if (!is_printable(c))
      escaped = format(c < 0x100     ? "\\x%02x"
                       : c < 0x10000 ? "\\u%04x"
                                     : "\\U%08x",
                       static_cast<unsigned>(c));
    if (!escaped.empty()) out->append(escaped, source);
    else out->append(all.substr(pos, n), source);
    pos += n;
  }
  out->append(std::string_view(&quote, 1));
}

std::string repr_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string text(buffer, end.ptr);
  const size_t e = text.find('e');
  const bool small = text[e + 1] == '-';
  int exponent = 0;
  std::from_chars(text.data() + e + 2, text.data() + text.size(), exponent);
  if (small) exponent = -exponent;
  if (exponent < -4 || exponent >= 16) return text;  // "1e-05" is Python's spelling too
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  if (out.find('.') == out.npos) out += ".0";
  return out;
}

}  // namespace riffle
