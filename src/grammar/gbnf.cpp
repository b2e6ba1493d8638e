#include "grammar/gbnf.h"

#include <string>
#include <unordered_map>

#include "grammar/reader.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

constexpr int kDeepest = 200;  // parentheses in parentheses
constexpr size_t kLongestName = 256;

class Gbnf {
 public:
  Gbnf(std::string_view text, Expressions* out) : r_(text), e_(*out) {}

  uint32_t read() {
    for (skip_space(true); !r_.at_end(); skip_space(true)) read_rule();
    for (const auto& [name, rule] : rules_)
      if (!rule.defined && (!missing_ || rule.first_use < missing_->first_use)) {
        missing_ = &rule;
        missing_name_ = name;
      }
    if (missing_)
      r_.fail_at(missing_->first_use, "found rule " + missing_name_ +
                                          ", which is not defined; expected a line " +
                                          missing_name_ + " ::= ...");
    const auto root = rules_.find("root");
    if (root == rules_.end())
      fail(RIFFLE_BAD_ARGUMENT, "the grammar: found no rule root, expected a line root ::= ...");
    return root->second.id;
  }

 private:
  struct Rule {
    uint32_t id;
    bool defined = false;
    size_t first_use = 0;
  };

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }

  // Skips blanks and comments; with `lines` also line breaks.
  void skip_space(bool lines) {
    for (;;) {
      const char c = r_.peek();
      if (c == '#') {
        while (!r_.at_end() && r_.peek() != '\n' && r_.peek() != '\r') r_.code_point();
      } else if (!r_.at_end() && (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))) {
        r_.code_point();
      } else {
        return;
      }
    }
  }

  std::string read_name() {
    const size_t begin = r_.position();
    while (in_name(r_.peek())) r_.code_point();
    const std::string name(r_.from(begin));
    if (name.empty()) r_.expected("the name of a rule");
    if (name.size() > kLongestName)
      r_.fail_at(begin,
                 format("found a name of more than %zu characters, expected at most that many",
                        kLongestName));
    return name;
  }

  Rule& rule_named(const std::string& name, size_t at) {
    const auto it = rules_.find(name);
    if (it != rules_.end()) return it->second;
    return rules_.emplace(name, Rule{e_.declare(name), false, at}).first->second;
  }

  void read_rule() {
    const size_t begin = r_.position();
    const std::string name = read_name();
    skip_space(false);
    if (!r_.skip("::=")) r_.expected("::= after the name of a rule");
    skip_space(true);
    Rule& rule = rule_named(name, begin);
    if (rule.defined)
      r_.fail_at(begin, "found rule " + name +
                            ", which is defined twice, expected one line; join both with |");
    rule.defined = true;
    const uint32_t id = rule.id;
    e_.define(id, read_choice(0));
    if (!r_.at_end() && r_.peek() != '\n' && r_.peek() != '\r')
      r_.expected("a literal, a class, a rule's name, ( or the end of the line");
  }

  // Reads alternatives. depth: nesting of parentheses, in which line breaks are allowed.
  ExprId read_choice(int depth) {
    std::vector<ExprId> ways{read_sequence(depth)};
    while (r_.skip("|")) {
      skip_space(true);
      ways.push_back(read_sequence(depth));
    }
    return e_.choice(std::move(ways));
  }

  ExprId read_sequence(int depth) {
    std::vector<ExprId> parts;
    for (;;) {
      const char c = r_.peek();
      ExprId part;
      if (c == '"') part = read_literal();
      else if (c == '[') part = read_class();
      else if (r_.skip(".")) part = e_.chars({{0, kLastCode}});
      else if (c == '(') part = read_group(depth);
      else if (in_name(c)) part = read_reference();
      else if (c == '<' || (c == '!' && r_.peek(1) == '<'))
        r_.expected("no token: <...> is not supported; write the token's text");
      else break;
      skip_space(depth > 0);
      parts.push_back(read_repeats(part, depth));
    }
    return e_.sequence(std::move(parts));
  }

  ExprId read_reference() {
    const size_t begin = r_.position();
    const std::string name = read_name();
    return e_.rule(rule_named(name, begin).id);
  }

  ExprId read_group(int depth) {
    if (depth == kDeepest)
      r_.fail_at(
          r_.position(),
          format("found parentheses nested deeper than %d levels, expected at most that many; "
                 "use more rules",
                 kDeepest));
    const size_t begin = r_.position();
    r_.skip("(");
    skip_space(true);
    const ExprId inside = read_choice(depth + 1);
    if (!r_.skip(")")) {
      if (r_.at_end()) r_.fail_at(begin, "found ( without its ), expected ) before the end");
      r_.expected("a literal, a class, a rule's name, ( or )");
    }
    return inside;
  }

  ExprId read_repeats(ExprId part, int depth) {
    for (int n = 0;; ++n) {
      const size_t at = r_.position();
      uint32_t min = 0, max = kUnlimited;
      if (r_.skip("*")) {
      } else if (r_.skip("+")) {
        min = 1;
      } else if (r_.skip("?")) {
        max = 1;
      } else if (r_.skip("{")) {
        read_limits(at, &min, &max);
      } else {
        return part;
      }
      if (n == kDeepest)
        r_.fail_at(at, format("found more than %d of *, +, ? and {} in a row, expected at "
                              "most that many; use one {m,n}",
                              kDeepest));
      part = e_.repeat(part, min, max);
      skip_space(depth > 0);
    }
  }

  void read_limits(size_t begin, uint32_t* min, uint32_t* max) {
    skip_space(true);
    *min = *max = r_.number();
    skip_space(true);
    if (r_.skip(",")) {
      skip_space(true);
      *max = r_.peek() == '}' ? kUnlimited : r_.number();
      skip_space(true);
    }
    if (!r_.skip("}")) r_.expected("} after the limits of a repetition");
    if (*max < *min)
      r_.fail_at(begin, format("found {%u,%u}, expected the smaller limit first", *min, *max));
  }

  // Reads a character of a literal or class, escaped or not.
  uint32_t read_char() {
    if (r_.at_end() || r_.peek() == '\n' || r_.peek() == '\r')
      r_.expected("a character or the end of the literal or class (a line break is \\n)");
    const size_t begin = r_.position();
    if (!r_.skip("\\")) return r_.code_point();
    uint32_t code;
    switch (r_.peek()) {
      case 'n': r_.skip("n"); return '\n';
      case 'r': r_.skip("r"); return '\r';
      case 't': r_.skip("t"); return '\t';
      case 'x': r_.skip("x"); return r_.hex(2);
      case 'u': r_.skip("u"), code = r_.hex(4); break;
      case 'U': r_.skip("U"), code = r_.hex(8); break;
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^': return r_.code_point();
      default: r_.expected("n, r, t, x, u, U, \\, \", [, ], - or ^ after \\");
    }
    if (code > kLastCode || (code >= 0xd800 && code <= 0xdfff))
      r_.fail_at(begin, format("found U+%04X, expected a character", code));
    return code;
  }

  ExprId read_literal() {
    r_.skip("\"");
    std::string text;
    while (!r_.skip("\"")) append_utf8(read_char(), &text);
    return e_.text(text);
  }

  ExprId read_class() {
    const size_t begin = r_.position();
    r_.skip("[");
    const bool negated = r_.skip("^");
    std::vector<CodeRange> ranges;
    while (!r_.skip("]")) {
      const size_t at = r_.position();
      const uint32_t low = read_char();
      uint32_t high = low;
      if (r_.peek() == '-' && r_.peek(1) != ']') {
        r_.skip("-");
        high = read_char();
      }
      if (high < low)
        r_.fail_at(at,
                   "found a range that ends before it begins, expected the "
                   "smaller character first");
      ranges.push_back({low, high});
    }
    if (ranges.empty() && !negated) r_.fail_at(begin, "found an empty class, expected a character");
    ranges = normal_ranges(std::move(ranges));
    return e_.chars(negated ? inverted_ranges(ranges) : std::move(ranges));
  }

  Reader r_;
  Expressions& e_;
  std::unordered_map<std::string, Rule> rules_;
  const Rule* missing_ = nullptr;
  std::string missing_name_;
};

}  // namespace

uint32_t read_gbnf(std::string_view text, Expressions* out) { return Gbnf(text, out).read(); }

}  // namespace riffle::grammar
