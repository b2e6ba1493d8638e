#include "grammar/reader.h"

#include <algorithm>

#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle::grammar {

Reader::Reader(std::string_view text) : text_(text) {
  if (const int64_t at = utf8_error(text); at >= 0)
    fail(RIFFLE_BAD_TEXT, "byte %lld is not valid UTF-8", static_cast<long long>(at) + 1);
}

bool Reader::skip(std::string_view word) {
  if (!next_is(word)) return false;
  at_ += word.size();
  return true;
}

uint32_t Reader::code_point() {
  const auto byte = [&] { return static_cast<uint8_t>(text_[at_++]); };
  const uint8_t lead = byte();
  if (lead < 0x80) return lead;
  const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  uint32_t code = lead & (0x3f >> more);
  for (int i = 0; i < more; ++i) code = code << 6 | (byte() & 0x3f);
  return code;
}

std::string Reader::found() const {
  if (at_end()) return "the end";
  if (text_[at_] == '\n' || text_[at_] == '\r') return "the end of the line";
  Reader copy = *this;
  const uint32_t code = copy.code_point();
  if (code < 0x20 || code == 0x7f) return format("the character U+%04X", code);
  return "'" + std::string(copy.from(at_)) + "'";
}

void Reader::fail_at(size_t position, const std::string& text) const {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < position; ++i) {
    if (text_[i] == '\n') ++line, column = 1;
    else if ((text_[i] & 0xc0) != 0x80) ++column;
  }
  // The text may contain any part of the grammar, so backquotes in it must not be read as settings.
  throw Error(RIFFLE_BAD_ARGUMENT, format("line %zu, column %zu: %s", line, column, text.c_str()));
}

void Reader::expected(const std::string& what) const {
  fail_at(at_, "found " + found() + ", expected " + what);
}

uint32_t Reader::hex(int n) {
  uint32_t value = 0;
  for (int i = 0; i < n; ++i, ++at_) {
    const char c = peek();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) expected(format("%d hexadecimal digits", n));
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

uint32_t Reader::number() {
  if (peek() < '0' || peek() > '9') expected("a number");
  const size_t begin = at_;
  uint64_t value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++at_) {
    value = value * 10 + static_cast<uint64_t>(peek() - '0');
    if (value > INT32_MAX)
      fail_at(begin, format("found a number that is too large, expected at most %d", INT32_MAX));
  }
  return static_cast<uint32_t>(value);
}

void append_utf8(uint32_t code, std::string* out) {
  const auto put = [&](uint32_t byte) { *out += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  const int more = code >= 0x10000 ? 3 : code >= 0x800 ? 2 : 1;
  put((0xf00u >> (more + 1) & 0xffu) | code >> (6 * more));
  for (int i = more; i-- > 0;) put(0x80 | (code >> (6 * i) & 0x3f));
}

}  // namespace riffle::grammar
