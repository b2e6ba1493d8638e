#include "grammar/expression.h"

#include <algorithm>

#include "util/error.h"

namespace riffle::grammar {

static constexpr uint32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

std::vector<CodeRange> normal_ranges(std::vector<CodeRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& a, const CodeRange& b) { return a.low < b.low; });
  std::vector<CodeRange> joined, out;
  for (const CodeRange& r : ranges) {
    if (!joined.empty() && r.low <= joined.back().high + 1)
      joined.back().high = std::max(joined.back().high, r.high);
    else joined.push_back(r);
  }
  for (const CodeRange& r : joined) {
    if (r.high < kFirstSurrogate || r.low > kLastSurrogate) {
      out.push_back(r);
      continue;
    }
    if (r.low < kFirstSurrogate) out.push_back({r.low, kFirstSurrogate - 1});
    if (r.high > kLastSurrogate) out.push_back({kLastSurrogate + 1, r.high});
  }
  return out;
}

std::vector<CodeRange> common_ranges(std::span<const CodeRange> a, std::span<const CodeRange> b) {
  std::vector<CodeRange> out;
  for (const CodeRange& x : a)
    for (const CodeRange& y : b)
      if (std::max(x.low, y.low) <= std::min(x.high, y.high))
        out.push_back({std::max(x.low, y.low), std::min(x.high, y.high)});
  return out;
}

std::vector<CodeRange> inverted_ranges(std::span<const CodeRange> ranges) {
  std::vector<CodeRange> out;
  uint32_t next = 0;
  for (const CodeRange& r : ranges) {
    if (r.low > next) out.push_back({next, r.low - 1});
    next = r.high + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return normal_ranges(std::move(out));
}

Expressions::Expressions() {
  exprs_.push_back({});
  words_.push_back({""});
  exprs_.push_back({Expr::WORDS, 0});
}

void Expressions::count(size_t bytes) {
  if ((bytes_ += bytes) > kMostBytes || exprs_.size() > kMostExprs)
    fail(RIFFLE_UNSUPPORTED,
         "the grammar: found more than %zu MB of expressions, expected at most that much",
         kMostBytes >> 20);
}

ExprId Expressions::add(Expr e) {
  count(sizeof e);
  exprs_.push_back(e);
  return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId Expressions::add(Expr::Kind kind, std::span<const ExprId> children) {
  count(children.size() * sizeof(ExprId));
  const auto first = static_cast<uint32_t>(children_.size());
  children_.insert(children_.end(), children.begin(), children.end());
  return add({kind, first, static_cast<uint32_t>(children.size())});
}

ExprId Expressions::text(std::string_view text) {
  return text.empty() ? kEmpty : words({std::string(text)});
}

ExprId Expressions::words(std::vector<std::string> texts) {
  if (texts.empty()) return kNever;
  for (const std::string& t : texts) count(sizeof t + t.size());
  words_.push_back(std::move(texts));
  return add({Expr::WORDS, static_cast<uint32_t>(words_.size() - 1)});
}

ExprId Expressions::chars(std::vector<CodeRange> ranges) {
  ranges = normal_ranges(std::move(ranges));
  if (ranges.empty()) return kNever;
  count(ranges.size() * sizeof(CodeRange));
  const auto first = static_cast<uint32_t>(ranges_.size());
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  return add({Expr::CHARS, first, static_cast<uint32_t>(ranges.size())});
}

ExprId Expressions::sequence(std::vector<ExprId> children) {
  std::erase(children, kEmpty);
  if (children.empty()) return kEmpty;
  if (std::find(children.begin(), children.end(), kNever) != children.end()) return kNever;
  return children.size() == 1 ? children[0] : add(Expr::SEQUENCE, children);
}

ExprId Expressions::choice(std::vector<ExprId> children) {
  std::erase(children, kNever);
  // Lists of words are joined into one, which is compiled to a trie.
  std::vector<ExprId> others;
  std::vector<std::string> all;
  size_t n_lists = 0;
  for (const ExprId child : children)
    if (exprs_[child].kind == Expr::WORDS) ++n_lists;
  if (n_lists > 1) {
    for (const ExprId child : children) {
      if (exprs_[child].kind != Expr::WORDS) {
        others.push_back(child);
        continue;
      }
      const std::vector<std::string>& list = words_[exprs_[child].first];
      all.insert(all.end(), list.begin(), list.end());
    }
    others.push_back(words(std::move(all)));
    children.swap(others);
  }
  if (children.empty()) return kNever;
  return children.size() == 1 ? children[0] : add(Expr::CHOICE, children);
}

ExprId Expressions::repeat(ExprId child, uint32_t min, uint32_t max) {
  if (min > max) return kNever;
  if (max == 0 || child == kEmpty || (child == kNever && min == 0)) return kEmpty;
  if (child == kNever) return kNever;
  if (min == 1 && max == 1) return child;
  return add({Expr::REPEAT, child, 1, min, max});
}

ExprId Expressions::members(Members members) {
  count(members.one.size() * sizeof(ExprId) + sizeof members);
  members_.push_back(std::move(members));
  return add({Expr::MEMBERS, static_cast<uint32_t>(members_.size() - 1)});
}

ExprId Expressions::until(std::string_view text) {
  count(text.size());
  words_.push_back({std::string(text)});
  return add({Expr::UNTIL, static_cast<uint32_t>(words_.size() - 1)});
}

ExprId Expressions::without(std::string_view text) {
  const ExprId id = until(text);
  exprs_[id].kind = Expr::WITHOUT;
  return id;
}

uint32_t Expressions::declare(std::string name) {
  count(sizeof(Rule) + name.size());
  rules_.push_back({std::move(name), kNever});
  return static_cast<uint32_t>(rules_.size() - 1);
}

uint32_t Expressions::add_rule(std::string name, ExprId expr) {
  const uint32_t rule = declare(std::move(name));
  define(rule, expr);
  return rule;
}

}  // namespace riffle::grammar
