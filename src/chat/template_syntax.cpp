#include "chat/template_syntax.h"

#include <algorithm>

#include "chat/template_lexer.h"

namespace riffle {
namespace {

constexpr int kMaxNesting = 200;          // of brackets in an expression, of statements
constexpr int kMaxExpressionDepth = 400;  // also of chains such as a + b + c

using Token = TemplateToken;
using Tag = TemplateTag;
using Expression = TemplateExpression;
using Statement = TemplateStatement;

// One tag's tokens to expressions, by the grammar of Jinja's own parser.
class ExpressionParser {
 public:
  ExpressionParser(const Tag& tag, TemplateTree& tree, bool soft)
      : tag_(tag), tokens_(tag.tokens), tree_(tree), soft_(soft) {}

  bool at_end() const { return at_ == tokens_.size(); }
  bool name(const char* word, size_t ahead = 0) const { return is(Token::NAME, word, ahead); }
  bool sign(const char* text, size_t ahead = 0) const { return is(Token::SIGN, text, ahead); }
  bool take_name(const char* word) { return name(word) && ++at_; }
  bool take_sign(const char* text) { return sign(text) && ++at_; }
  void want_sign(const char* text) {
    if (!take_sign(text)) wrong((std::string("'") + text + "'").c_str());
  }
  std::string want_name() {
    if (at_end() || tokens_[at_].kind != Token::NAME) wrong("a name");
    return tokens_[at_++].text;
  }
  void want_end() const {
    if (!at_end()) wrong("the end of the tag");
  }
  [[noreturn]] void wrong(const char* expected) const {
    if (at_end()) bad_template(tag_.line, "found the end of a tag, expected %s", expected);
    const Token& token = tokens_[at_];
    bad_template(
        tag_.line, "found %s'%.60s', expected %s", token.kind == Token::STRING ? "the string " : "",
        token.kind == Token::INTEGER ? std::to_string(token.number).c_str() : token.text.c_str(),
        expected);
  }

