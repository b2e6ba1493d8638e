#include "chat/template_expressions.h"

#include <algorithm>

namespace riffle {
namespace {

constexpr int kMaxExpressionDepth = 400;  // also of chains such as a + b + c

using Token = TemplateToken;
using Expression = TemplateExpression;

}  // namespace

void TemplateExpressionParser::want_sign(const char* text) {
  if (!take_sign(text)) wrong((std::string("'") + text + "'").c_str());
}

std::string TemplateExpressionParser::want_name() {
  if (at_end() || tokens_[at_].kind != Token::NAME) wrong("a name");
  return tokens_[at_++].text;
}

void TemplateExpressionParser::want_end() const {
  if (!at_end()) wrong("the end of the tag");
}

void TemplateExpressionParser::wrong(const char* expected) const {
  if (at_end()) bad_template(tag_.line, "found the end of a tag, expected %s", expected);
  const Token& token = tokens_[at_];
  bad_template(
      tag_.line, "found %s'%.60s', expected %s", token.kind == Token::STRING ? "the string " : "",
      token.kind == Token::INTEGER ? std::to_string(token.number).c_str() : token.text.c_str(),
      expected);
}

int TemplateExpressionParser::expression(bool with_choice) {
  if (!with_choice) return logic_or();
  const Nesting nesting(*this);
  int value = logic_or_soft();
  while (take_name("if")) {
    const bool soft = std::exchange(soft_, true);
    const int condition = logic_or();
    const int otherwise = take_name("else") ? expression() : -1;
    soft_ = soft;
    value = make(Expression::CHOICE, "", {value, condition, otherwise});
  }
  return value;
}

int TemplateExpressionParser::tuple(bool with_choice) {
  const int first = expression(with_choice);
  if (!sign(",")) return first;
  std::vector<int> items = {first};
  while (take_sign(",")) {
    if (at_end() || sign(")") || sign("]") || name("in") || name("recursive")) break;
    items.push_back(expression(with_choice));
  }
  return make(Expression::TUPLE, "", std::move(items));
}

int TemplateExpressionParser::filters(int value, bool first_without_bar) {
  for (bool bar = first_without_bar; bar || take_sign("|"); bar = false) value = filter(value);
  return value;
}

int TemplateExpressionParser::make(Expression::Kind kind, std::string text,
                                   std::vector<int> operands,
                                   std::vector<std::pair<std::string, int>> keywords) {
  Expression e;
  e.kind = kind;
  e.line = tag_.line;
  e.text = std::move(text);
  const auto count = [&](int operand) {
    if (operand >= 0)
      e.depth = std::max(e.depth, tree_.expressions[static_cast<size_t>(operand)].depth + 1);
  };
  for (const int operand : operands) count(operand);
  for (const auto& keyword : keywords) count(keyword.second);
  if (e.depth > kMaxExpressionDepth)
    bad_template(tag_.line, "found an expression deeper than %d levels", kMaxExpressionDepth);
  e.operands = std::move(operands);
  e.keywords = std::move(keywords);
  tree_.expressions.push_back(std::move(e));
  return static_cast<int>(tree_.expressions.size()) - 1;
}

std::vector<std::pair<std::string, int>> TemplateExpressionParser::parameters() {
  std::vector<std::pair<std::string, int>> out;
  while (!take_sign(")")) {
    if (!out.empty()) want_sign(",");
    std::string parameter = want_name();
    const int value = take_sign("=") ? expression() : -1;
    if (value < 0 && !out.empty() && out.back().second >= 0)
      bad_template(tag_.line,
                   "found the parameter %.60s without a default after one with a default",
                   parameter.c_str());
    out.emplace_back(std::move(parameter), value);
  }
  return out;
}

bool TemplateExpressionParser::is(Token::Kind kind, const char* text, size_t ahead) const {
  return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].kind == kind &&
         tokens_[at_ + ahead].text == text;
}

int TemplateExpressionParser::logic_or_soft() {
  const size_t before = unknown_.size();
  const bool soft = std::exchange(soft_, false);
  const bool collecting = std::exchange(collecting_, true);
  const int value = logic_or();
  collecting_ = collecting;
  soft_ = soft;
  if (soft_ || name("if")) unknown_.resize(before);
  if (!collecting_ && !unknown_.empty()) refuse(unknown_.front());
  return value;
}

