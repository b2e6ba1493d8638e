#include "model/chat/template_syntax.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace riffle {
namespace {

constexpr size_t kMaxTemplateBytes = 256 << 10;
constexpr int kMaxNesting = 40;           // of brackets in an expression, of statements
constexpr int kMaxExpressionDepth = 200;  // also of chains such as a + b + c
constexpr size_t kMaxTokens = 4096;       // in one tag

size_t space_at(std::string_view text, size_t pos) {
  const uint8_t c = static_cast<uint8_t>(text[pos]);
  if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) return 1;
  const std::string_view two = text.substr(pos, 2), three = text.substr(pos, 3);
  if (two == "\xC2\x85" || two == "\xC2\xA0") return 2;
  if (three == "\xE1\x9A\x80" || three == "\xE2\x80\xA8" || three == "\xE2\x80\xA9" ||
      three == "\xE2\x80\xAF" || three == "\xE2\x81\x9F" || three == "\xE3\x80\x80") {
    return 3;
  }
  const bool en_to_hair = three.size() == 3 && three.starts_with("\xE2\x80") &&
                          three >= "\xE2\x80\x80" && three <= "\xE2\x80\x8A";
  return en_to_hair ? 3 : 0;
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

struct Token {
  enum Kind { NAME, INTEGER, STRING, SIGN, END } kind = END;
  std::string text;
  int64_t number = 0;
};

// What stands in a string literal. False for escapes that nobody writes in templates.
bool unescape(std::string_view quoted, std::string* out) {
  for (size_t i = 0; i < quoted.size(); i++) {
    if (quoted[i] != '\\') {
      *out += quoted[i];
      continue;
    }
    if (++i == quoted.size()) return false;
    switch (quoted[i]) {
      case 'n': *out += '\n'; break;
      case 't': *out += '\t'; break;
      case 'r': *out += '\r'; break;
      case '\\':
      case '\'':
      case '"': *out += quoted[i]; break;
      default: return false;
    }
  }
  return true;
}

// Splits a tag's inside, from pos, into tokens, up to its closing sign (which a '-' may stand
// before). Brackets that are open keep "}}" and "%}" from closing. *bad: a token is none of ours.
// False if the tag does not close.
bool lex_tag(std::string_view text, size_t pos, std::string_view close, std::vector<Token>* tokens,
             bool* bad, size_t* after, bool* dash) {
  int open = 0;
  while (pos < text.size()) {
    const char c = text[pos];
    if (open == 0) {
      *dash = c == '-';
      if (text.substr(pos + *dash).starts_with(close)) {
        *after = pos + *dash + close.size();
        return true;
      }
    }
    if (tokens->size() > kMaxTokens) return false;
    if (const size_t space = space_at(text, pos)) {
      pos += space;
      continue;
    }
    Token token;
    size_t end = pos + 1;
    if (is_letter(c)) {
      while (end < text.size() && (is_letter(text[end]) || is_digit(text[end]))) end++;
      token.kind = Token::NAME;
      token.text = text.substr(pos, end - pos);
    } else if (is_digit(c)) {
      while (end < text.size() && is_digit(text[end])) end++;
      token.kind = Token::INTEGER;
      if (end - pos > 9) *bad = true;
      else token.number = std::stoll(std::string(text.substr(pos, end - pos)));
      // 1.5, 1e5, 1_000: no numbers of ours.
      if (end < text.size() &&
          (is_letter(text[end]) ||
           (text[end] == '.' && end + 1 < text.size() && is_digit(text[end + 1])))) {
        *bad = true;
      }
    } else if (c == '\'' || c == '"') {
      while (end < text.size() && text[end] != c) end += text[end] == '\\' ? 2 : 1;
      if (end >= text.size()) return false;
      token.kind = Token::STRING;
      if (!unescape(text.substr(pos + 1, end - pos - 1), &token.text)) *bad = true;
      end++;
    } else {
      token.kind = Token::SIGN;
      for (const char* two : {"==", "!=", "<=", ">=", "**", "//"}) {
        if (text.substr(pos, 2) == two) end = pos + 2;
      }
      token.text = text.substr(pos, end - pos);
      if (end == pos + 1 && !std::strchr("+-*/%~<>=()[]{}.,:|", c)) *bad = true;
      if (c == '(' || c == '[' || c == '{') open++;
      if (c == ')' || c == ']' || c == '}') open--;
      if (open < 0) return false;
    }
    tokens->push_back(std::move(token));
    pos = end;
  }
  return false;
}

// One tag's tokens to expressions, by the grammar of Jinja's own parser: filters, tests and calls
// bind tightest, then unary minus, **, * / // %, ~, + -, comparisons, not, and, or, the inline if.
class ExpressionParser {
 public:
  ExpressionParser(const std::vector<Token>& tokens, size_t at, TemplateTree* tree)
      : tokens_(tokens), at_(at), tree_(*tree) {}

