// Base of the readers of grammars: reads UTF-8 text character by character, with line and column.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace riffle::grammar {

class Reader {
 public:
  // Throws RIFFLE_BAD_TEXT if text is not UTF-8. Requires: text outlives the reader.
  explicit Reader(std::string_view text);

  bool at_end() const { return at_ == text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : 0; }
  bool next_is(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool skip(std::string_view word);  // skips the word if it comes next
  uint32_t code_point();             // reads the next one; not at the end
  size_t position() const { return at_; }
  void go_to(size_t position) { at_ = position; }
  std::string_view from(size_t position) const { return text_.substr(position, at_ - position); }

  // Throw "line 3, column 7: found 'x', expected ...", for the next character or for a position.
  [[noreturn]] void expected(const std::string& what) const;
  [[noreturn]] void fail_at(size_t position, const std::string& text) const;
  std::string found() const;  // "'x'", "the end of the line", "the end"

  // Reads n hex digits, as in \u00e9. Throws if they are missing.
  uint32_t hex(int n);
  // Reads a decimal number, at most 2^31 - 1.
  uint32_t number();

 private:
  std::string_view text_;
  size_t at_ = 0;
};

// Appends a code point as UTF-8.
void append_utf8(uint32_t code, std::string* out);

}  // namespace riffle::grammar