void TemplateExpressionParser::refuse(const std::string& what) const {
  bad_template(tag_.line, "found the %.80s, which riffle does not support", what.c_str());
}

void TemplateExpressionParser::unknown(const char* kind, const std::string& what) {
  if (soft_) return;  // as in Jinja, it is an error only when it is evaluated
  const std::string text = std::string(kind) + " '" + what + "'";
  if (!collecting_) refuse(text);
  unknown_.push_back(text);
}

int TemplateExpressionParser::logic_or() {
  int left = logic_and();
  while (take_name("or")) left = make(Expression::OR, "", {left, logic_and()});
  return left;
}

int TemplateExpressionParser::logic_and() {
  int left = logic_not();
  while (take_name("and")) left = make(Expression::AND, "", {left, logic_not()});
  return left;
}

int TemplateExpressionParser::logic_not() {
  int nots = 0;
  while (take_name("not")) nots++;
  int value = comparison();
  for (; nots > 0; nots--) value = make(Expression::NOT, "", {value});
  return value;
}

int TemplateExpressionParser::comparison() {
  std::vector<int> operands = {sum()};
  std::vector<std::string> names;
  for (;;) {
    std::string found;
    for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (found.empty() && take_sign(text)) found = text;
    }
    if (found.empty() && take_name("in")) found = "in";
    if (found.empty() && name("not") && name("in", 1)) {
      found = "not in";
      at_ += 2;
    }
    if (found.empty()) break;
    names.push_back(std::move(found));
    operands.push_back(sum());
  }
  if (names.empty()) return operands[0];
  const int value = make(Expression::COMPARE, "", std::move(operands));
  tree_.expressions[static_cast<size_t>(value)].names = std::move(names);
  return value;
}

int TemplateExpressionParser::chain(Level next, std::initializer_list<const char*> signs) {
  int left = (this->*next)();
  for (bool more = true; more;) {
    more = false;
    for (const char* text : signs) {
      if (more || !take_sign(text)) continue;
      left = make(Expression::BINARY, text, {left, (this->*next)()});
      more = true;
    }
  }
  return left;
}

int TemplateExpressionParser::unary(bool with_filters) {
  const Nesting nesting(*this);
  int value;
  if (take_sign("-")) value = make(Expression::MINUS, "", {unary(false)});
  else if (take_sign("+")) value = make(Expression::PLUS, "", {unary(false)});
  else value = postfix(primary());
  return with_filters ? filters_and_tests(value) : value;
}

int TemplateExpressionParser::primary() {
  if (at_end()) wrong("an expression");
  const Token& token = tokens_[at_];
  switch (token.kind) {
    case Token::NAME: {
      at_++;
      const bool yes = token.text == "true" || token.text == "True";
      if (yes || token.text == "false" || token.text == "False") {
        const int value = make(Expression::BOOL, "", {});
        tree_.expressions.back().number = yes;
        return value;
      }
      if (token.text == "none" || token.text == "None") return make(Expression::NONE, "", {});
      return make(Expression::NAME, token.text, {});
    }
    case Token::STRING: {
      std::string text;
      for (; !at_end() && tokens_[at_].kind == Token::STRING; at_++) text += tokens_[at_].text;
      return make(Expression::STRING, std::move(text), {});
    }
    case Token::INTEGER: {
      at_++;
      const int value = make(Expression::INTEGER, "", {});
      tree_.expressions.back().number = token.number;
      return value;
    }
    case Token::REAL: {
      at_++;
      const int value = make(Expression::REAL, "", {});
      tree_.expressions.back().real = token.real;
      return value;
    }
    case Token::SIGN: break;
  }
  if (take_sign("(")) {
    if (take_sign(")")) return make(Expression::TUPLE, "", {});
    const int value = tuple();
    want_sign(")");
    return value;
  }
  if (take_sign("[")) {
    std::vector<int> items;
    while (!take_sign("]")) {
      if (!items.empty()) want_sign(",");
      if (take_sign("]")) break;
      items.push_back(expression());
    }
    return make(Expression::LIST, "", std::move(items));
  }
  if (take_sign("{")) {
    std::vector<int> items;
    while (!take_sign("}")) {
      if (!items.empty()) want_sign(",");
      if (take_sign("}")) break;
      items.push_back(expression());
      want_sign(":");
      items.push_back(expression());
    }
    return make(Expression::DICT, "", std::move(items));
  }
  wrong("an expression");
}

