// A grammar as expressions: the output of the readers (GBNF, regular expressions, JSON Schema) and
// the input of the compiler.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace riffle::grammar {

struct CodeRange {
  uint32_t low, high;  // code points, both included
};
inline constexpr uint32_t kLastCode = 0x10ffff;
// Returns the ranges in order, without overlaps, neighbours or surrogates.
std::vector<CodeRange> normal_ranges(std::vector<CodeRange> ranges);
// Returns the characters that are in both.
std::vector<CodeRange> common_ranges(std::span<const CodeRange> a, std::span<const CodeRange> b);
// Returns all characters that are in none of the ranges. Requires: the ranges are normal.
std::vector<CodeRange> inverted_ranges(std::span<const CodeRange> ranges);

inline constexpr uint32_t kUnlimited = UINT32_MAX;

using ExprId = uint32_t;

// The members of an object in any order, each at most once, with a separator between two of them.
struct Members {
  static constexpr size_t kMost = 48;  // limit of `one`: a stack frame keeps the set in 48 bits
  std::vector<ExprId> one;             // the members: each a key with its value
  uint64_t required = 0;               // bits of `one`
  ExprId extra = 0;                    // other members, any number of them; 0: none
  ExprId separator = 0;
  uint32_t min = 0, max = kUnlimited;  // number of members; max: below 65535, or kUnlimited
};

struct Expr {
  enum Kind : uint8_t {
    NEVER,     // no text
    WORDS,     // one of the texts words(first)
    CHARS,     // one character of ranges [first, first + n)
    SEQUENCE,  // children [first, first + n), one after the other
    CHOICE,    // one of the children
    REPEAT,    // the child `first`, min to max times
    RULE,      // the rule `first`
    MEMBERS,   // members(first)
    UNTIL,     // any bytes up to the end of the first occurrence of words(first)[0]
    WITHOUT,   // any bytes in which words(first)[0] does not occur
  };
  Kind kind = NEVER;
  uint32_t first = 0, n = 0, min = 0, max = 0;
};

class Expressions {
 public:
  static constexpr ExprId kNever = 0, kEmpty = 1;
  // Larger grammars are an error (RIFFLE_UNSUPPORTED), so that every step after reading is bounded.
  static constexpr size_t kMostExprs = size_t{4} << 20, kMostBytes = size_t{64} << 20;

  Expressions();

  ExprId text(std::string_view text);
  ExprId words(std::vector<std::string> texts);  // none: kNever
  ExprId chars(std::vector<CodeRange> ranges);   // none: kNever
  ExprId sequence(std::vector<ExprId> children);
  ExprId choice(std::vector<ExprId> children);
  ExprId repeat(ExprId child, uint32_t min, uint32_t max);
  ExprId optional(ExprId child) { return repeat(child, 0, 1); }
  ExprId members(Members members);
  ExprId until(std::string_view text);    // not empty
  ExprId without(std::string_view text);  // not empty

  uint32_t declare(std::string name);  // a rule, to be defined later
  void define(uint32_t rule, ExprId expr) { rules_[rule].expr = expr; }
  ExprId rule(uint32_t rule) { return add({Expr::RULE, rule}); }
  uint32_t add_rule(std::string name, ExprId expr);

  const Expr& operator[](ExprId id) const { return exprs_[id]; }
  size_t size() const { return exprs_.size(); }
  std::span<const ExprId> children(const Expr& e) const {
    return std::span(children_).subspan(e.first, e.n);
  }
  std::span<const CodeRange> ranges(const Expr& e) const {
    return std::span(ranges_).subspan(e.first, e.n);
  }
  const std::vector<std::string>& words(const Expr& e) const { return words_[e.first]; }
  const Members& members(const Expr& e) const { return members_[e.first]; }
  size_t n_rules() const { return rules_.size(); }
  const std::string& rule_name(uint32_t rule) const { return rules_[rule].name; }
  ExprId rule_expr(uint32_t rule) const { return rules_[rule].expr; }

 private:
  ExprId add(Expr e);
  ExprId add(Expr::Kind kind, std::span<const ExprId> children);
  void count(size_t bytes);

  struct Rule {
    std::string name;
    ExprId expr = kNever;
  };
  std::vector<Expr> exprs_;
  std::vector<ExprId> children_;
  std::vector<CodeRange> ranges_;
  std::vector<std::vector<std::string>> words_;
  std::vector<Members> members_;
  std::vector<Rule> rules_;
  size_t bytes_ = 0;
};

}  // namespace riffle::grammar