  // Each returns an index, or nothing if the tokens are none.
  std::optional<int> expression() {
    if (++nesting_ > kMaxNesting) return {};
    auto value = logic_or();
    while (value && take_name("if")) {
      const auto condition = logic_or();
      if (!condition) return {};
      int otherwise = -1;
      if (take_name("else")) {
        const auto rest = expression();
        if (!rest) return {};
        otherwise = *rest;
      }
      value = make(TemplateExpression::CHOICE, "", {*value, *condition, otherwise});
    }
    nesting_--;
    return value;
  }
  // As expression(), or several with commas: a tuple.
  std::optional<int> tuple() {
    const auto first = expression();
    if (!first || !sign(",")) return first;
    std::vector<int> items = {*first};
    while (take_sign(",")) {
      if (at_end()) break;
      const auto item = expression();
      if (!item) return {};
      items.push_back(*item);
    }
    return make(TemplateExpression::LIST, "", std::move(items));
  }
  // What may follow `for x in`: no inline if, since that is the loop's own.
  std::optional<int> without_choice() { return logic_or(); }

  bool at_end() const { return at_ == tokens_.size(); }
  bool take_name(const char* word) { return name(word) && ++at_; }
  bool take_sign(const char* text) { return sign(text) && ++at_; }
  std::optional<std::string> take_any_name() {
    if (at_end() || tokens_[at_].kind != Token::NAME) return {};
    return tokens_[at_++].text;
  }

 private:
  using Kind = TemplateExpression::Kind;

  bool name(const char* word) const {
    return !at_end() && tokens_[at_].kind == Token::NAME && tokens_[at_].text == word;
  }
  bool sign(const char* text) const {
    return !at_end() && tokens_[at_].kind == Token::SIGN && tokens_[at_].text == text;
  }

  std::optional<int> make(Kind kind, std::string text, std::vector<int> operands) {
    TemplateExpression e;
    e.kind = kind;
    e.text = std::move(text);
    for (const int operand : operands) {
      if (operand >= 0) e.depth = std::max(e.depth, tree_.expressions[operand].depth + 1);
    }
    if (e.depth > kMaxExpressionDepth) return {};
    e.operands = std::move(operands);
    tree_.expressions.push_back(std::move(e));
    return static_cast<int>(tree_.expressions.size()) - 1;
  }

  using Level = std::optional<int> (ExpressionParser::*)();
  std::optional<int> chain(Level next, std::initializer_list<const char*> signs) {
    auto left = (this->*next)();
    for (bool more = left.has_value(); more;) {
      more = false;
      for (const char* text : signs) {
        if (!(is_letter(*text) ? take_name(text) : take_sign(text))) continue;
        const auto right = (this->*next)();
        if (!right) return {};
        left = make(Kind::BINARY, text, {*left, *right});
        more = left.has_value();
        break;
      }
    }
    return left;
  }
  std::optional<int> logic_or() { return chain(&ExpressionParser::logic_and, {"or"}); }
  std::optional<int> logic_and() { return chain(&ExpressionParser::logic_not, {"and"}); }
  std::optional<int> logic_not() {
    int nots = 0;
    while (take_name("not")) nots++;
    auto value = comparison();
    for (; value && nots > 0; nots--) value = make(Kind::NOT, "", {*value});
    return value;
  }
  std::optional<int> comparison() {
    const auto left = sum();
    if (!left) return {};
    std::optional<int> all;
    for (auto a = left;;) {
      const char* found = nullptr;
      for (const char* text : {"==", "!=", "<=", ">=", "<", ">"}) {
        if (take_sign(text)) found = text;
        if (found) break;
      }
      if (!found && take_name("in")) found = "in";
      if (!found && name("not") && at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == "in") {
        found = "not in";
        at_ += 2;
      }
      if (!found) return all ? all : left;
      const auto b = sum();
      if (!b) return {};
      const auto one = make(Kind::COMPARE, found, {*a, *b});  // a < b < c is a < b and b < c
      if (!one) return {};
      all = all ? make(Kind::BINARY, "and", {*all, *one}) : one;
      if (!all) return {};
      a = b;
    }
  }
  std::optional<int> sum() { return chain(&ExpressionParser::joined, {"+", "-"}); }
  std::optional<int> joined() { return chain(&ExpressionParser::product, {"~"}); }
  std::optional<int> product() { return chain(&ExpressionParser::power, {"*", "//", "/", "%"}); }
  std::optional<int> power() { return chain(&ExpressionParser::unary, {"**"}); }
  std::optional<int> unary() {
    if (take_sign("-")) {
      if (++nesting_ > kMaxNesting) return {};
      const auto value = unary();
      nesting_--;
      return value ? make(Kind::MINUS, "", {*value}) : value;
    }
    if (sign("+")) return {};
    return postfix(primary(), true);
  }