TemplateExpressionParser::Arguments TemplateExpressionParser::arguments(int callee) {
  Arguments out;
  bool list = false, dict = false;  // *list, **dict was read; nothing may follow **dict
  out.list.push_back(callee);
  for (bool first = true; !take_sign(")"); first = false) {
    if (!first) want_sign(",");
    if (take_sign(")")) break;
    if (dict) wrong("')' after **");
    if (!list && take_sign("*")) {
      list = true;
      out.keywords.emplace_back("*", expression());
    } else if (take_sign("**")) {
      dict = true;
      out.keywords.emplace_back("**", expression());
    } else if (!at_end() && tokens_[at_].kind == Token::NAME && sign("=", 1)) {
      std::string keyword = want_name();
      at_++;
      const int value = expression();
      for (const auto& other : out.keywords) {
        if (other.first == keyword)
          bad_template(tag_.line, "found the argument %.60s twice", keyword.c_str());
      }
      out.keywords.emplace_back(std::move(keyword), value);
    } else {
      if (!out.keywords.empty()) wrong("NAME=VALUE");
      out.list.push_back(expression());
    }
  }
  return out;
}

int TemplateExpressionParser::call(int callee) {
  Arguments given = arguments(callee);
  return make(Expression::CALL, "", std::move(given.list), std::move(given.keywords));
}

int TemplateExpressionParser::postfix(int value) {
  for (;;) {
    if (take_sign(".")) {
      if (!at_end() && tokens_[at_].kind == Token::INTEGER) {
        const int index = primary();
        value = make(Expression::ITEM, "", {value, index});
      } else {
        value = make(Expression::ATTRIBUTE, want_name(), {value});
      }
    } else if (take_sign("[")) {
      value = subscript(value);
    } else if (take_sign("(")) {
      value = call(value);
    } else {
      return value;
    }
  }
}

int TemplateExpressionParser::subscript(int of) {
  int bounds[3] = {-1, -1, -1};
  if (!sign(":")) bounds[0] = expression();
  if (take_sign("]")) return make(Expression::ITEM, "", {of, bounds[0]});
  if (sign(",")) {
    std::vector<int> items = {bounds[0]};
    while (take_sign(",")) items.push_back(expression());
    want_sign("]");
    const int key = make(Expression::TUPLE, "", std::move(items));
    return make(Expression::ITEM, "", {of, key});
  }
  for (int i = 1; i < 3 && take_sign(":"); i++) {
    if (!sign("]") && !sign(":")) bounds[i] = expression();
  }
  want_sign("]");
  return make(Expression::SLICE, "", {of, bounds[0], bounds[1], bounds[2]});
}

std::string TemplateExpressionParser::dotted_name() {
  std::string text = want_name();
  while (take_sign(".")) text += "." + want_name();
  return text;
}

int TemplateExpressionParser::filter(int value) {
  const std::string which = dotted_name();
  if (!is_template_filter(which)) unknown("filter", which);
  Arguments given{{value}, {}};
  if (take_sign("(")) given = arguments(value);
  return make(Expression::FILTER, which, std::move(given.list), std::move(given.keywords));
}

int TemplateExpressionParser::test(int value) {
  const bool negated = take_name("not");
  const std::string which = dotted_name();
  if (!is_template_test(which)) unknown("test", which);
  Arguments given{{value}, {}};
  if (take_sign("(")) {
    given = arguments(value);
  } else if (!at_end() && !name("else") && !name("or") && !name("and") &&
             (tokens_[at_].kind != Token::SIGN || sign("(") || sign("[") || sign("{"))) {
    if (name("is")) wrong("no second test");
    given.list.push_back(postfix(primary()));
  }
  value = make(Expression::TEST, which, std::move(given.list), std::move(given.keywords));
  return negated ? make(Expression::NOT, "", {value}) : value;
}

int TemplateExpressionParser::filters_and_tests(int value) {
  for (;;) {
    if (take_sign("|")) value = filter(value);
    else if (take_name("is")) value = test(value);
    else if (take_sign("(")) value = call(value);
    else return value;
  }
}

}  // namespace riffle
