// Pieces of JSON text as expressions.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/regex.h"

namespace riffle::grammar {

class JsonPieces {
 public:
  explicit JsonPieces(Expressions* e);

  // White space where JSON allows it and models write it: after { [ , : and before } and ]. None,
  // one space, or a line break and up to kMostIndent spaces or tabs.
  static constexpr uint32_t kMostIndent = 40;
  ExprId space() const { return space_; }
  ExprId comma() const { return comma_; }  // includes white space
  // A string of min to max characters, with any escapes.
  ExprId string(uint32_t min, uint32_t max);
  // A string with exactly this text. Only quote, backslash and control characters are escaped.
  ExprId literal(const std::string& text) { return e_.text(key(text)); }
  static std::string key(const std::string& text);
  // A string whose text matches the expression, escaped in the same way.
  ExprId matching(const Regex& regex);
  RegexOptions regex_options();
  // A string with any text except these, escaped in the same way, so that each text has one
  // spelling.
  ExprId other_than(std::vector<std::string> texts);

 private:
  ExprId plain_chars(std::vector<CodeRange> ranges);

  Expressions& e_;
  ExprId space_, comma_, any_char_, quote_;
  std::map<std::vector<std::string>, uint32_t> escapes_;  // rules
};

}  // namespace riffle::grammar