  std::optional<int> primary() {
    if (at_end()) return {};
    const Token& token = tokens_[at_];
    if (token.kind == Token::STRING) {
      std::string text;
      for (; !at_end() && tokens_[at_].kind == Token::STRING; at_++) text += tokens_[at_].text;
      return make(Kind::STRING, std::move(text), {});
    }
    if (token.kind == Token::INTEGER) {
      at_++;
      const auto value = make(Kind::INTEGER, "", {});
      tree_.expressions[*value].number = token.number;
      return value;
    }
    if (token.kind == Token::NAME) {
      for (const char* word : {"and", "or", "not", "in", "is", "if", "else"}) {
        if (token.text == word) return {};
      }
      at_++;
      return make(Kind::NAME, token.text, {});
    }
    if (take_sign("(")) {
      if (take_sign(")")) return make(Kind::LIST, "", {});
      std::vector<int> items;
      bool is_tuple = false;
      for (;;) {
        const auto item = expression();
        if (!item) return {};
        items.push_back(*item);
        if (take_sign(")")) break;
        if (!take_sign(",")) return {};
        is_tuple = true;
        if (take_sign(")")) break;
      }
      return is_tuple ? make(Kind::LIST, "", std::move(items)) : items[0];
    }
    if (take_sign("[")) {
      std::vector<int> items;
      while (!take_sign("]")) {
        if (!items.empty() && !take_sign(",")) return {};
        if (take_sign("]")) break;
        const auto item = expression();
        if (!item) return {};
        items.push_back(*item);
      }
      return make(Kind::LIST, "", std::move(items));
    }
    return {};  // dictionaries: no template of ours prints one
  }

  // ( a, b, name=c ) after its opening bracket.
  bool arguments(std::vector<int>* operands, std::vector<std::pair<std::string, int>>* keywords) {
    for (bool first = true; !take_sign(")"); first = false) {
      if (!first && !take_sign(",")) return false;
      if (take_sign(")")) break;
      std::string keyword;
      if (at_ + 1 < tokens_.size() && tokens_[at_].kind == Token::NAME &&
          tokens_[at_ + 1].kind == Token::SIGN && tokens_[at_ + 1].text == "=") {
        keyword = tokens_[at_].text;
        at_ += 2;
      }
      const auto value = expression();
      if (!value) return false;
      if (keyword.empty()) operands->push_back(*value);
      else keywords->emplace_back(keyword, *value);
    }
    return true;
  }

  // What may follow a value. filters: also | and is, which a test's argument without brackets does
  // not take.
  std::optional<int> postfix(std::optional<int> value, bool filters) {
    while (value) {
      std::vector<int> operands = {*value};
      std::vector<std::pair<std::string, int>> keywords;
      if (take_sign(".")) {
        const auto attribute = take_any_name();
        if (!attribute) return {};
        value = make(Kind::ATTRIBUTE, *attribute, std::move(operands));
      } else if (take_sign("[")) {
        int bounds[2] = {-1, -1};
        if (!sign(":")) {
          const auto index = expression();
          if (!index) return {};
          bounds[0] = *index;
        }
        if (take_sign(":")) {
          if (!sign("]")) {
            const auto end = expression();
            if (!end) return {};
            bounds[1] = *end;
          }
          if (!take_sign("]")) return {};  // a step is not read
          value = make(Kind::SLICE, "", {*value, bounds[0], bounds[1]});
        } else {
          if (!take_sign("]")) return {};
          value = make(Kind::ITEM, "", {*value, bounds[0]});
        }
      } else if (take_sign("(")) {
        if (!arguments(&operands, &keywords)) return {};
        for (const auto& keyword : keywords) operands.push_back(keyword.second);  // for the depth
        value = make(Kind::CALL, "", operands);
        if (!value) return {};
        TemplateExpression& call = tree_.expressions[*value];
        call.operands.resize(call.operands.size() - keywords.size());
        call.keywords = std::move(keywords);
      } else if (filters && take_sign("|")) {
        const auto filter = take_any_name();
        if (!filter) return {};
        if (take_sign("(") && !arguments(&operands, &keywords)) return {};
        for (const auto& keyword : keywords) operands.push_back(keyword.second);
        value = make(Kind::FILTER, keywords.empty() ? *filter : *filter + "=", std::move(operands));
      } else if (filters && take_name("is")) {
        const bool negated = take_name("not");
        const auto test = take_any_name();
        if (!test) return {};
        if (take_sign("(")) {
          if (!arguments(&operands, &keywords) || !keywords.empty()) return {};
        } else if (!at_end() && !name("else") && !name("or") && !name("and") && !name("is") &&
                   !name("if") && !name("in") && !name("not") &&
                   (tokens_[at_].kind != Token::SIGN || sign("["))) {
          const auto argument = postfix(primary(), false);
          if (!argument) return {};
          operands.push_back(*argument);
        }
        value = make(Kind::TEST, *test, std::move(operands));
        if (value && negated) value = make(Kind::NOT, "", {*value});
      } else {
        return value;
      }
    }
    return value;
  }