  int expression(bool with_choice = true) {
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

  // As expression(), or several with commas.
  int tuple(bool with_choice = true) {
    const int first = expression(with_choice);
    if (!sign(",")) return first;
    std::vector<int> items = {first};
    while (take_sign(",")) {
      if (at_end() || sign(")") || sign("]") || name("in") || name("recursive")) break;
      items.push_back(expression(with_choice));
    }
    return make(Expression::TUPLE, "", std::move(items));
  }

  // | a | b(c) behind value.
  int filters(int value, bool first_without_bar) {
    for (bool bar = first_without_bar; bar || take_sign("|"); bar = false) value = filter(value);
    return value;
  }

  int make(Expression::Kind kind, std::string text, std::vector<int> operands,
           std::vector<std::pair<std::string, int>> keywords = {}) {
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
      bad_template(tag_.line, "found an expression deeper than %d", kMaxExpressionDepth);
    e.operands = std::move(operands);
    e.keywords = std::move(keywords);
    tree_.expressions.push_back(std::move(e));
    return static_cast<int>(tree_.expressions.size()) - 1;
  }

  // ( a, b=c ) of a macro, after its opening bracket.
  std::vector<std::pair<std::string, int>> parameters() {
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

 private:
  struct Nesting {
    explicit Nesting(ExpressionParser& parser) : parser(parser) {
      if (++parser.nesting_ > kMaxNesting)
        bad_template(parser.tag_.line, "found an expression nested deeper than %d", kMaxNesting);
    }
    ~Nesting() { parser.nesting_--; }
    ExpressionParser& parser;
  };

  bool is(Token::Kind kind, const char* text, size_t ahead) const {
    return at_ + ahead < tokens_.size() && tokens_[at_ + ahead].kind == kind &&
           tokens_[at_ + ahead].text == text;
  }

  // The first part of a choice is soft too, but whether there is one shows only behind it. Unknown
  // filters are therefore looked for again when it is known (hard_).
  int logic_or_soft() {
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
  [[noreturn]] void refuse(const std::string& what) const {
    bad_template(tag_.line, "found the %.80s, which riffle does not know", what.c_str());
  }
  void unknown(const char* kind, const std::string& what) {
    if (soft_) return;  // as in Jinja, it is an error when it is met
    const std::string text = std::string(kind) + " '" + what + "'";
    if (!collecting_) refuse(text);
    unknown_.push_back(text);
  }

  int logic_or() {
    int left = logic_and();
    while (take_name("or")) left = make(Expression::OR, "", {left, logic_and()});
    return left;
  }
  int logic_and() {
    int left = logic_not();
    while (take_name("and")) left = make(Expression::AND, "", {left, logic_not()});
    return left;
  }
  int logic_not() {
    int nots = 0;
    while (take_name("not")) nots++;
    int value = comparison();
    for (; nots > 0; nots--) value = make(Expression::NOT, "", {value});
    return value;
  }
  int comparison() {
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

  using Level = int (ExpressionParser::*)();
  int chain(Level next, std::initializer_list<const char*> signs) {
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
  int sum() { return chain(&ExpressionParser::joined, {"+", "-"}); }
  int joined() { return chain(&ExpressionParser::product, {"~"}); }
  int product() { return chain(&ExpressionParser::power, {"*", "//", "/", "%"}); }
  int power() { return chain(&ExpressionParser::filtered, {"**"}); }
  int filtered() { return unary(true); }

  int unary(bool with_filters) {
    const Nesting nesting(*this);
    int value;
    if (take_sign("-")) value = make(Expression::MINUS, "", {unary(false)});
    else if (take_sign("+")) value = make(Expression::PLUS, "", {unary(false)});
    else value = postfix(primary());
    return with_filters ? filters_and_tests(value) : value;
  }

  int primary() {
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

  struct Arguments {
    std::vector<int> list;
    std::vector<std::pair<std::string, int>> keywords;
  };
  // ( a, b, name=c, *list, **dict ) after its opening bracket.
  Arguments arguments(int callee) {
    Arguments out;
    bool list = false, dict = false;  // whether *list, **dict was read; nothing follows the latter
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
  int call(int callee) {
    Arguments given = arguments(callee);
    return make(Expression::CALL, "", std::move(given.list), std::move(given.keywords));
  }

  int postfix(int value) {
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

  int subscript(int of) {
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

  std::string dotted_name() {
    std::string text = want_name();
    while (take_sign(".")) text += "." + want_name();
    return text;
  }

  int filter(int value) {
    const std::string which = dotted_name();
    if (!is_template_filter(which)) unknown("filter", which);
    Arguments given{{value}, {}};
    if (take_sign("(")) given = arguments(value);
    return make(Expression::FILTER, which, std::move(given.list), std::move(given.keywords));
  }

  int test(int value) {
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

  int filters_and_tests(int value) {
    for (;;) {
      if (take_sign("|")) value = filter(value);
      else if (take_name("is")) value = test(value);
      else if (take_sign("(")) value = call(value);
      else return value;
    }
  }

  const Tag& tag_;
  const std::vector<Token>& tokens_;
  size_t at_ = 0;
  TemplateTree& tree_;
  int nesting_ = 0;
  bool soft_;  // in a branch, where Jinja takes an unknown filter for an error only when it is met
  bool collecting_ = false;
  std::vector<std::string> unknown_;
};

class StatementParser {
 public:
  StatementParser(const std::vector<Tag>& tags, TemplateTree& tree) : tags_(tags), tree_(tree) {}

  void whole() { tree_.body = body({}); }

 private:
  static std::string first_word(const Tag& tag) {
    return tag.tokens.empty() || tag.tokens[0].kind != Token::NAME ? "" : tag.tokens[0].text;
  }
  ExpressionParser inside(const Tag& tag) const { return {tag, tree_, soft_}; }

  // Statements up to one of the closing words; its tag is then current. None: up to the end.
  std::vector<int> body(std::initializer_list<const char*> closing) {
    const int line = at_ > 0 ? tags_[at_ - 1].line : 1;
    if (++nesting_ > kMaxNesting)
      bad_template(line, "found statements nested deeper than %d", kMaxNesting);
    std::vector<int> out;
    for (; at_ < tags_.size(); at_++) {
      const Tag& tag = tags_[at_];
      const std::string word = tag.kind == Tag::STATEMENT ? first_word(tag) : "";
      for (const char* end : closing) {
        if (word == end) {
          nesting_--;
          return out;
        }
      }
      Statement s = read(tag, word);
      s.line = tag.line;
      tree_.statements.push_back(std::move(s));
      out.push_back(static_cast<int>(tree_.statements.size()) - 1);
    }
    if (closing.size() > 0)
      bad_template(line, "found no {%% %s %%} up to the end", *(closing.end() - 1));
    nesting_--;
    return out;
  }
  // A body in which an unknown filter is an error at once (hard) or when it is met (soft).
  std::vector<int> body(std::initializer_list<const char*> closing, bool soft) {
    const bool before = std::exchange(soft_, soft);
    std::vector<int> out = body(closing);
    soft_ = before;
    return out;
  }
  void close() const {
    if (tags_[at_].tokens.size() != 1)
      bad_template(tags_[at_].line, "found more than %s in a tag", first_word(tags_[at_]).c_str());
  }

  Statement read(const Tag& tag, const std::string& word) {
    Statement s;
    if (tag.kind == Tag::TEXT) {
      s.text = tag.text;
      return s;
    }
    ExpressionParser in = inside(tag);
    if (tag.kind == Tag::OUTPUT) {
      s.kind = Statement::OUTPUT;
      s.expression = in.tuple();
      in.want_end();
      return s;
    }
    in.take_name(word.c_str());
    if (word == "if") read_if(&s);
    else if (word == "for") read_for(&s, in);
    else if (word == "set") read_set(&s, in);
    else if (word == "macro") read_macro(&s, in);
    else if (word == "call") read_call(&s, in);
    else if (word == "filter") read_filter(&s, in);
    else if (word == "with") read_with(&s, in);
    else if (word == "generation") {
      in.want_end();
      s.kind = Statement::SCOPE;
      at_++;
      s.bodies.push_back(body({"endgeneration"}, false));
      close();
    } else if (word == "break" || word == "continue") {
      in.want_end();
      if (loops_ == 0) bad_template(tag.line, "found %s outside of a loop", word.c_str());
      s.kind = word == "break" ? Statement::BREAK : Statement::CONTINUE;
    } else {
      bad_template(tag.line, "found the statement '%.60s', which riffle does not know here",
                   word.c_str());
    }
    return s;
  }

  void read_if(Statement* s) {
    s->kind = Statement::IF;
    const bool before = std::exchange(soft_, true);
    ExpressionParser first = inside(tags_[at_]);
    first.take_name("if");
    s->conditions.push_back(first.tuple(false));
    first.want_end();
    for (;;) {
      at_++;
      s->bodies.push_back(s->bodies.size() < s->conditions.size() ? body({"elif", "else", "endif"})
                                                                  : body({"endif"}));
      const std::string word = first_word(tags_[at_]);
      if (word != "elif") close();
      if (word == "endif") break;
      if (word == "else") continue;
      ExpressionParser next = inside(tags_[at_]);
      next.take_name("elif");
      s->conditions.push_back(next.tuple(false));
      next.want_end();
    }
    soft_ = before;
  }

  // a, b or (a, b): names to which an item's parts go.
  void read_targets(Statement* s, ExpressionParser& in) {
    const bool bracket = in.take_sign("(");
    s->targets.push_back(in.want_name());
    while (in.take_sign(",")) {
      s->unpack = true;
      if (in.name("in") || in.sign("=") || in.sign(")")) break;
      s->targets.push_back(in.want_name());
    }
    if (bracket) in.want_sign(")");
    for (const std::string& target : s->targets) {
      for (const char* word : {"true", "false", "none", "True", "False", "None"}) {
        if (target == word) bad_template(tags_[at_].line, "found an assignment to %s", word);
      }
    }
  }

  void read_for(Statement* s, ExpressionParser& in) {
    s->kind = Statement::FOR;
    read_targets(s, in);
    if (!in.take_name("in")) in.wrong("in");
    s->expression = in.tuple(false);
    if (in.take_name("if")) s->condition = in.expression();
    if (in.name("recursive"))
      bad_template(tags_[at_].line, "found a recursive loop, which riffle does not know");
    in.want_end();
    at_++;
    loops_++;
    s->bodies.push_back(body({"else", "endfor"}, false));
    loops_--;
    close();
    s->bodies.emplace_back();
    if (first_word(tags_[at_]) == "endfor") return;
    at_++;
    s->bodies.back() = body({"endfor"}, false);
    close();
  }

  void read_set(Statement* s, ExpressionParser& in) {
    s->kind = Statement::SET;
    if (in.sign(".", 1)) {
      s->text = in.want_name();
      in.want_sign(".");
      s->attribute = in.want_name();
    } else {
      read_targets(s, in);
    }
    if (in.take_sign("=")) {
      s->expression = in.tuple();
      return in.want_end();
    }
    s->kind = Statement::SET_BLOCK;
    if (s->unpack) in.wrong("'='");
    s->expression = in.filters(in.make(Expression::NAME, kPrinted, {}), false);
    in.want_end();
    at_++;
    s->bodies.push_back(body({"endset"}, false));
    close();
  }

  // The body of a macro is none of the loops around it.
  std::vector<int> macro_body(const char* end) {
    const int loops = std::exchange(loops_, 0);
    at_++;
    std::vector<int> out = body({end}, false);
    loops_ = loops;
    close();
    return out;
  }

  void read_macro(Statement* s, ExpressionParser& in) {
    s->kind = Statement::MACRO;
    s->text = in.want_name();
    in.want_sign("(");
    s->parameters = in.parameters();
    in.want_end();
    s->bodies.push_back(macro_body("endmacro"));
  }

  void read_call(Statement* s, ExpressionParser& in) {
    s->kind = Statement::CALL_BLOCK;
    if (in.take_sign("(")) s->parameters = in.parameters();
    s->expression = in.expression();
    if (tree_.expressions[static_cast<size_t>(s->expression)].kind != Expression::CALL)
      bad_template(tags_[at_].line, "found {%% call %%} without a call");
    in.want_end();
    s->bodies.push_back(macro_body("endcall"));
  }

  void read_filter(Statement* s, ExpressionParser& in) {
    s->kind = Statement::FILTER_BLOCK;
    s->expression = in.filters(in.make(Expression::NAME, kPrinted, {}), true);
    in.want_end();
    at_++;
    s->bodies.push_back(body({"endfilter"}, false));
    close();
  }

  void read_with(Statement* s, ExpressionParser& in) {
    s->kind = Statement::SCOPE;
    while (!in.at_end()) {
      if (!s->targets.empty()) in.want_sign(",");
      s->targets.push_back(in.want_name());
      in.want_sign("=");
      s->conditions.push_back(in.expression());
    }
    at_++;
    s->bodies.push_back(body({"endwith"}, false));
    close();
  }

  const std::vector<Tag>& tags_;
  TemplateTree& tree_;
  size_t at_ = 0;
  int nesting_ = 0, loops_ = 0;
  bool soft_ = false;
};

}  // namespace

TemplateTree parse_template(std::string_view text) {
  TemplateTree tree;
  const std::vector<Tag> tags = cut_template(text);
  StatementParser(tags, tree).whole();
  return tree;
}

}  // namespace riffle
