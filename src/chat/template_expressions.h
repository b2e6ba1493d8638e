// The syntax of expressions in Jinja templates.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "chat/template_lexer.h"
#include "chat/template_syntax.h"

namespace riffle {

inline constexpr int kMaxTemplateNesting =
    200;  // depth of brackets in an expression, and of statements

// Parses the tokens of one tag into expressions, by the grammar of Jinja's own parser.
class TemplateExpressionParser {
 public:
  TemplateExpressionParser(const TemplateTag& tag, TemplateTree& tree, bool soft)
      : tag_(tag), tokens_(tag.tokens), tree_(tree), soft_(soft) {}

  bool at_end() const { return at_ == tokens_.size(); }
  bool name(const char* word, size_t ahead = 0) const {
    return is(TemplateToken::NAME, word, ahead);
  }
  bool sign(const char* text, size_t ahead = 0) const {
    return is(TemplateToken::SIGN, text, ahead);
  }
  bool take_name(const char* word) { return name(word) && ++at_; }
  bool take_sign(const char* text) { return sign(text) && ++at_; }
  void want_sign(const char* text);
  std::string want_name();
  void want_end() const;
  [[noreturn]] void wrong(const char* expected) const;

  int expression(bool with_choice = true);

  // Reads an expression, or several with commas.
  int tuple(bool with_choice = true);

  // Reads filters after a value: | a | b(c).
  int filters(int value, bool first_without_bar);

  int make(TemplateExpression::Kind kind, std::string text, std::vector<int> operands,
           std::vector<std::pair<std::string, int>> keywords = {});

  // Reads the parameters ( a, b=c ) of a macro, after the opening bracket.
  std::vector<std::pair<std::string, int>> parameters();

 private:
  struct Nesting {
    explicit Nesting(TemplateExpressionParser& parser) : parser(parser) {
      if (++parser.nesting_ > kMaxTemplateNesting)
        bad_template(parser.tag_.line, "found an expression nested deeper than %d levels",
                     kMaxTemplateNesting);
    }
    ~Nesting() { parser.nesting_--; }
    TemplateExpressionParser& parser;
  };

  bool is(TemplateToken::Kind kind, const char* text, size_t ahead) const;

  // The first part of a choice (a if b) is soft too, but only the text after it shows that it is
  // one. So unknown filters in it are checked again once this is known (hard_).
  int logic_or_soft();
  [[noreturn]] void refuse(const std::string& what) const;
  void unknown(const char* kind, const std::string& what);

  int logic_or();
  int logic_and();
  int logic_not();
  int comparison();

  using Level = int (TemplateExpressionParser::*)();
  int chain(Level next, std::initializer_list<const char*> signs);
  int sum() { return chain(&TemplateExpressionParser::joined, {"+", "-"}); }
  int joined() { return chain(&TemplateExpressionParser::product, {"~"}); }
  int product() { return chain(&TemplateExpressionParser::power, {"*", "//", "/", "%"}); }
  int power() { return chain(&TemplateExpressionParser::filtered, {"**"}); }
  int filtered() { return unary(true); }

  int unary(bool with_filters);

  int primary();

  struct Arguments {
    std::vector<int> list;
    std::vector<std::pair<std::string, int>> keywords;
  };
  // Reads the arguments ( a, b, name=c, *list, **dict ) of a call, after the opening bracket.
  Arguments arguments(int callee);
  int call(int callee);

  int postfix(int value);

  int subscript(int of);

  std::string dotted_name();

  int filter(int value);

  int test(int value);

  int filters_and_tests(int value);

  const TemplateTag& tag_;
  const std::vector<TemplateToken>& tokens_;
  size_t at_ = 0;
  TemplateTree& tree_;
  int nesting_ = 0;
  bool soft_;  // in a branch, where an unknown filter is an error only when it is evaluated
  bool collecting_ = false;
  std::vector<std::string> unknown_;
};

}  // namespace riffle