  const std::vector<Token>& tokens_;
  size_t at_;
  TemplateTree& tree_;
  int nesting_ = 0;
};

// The template cut at its tags.
struct Tag {
  char type;  // 't': text; '{': output; '%': statement
  std::string text;
  std::vector<Token> tokens;
  bool bad = false;  // a token is none of ours
};

size_t tag_begin(std::string_view text, size_t pos) {
  for (; (pos = text.find('{', pos)) != std::string_view::npos; pos++) {
    if (pos + 1 < text.size() &&
        (text[pos + 1] == '%' || text[pos + 1] == '{' || text[pos + 1] == '#'))
      break;
  }
  return pos;
}

// Text between tags as Jinja prints it: trim_blocks drops the line break after a statement (or
// comment), lstrip_blocks the indentation before one, a '-' all white space on its side.
bool cut(std::string_view text, std::vector<Tag>* tags) {
  bool line_start = true, dash_left = false, statement_left = false;
  for (size_t pos = 0;;) {
    const size_t open = tag_begin(text, pos);
    const bool last = open == std::string_view::npos;
    std::string_view literal = text.substr(pos, open - pos);
    if (dash_left) {
      literal = strip_left(literal);
    } else if (statement_left) {
      line_start = literal.starts_with('\n');
      if (line_start) literal.remove_prefix(1);
    }
    const char type = last ? 0 : text[open + 1];
    const char first = last || open + 2 >= text.size() ? 0 : text[open + 2];
    if (first == '+') return false;  // switches the rules off; nobody uses it
    if (first == '-') {
      literal = strip_right(literal);
    } else if (type == '%' || type == '#') {
      const size_t line = literal.rfind('\n') + 1;  // npos + 1 is 0
      if ((line > 0 || line_start) && strip_left(literal.substr(line)).empty())
        literal = literal.substr(0, line);
    }
    if (!literal.empty()) tags->push_back({'t', std::string(literal), {}});
    if (last) return true;

    const size_t inside = open + 2 + (first == '-');
    size_t after;
    Tag tag{type, "", {}};
    if (type == '#') {
      const size_t end = text.find("#}", inside);
      if (end == std::string_view::npos) return false;
      dash_left = end > inside && text[end - 1] == '-';
      after = end + 2;
    } else {
      if (!lex_tag(text, inside, type == '%' ? "%}" : "}}", &tag.tokens, &tag.bad, &after,
                   &dash_left))
        return false;
      tags->push_back(std::move(tag));
    }
    statement_left = type != '{';
    line_start = false;
    pos = after;
  }
}

class StatementParser {
 public:
  StatementParser(const std::vector<Tag>& tags, TemplateTree* tree) : tags_(tags), tree_(*tree) {}

  // Statements up to one of the closing words, or the end; the closing word is then current.
  bool body(std::vector<int>* out, std::initializer_list<const char*> closing) {
    if (++nesting_ > kMaxNesting) return false;
    for (; at_ < tags_.size(); at_++) {
      const Tag& tag = tags_[at_];
      TemplateStatement s;
      if (tag.type == 't') {
        s.kind = TemplateStatement::TEXT;
        s.text = tag.text;
      } else if (tag.type == '{') {
        s.kind = TemplateStatement::OUTPUT;
        s.expression = whole(tag, 0);
      } else {
        const std::string word = first_word(tag);
        for (const char* end : closing) {
          if (word == end) {
            nesting_--;
            return word == "elif" || (tag.tokens.size() == 1 && !tag.bad);
          }
        }
        if (word == "generation" || word == "endgeneration")
          continue;  // marks text for training, prints nothing
        if (!(word == "if"    ? read_if(&s)
              : word == "for" ? read_for(&s)
              : word == "set" ? read_set(&s)
                              : false)) {
          return false;
        }
      }
      tree_.statements.push_back(std::move(s));
      out->push_back(static_cast<int>(tree_.statements.size()) - 1);
    }
    nesting_--;
    return closing.size() == 0;
  }

 private:
  static std::string first_word(const Tag& tag) {
    return tag.tokens.empty() || tag.tokens[0].kind != Token::NAME ? "" : tag.tokens[0].text;
  }

  int keep(const Tag& tag, ExpressionParser& parser, std::optional<int> value) {
    if (value && !tag.bad && parser.at_end()) return *value;
    tree_.expressions.emplace_back();  // BAD
    return static_cast<int>(tree_.expressions.size()) - 1;
  }
  int whole(const Tag& tag, size_t from) {
    ExpressionParser parser(tag.tokens, from, &tree_);
    const auto value = parser.tuple();
    return keep(tag, parser, value);
  }

  bool read_if(TemplateStatement* s) {
    s->kind = TemplateStatement::IF;
    for (bool otherwise = false;;) {
      const Tag& tag = tags_[at_];
      if (otherwise && (first_word(tag) == "elif" || first_word(tag) == "else")) return false;
      if (first_word(tag) == "else") otherwise = true;
      else s->conditions.push_back(whole(tag, 1));
      at_++;
      s->bodies.emplace_back();
      if (!body(&s->bodies.back(), {"elif", "else", "endif"})) return false;
      if (first_word(tags_[at_]) == "endif") return true;
    }
  }

  bool read_for(TemplateStatement* s) {
    const Tag& tag = tags_[at_];
    s->kind = TemplateStatement::FOR;
    ExpressionParser parser(tag.tokens, 1, &tree_);
    const auto name = parser.take_any_name();
    if (!name) return false;
    s->text = *name;
    if (parser.take_sign(",")) {
      // for key, value in ...: only over tools, which there are none of here
      if (!parser.take_any_name()) return false;
      s->kind = TemplateStatement::OTHER;
    }
    if (!parser.take_name("in")) return false;
    const auto list = parser.without_choice();
    if (list && parser.take_name("if")) s->condition = parser.expression().value_or(-2);
    s->expression = keep(tag, parser, s->condition == -2 ? std::nullopt : list);
    s->bodies.resize(2);
    at_++;
    if (!body(&s->bodies[0], {"else", "endfor"})) return false;
    if (first_word(tags_[at_]) == "endfor") return true;
    at_++;
    return body(&s->bodies[1], {"endfor"});
  }

  bool read_set(TemplateStatement* s) {
    const Tag& tag = tags_[at_];
    s->kind = TemplateStatement::SET;
    ExpressionParser parser(tag.tokens, 1, &tree_);
    const auto name = parser.take_any_name();
    if (!name) return false;
    s->text = *name;
    if (parser.take_sign(".")) {
      const auto attribute = parser.take_any_name();
      if (!attribute) return false;
      s->attribute = *attribute;
    }
    if (!parser.take_sign("=")) return false;  // {% set x %}...{% endset %}, {% set a, b = ... %}
    const auto value = parser.tuple();
    s->expression = keep(tag, parser, value);
    return true;
  }

  const std::vector<Tag>& tags_;
  TemplateTree& tree_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace

std::string_view strip_left(std::string_view text) {
  while (!text.empty()) {
    const size_t n = space_at(text, 0);
    if (n == 0) break;
    text.remove_prefix(n);
  }
  return text;
}

std::string_view strip_right(std::string_view text) {
  for (bool again = true; again;) {
    again = false;
    for (size_t n = 1; n <= 3 && n <= text.size(); n++) {
      if (space_at(text, text.size() - n) == n) {
        text.remove_suffix(n);
        again = true;
        break;
      }
    }
  }
  return text;
}

bool parse_template(std::string_view text, TemplateTree* tree) {
  if (text.size() > kMaxTemplateBytes || text.find('\0') != std::string_view::npos) return false;
  std::string source;
  source.reserve(text.size());
  for (size_t i = 0; i < text.size(); i++) {  // line breaks of all systems
    if (text[i] == '\r')
      i + 1 < text.size() && text[i + 1] == '\n' ? void() : source.push_back('\n');
    else source.push_back(text[i]);
  }
  if (source.ends_with('\n')) source.pop_back();
  std::vector<Tag> tags;
  return cut(source, &tags) && StatementParser(tags, tree).body(&tree->body, {});
}

}  // namespace riffle
