// Compiles expressions to operations.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "grammar/automaton.h"
#include "util/error.h"

namespace riffle::grammar {
namespace {

constexpr size_t kMostOps = size_t{8} << 20;

// Facts about expressions, found before compilation: which may be empty, and which have any text.
// Each fact that becomes known lowers a count at the parents, so that the time is linear in the
// size of the grammar.
class Facts {
 public:
  explicit Facts(const Expressions& e) : e_(e), seen_(e.size(), 0) {
    link_parents();
    for (const Fact fact : {NULLABLE, PRODUCTIVE}) {
      known_[fact].assign(e.size(), false);
      missing_.assign(e.size(), 0);
      for (ExprId id = 0; id < e.size(); ++id)
        if ((missing_[id] = needs(fact, id)) == 0) raise(fact, id);
      while (!raised_.empty()) {
        const ExprId id = raised_.back();
        raised_.pop_back();
        for (uint32_t i = first_parent_[id]; i < first_parent_[id + 1]; ++i) {
          const ExprId parent = parents_[i];
          if (e_[parent].kind == Expr::MEMBERS) {
            if (fact == PRODUCTIVE && has_members(e_.members(e_[parent]))) raise(fact, parent);
          } else if (--missing_[parent] == 0) {
            raise(fact, parent);
          }
        }
      }
    }
  }
  bool nullable(ExprId id) const { return known_[NULLABLE][id]; }
  bool productive(ExprId id) const { return known_[PRODUCTIVE][id]; }

  // Finds the rules with which an expression may begin, before any byte.
  void left_rules(ExprId id, std::vector<uint32_t>* out) {
    ++visit_;
    collect_left(id, out);
  }

 private:
  enum Fact { NULLABLE, PRODUCTIVE };

  template <class F>
  void for_children(ExprId id, F f) const {
    const Expr& x = e_[id];
    switch (x.kind) {
      case Expr::SEQUENCE:
      case Expr::CHOICE:
        for (const ExprId c : e_.children(x)) f(c);
        break;
      case Expr::REPEAT: f(x.first); break;
      case Expr::RULE: f(e_.rule_expr(x.first)); break;
      case Expr::MEMBERS:
        for (const ExprId c : e_.members(x).one) f(c);
        f(e_.members(x).extra);
        break;
      default: break;
    }
  }

  void link_parents() {
    first_parent_.assign(e_.size() + 1, 0);
    const auto n = static_cast<ExprId>(e_.size());
    for (ExprId id = 0; id < n; ++id) for_children(id, [&](ExprId c) { ++first_parent_[c + 1]; });
    for (ExprId id = 0; id < n; ++id) first_parent_[id + 1] += first_parent_[id];
    parents_.resize(first_parent_[n]);
    std::vector<uint32_t> next(first_parent_.begin(), first_parent_.end() - 1);
    for (ExprId id = 0; id < n; ++id) for_children(id, [&](ExprId c) { parents_[next[c]++] = id; });
  }

  // Returns the number of children that must have the fact; -1: it never holds, or not with the
  // facts known so far (MEMBERS).
  int64_t needs(Fact fact, ExprId id) const {
    const Expr& x = e_[id];
    switch (x.kind) {
      case Expr::NEVER: return -1;
      case Expr::WORDS: {
        const auto& words = e_.words(x);
        if (fact == PRODUCTIVE) return 0;
        return std::find(words.begin(), words.end(), "") != words.end() ? 0 : -1;
      }
      case Expr::CHARS:
      case Expr::UNTIL: return fact == PRODUCTIVE ? 0 : -1;
      case Expr::WITHOUT: return 0;
      case Expr::SEQUENCE: return x.n;
      case Expr::REPEAT: return x.min == 0 ? 0 : 1;
      case Expr::CHOICE:
      case Expr::RULE: return 1;
      case Expr::MEMBERS: {
        const Members& m = e_.members(x);
        if (fact == PRODUCTIVE) return has_members(m) ? 0 : -1;
        return m.required == 0 && m.min == 0 ? 0 : -1;
      }
    }
    return -1;
  }

  bool has_members(const Members& m) const {
    uint32_t n = 0;
    for (size_t i = 0; i < m.one.size(); ++i) {
      const bool one = known_[PRODUCTIVE][m.one[i]];
      if ((m.required >> i & 1) && !one) return false;
      n += one;
    }
    return n >= m.min || known_[PRODUCTIVE][m.extra];
  }

  void raise(Fact fact, ExprId id) {
    if (known_[fact][id]) return;
    known_[fact][id] = true;
    raised_.push_back(id);
  }

  void collect_left(ExprId id, std::vector<uint32_t>* out) {
    if (std::exchange(seen_[id], visit_) == visit_) return;
    const Expr& x = e_[id];
    if (x.kind == Expr::RULE) {
      out->push_back(x.first);
    } else if (x.kind == Expr::SEQUENCE) {
      for (const ExprId c : e_.children(x)) {
        collect_left(c, out);
        if (!nullable(c)) break;
      }
    } else {
      for_children(id, [&](ExprId c) { collect_left(c, out); });
    }
  }

  const Expressions& e_;
  std::vector<bool> known_[2];
  std::vector<int64_t> missing_;
  std::vector<uint32_t> first_parent_;
  std::vector<ExprId> parents_, raised_;
  std::vector<uint32_t> seen_;
  uint32_t visit_ = 0;
};

// Refuses a rule that can begin with itself: a matcher would call it endlessly.
void refuse_left_recursion(const Expressions& e, Facts& facts) {
  enum Mark : uint8_t { NEW, OPEN, DONE };
  std::vector<Mark> marks(e.n_rules(), NEW);
  struct Visit {
    uint32_t rule;
    std::vector<uint32_t> left;
    size_t next = 0;
  };
  std::vector<Visit> path;
  const auto enter = [&](uint32_t rule) {
    marks[rule] = OPEN;
    path.push_back({rule, {}});
    facts.left_rules(e.rule_expr(rule), &path.back().left);
  };
  for (uint32_t root = 0; root < e.n_rules(); ++root) {
    if (marks[root] == NEW) enter(root);
    while (!path.empty()) {
      Visit& v = path.back();
      if (v.next == v.left.size()) {
        marks[v.rule] = DONE;
        path.pop_back();
        continue;
      }
      const uint32_t rule = v.left[v.next++];
      if (marks[rule] == NEW) enter(rule);
      else if (marks[rule] == OPEN)
        fail(RIFFLE_BAD_ARGUMENT,
             "rule %.60s: found left recursion, since its text can begin with the rule itself; "
             "expected it to begin with something else; use * or +, or put the rule's name last",
             e.rule_name(rule).c_str());
    }
  }
}

// Refuses a grammar without texts. name: the first rule's name, as its reader gave it.
[[noreturn]] void refuse_empty(const std::string& name) {
  if (name == kSchemaRule)
    fail(RIFFLE_BAD_ARGUMENT,
         "the schema: found no finite JSON text that fits it, expected at least one; drop a "
         "condition that excludes the others, or a required member that needs the schema itself");
  if (name == kRegexRule)
    fail(RIFFLE_BAD_ARGUMENT,
         "the regular expression: found no text that matches it, expected at least one; give "
         "each class a character");
  fail(RIFFLE_BAD_ARGUMENT,
       "rule %.60s: found no text that fits it and ends, expected at least one; add an "
       "alternative without the rule itself",
       name.c_str());
}

class Compiler {
 public:
  explicit Compiler(const Expressions& e) : e_(e), facts_(e) {}

  Automaton compile(std::span<const uint32_t> entries, std::vector<OpId>* starts) {
    refuse_left_recursion(e_, facts_);
    return_ = add({});
    rule_ops_.assign(e_.n_rules(), 0);
    for (const uint32_t entry : entries) {
      if (!facts_.productive(e_.rule_expr(entry))) refuse_empty(e_.rule_name(entry));
      starts->push_back(rule_op(entry));
    }
    // Rules are compiled from a list, so that a chain of rules needs no deep stack.
    while (!open_.empty()) {
      const uint32_t rule = open_.back();
      open_.pop_back();
      const OpId body = expr(e_.rule_expr(rule), return_);
      a_.ops[rule_ops_[rule]].first = split_target(body);
    }
    find_classes();
    return std::move(a_);
  }

 private:
  OpId add(Op op) {
    if (a_.ops.size() >= kMostOps)
      fail(RIFFLE_UNSUPPORTED,
           "the grammar: found more than %zu operations, expected at most that many; use fewer "
           "alternatives or shorter texts",
           kMostOps);
    a_.ops.push_back(op);
    return static_cast<OpId>(a_.ops.size() - 1);
  }
  uint32_t split_target(OpId target) {
    a_.targets.push_back(target);
    return static_cast<uint32_t>(a_.targets.size() - 1);
  }
  OpId split(std::span<const OpId> targets) {
    if (targets.size() == 1) return targets[0];
    Op op;
    op.kind = Op::SPLIT;
    op.first = static_cast<uint32_t>(a_.targets.size());
    op.n = static_cast<uint32_t>(targets.size());
    a_.targets.insert(a_.targets.end(), targets.begin(), targets.end());
    return add(op);
  }
  OpId bytes(std::span<const Edge> edges) {
    Op op;
    op.kind = Op::BYTES;
    op.first = static_cast<uint32_t>(a_.edges.size());
    op.n = static_cast<uint32_t>(edges.size());
    a_.edges.insert(a_.edges.end(), edges.begin(), edges.end());
    return add(op);
  }
  OpId byte(uint8_t low, uint8_t high, OpId next) {
    const Edge edge{low, high, next};
    return bytes({&edge, 1});
  }

  // Returns the operation that begins a rule: a SPLIT of one target, which is filled in when the
  // rule is compiled.
  OpId rule_op(uint32_t rule) {
    if (rule_ops_[rule] == 0) {
      Op op;
      op.kind = Op::SPLIT;
      op.n = 1;
      rule_ops_[rule] = add(op);
      open_.push_back(rule);
    }
    return rule_ops_[rule];
  }

  // Returns the operations of an expression, followed by `next`. A parent leaves out children
  // without a text.
  OpId expr(ExprId id, OpId next) {
    const Expr& x = e_[id];
    switch (x.kind) {
      case Expr::NEVER: return byte(1, 0, next);
      case Expr::WORDS: return words(e_.words(x), next);
      case Expr::CHARS: return chars(e_.ranges(x), next);
      case Expr::SEQUENCE: {
        const auto children = e_.children(x);
        for (size_t i = children.size(); i-- > 0;) next = expr(children[i], next);
        return next;
      }
      case Expr::CHOICE: {
        std::vector<OpId> ways;
        for (const ExprId child : e_.children(x))
          if (facts_.productive(child)) ways.push_back(expr(child, next));
        return ways.empty() ? byte(1, 0, next) : split(ways);
      }
      case Expr::REPEAT: return repeat(x, next);
      case Expr::RULE: {
        Op op;
        op.kind = Op::CALL;
        op.target = rule_op(x.first);
        op.next = next;
        op.tail = next == return_;
        return add(op);
      }
      case Expr::MEMBERS: return members(e_.members(x), next);
      case Expr::UNTIL: return until(e_.words(x)[0], next);
      case Expr::WITHOUT: return without(e_.words(x)[0], next);
    }
    return next;
  }

  OpId repeat(const Expr& x, OpId next) {
    if (!facts_.productive(x.first)) return next;
    if (x.max == 1) {  // min is 0
      const OpId ways[] = {expr(x.first, next), next};
      return split(ways);
    }
    const bool nullable = facts_.nullable(x.first);
    if (x.max == kUnlimited && x.min <= 1) {
      Op op;
      op.kind = Op::SPLIT;
      const OpId again = add(op);
      const OpId body = expr(x.first, again);
      const OpId ways[] = {body, next};
      a_.ops[again].first = static_cast<uint32_t>(a_.targets.size());
      a_.ops[again].n = 2;
      a_.targets.insert(a_.targets.end(), ways, ways + 2);
      return x.min == 0 ? again : body;
    }
    Op loop;
    loop.kind = Op::LOOP;
    loop.nullable = nullable;
    loop.next = next;
    loop.min = nullable ? 0 : x.min;  // empty rounds make up the minimum
    loop.max = x.max;
    const OpId at = add(loop);
    Op again;
    again.kind = Op::AGAIN;
    again.target = at;
    const OpId end = add(again);
    const OpId body = expr(x.first, end);
    a_.ops[at].target = body;
    a_.has_loops = true;
    a_.has_nullable_loops |= nullable;
    return at;
  }

  OpId members(const Members& m, OpId next) {
    Op pick;
    pick.kind = Op::PICK;
    pick.next = next;
    pick.target = static_cast<uint32_t>(a_.members.size());
    const OpId at = add(pick);
    a_.members.emplace_back();
    const auto ending = [&](Op::Kind kind) {
      Op op;
      op.kind = kind;
      op.target = at;
      return add(op);
    };
    const OpId picked = ending(Op::PICKED), more = ending(Op::MORE);
    MemberOps ops;
    ops.required = m.required;
    ops.min = m.min;
    ops.max = m.max;
    ops.counts = m.min > 0 || m.max != kUnlimited;
    for (const ExprId one : m.one) ops.one.push_back(expr(one, picked));
    ops.has_extra = facts_.productive(m.extra);
    if (ops.has_extra) ops.extra = expr(m.extra, picked);
    ops.separator = expr(m.separator, more);
    // A member without a text can never be picked.
    for (size_t i = 0; i < m.one.size(); ++i)
      if (!facts_.productive(m.one[i])) ops.one[i] = 0;
    a_.members[a_.ops[at].target] = std::move(ops);
    return at;
  }

  static constexpr OpId kNoEdge = UINT32_MAX;

  // Builds the states of Knuth, Morris and Pratt. A state is the length of the longest prefix of
  // the text with which the input ends so far. end: the target of a byte that completes the text;
  // none: there is no such edge.
  std::vector<OpId> search(const std::string& text, std::optional<OpId> end) {
    const size_t n = text.size();
    std::vector<size_t> border(n + 1, 0);
    for (size_t i = 1, k = 0; i < n; ++i) {
      while (k > 0 && text[i] != text[k]) k = border[k];
      if (text[i] == text[k]) ++k;
      border[i + 1] = k;
    }
    std::vector<OpId> states(n);
    for (OpId& s : states) s = add({});
    for (size_t i = 0; i < n; ++i) {
      Edge edges[256];
      for (int b = 0; b < 256; ++b) {
        size_t k = i;
        while (k > 0 && static_cast<uint8_t>(text[k]) != b) k = border[k];
        if (static_cast<uint8_t>(text[k]) == b) ++k;
        edges[b] = {static_cast<uint8_t>(b), static_cast<uint8_t>(b),
                    k < n ? states[k] : end.value_or(kNoEdge)};
      }
      std::vector<Edge> joined;
      for (const Edge& e : edges) {
        if (e.target == kNoEdge) continue;
        if (!joined.empty() && joined.back().target == e.target && joined.back().high + 1 == e.low)
          joined.back().high = e.high;
        else joined.push_back(e);
      }
      Op op;
      op.kind = Op::BYTES;
      op.first = static_cast<uint32_t>(a_.edges.size());
      op.n = static_cast<uint32_t>(joined.size());
      a_.edges.insert(a_.edges.end(), joined.begin(), joined.end());
      a_.ops[states[i]] = op;
    }
    return states;
  }
  OpId until(const std::string& text, OpId next) { return search(text, next)[0]; }
  // The text may end in each state.
  OpId without(const std::string& text, OpId next) {
    const std::vector<OpId> states = search(text, std::nullopt);
    for (const OpId state : states) {
      const OpId bytes = add(a_.ops[state]);
      const OpId ways[] = {bytes, next};
      const OpId either = split(ways);
      a_.ops[state] = a_.ops[either];
    }
    return states[0];
  }

  OpId word(std::string_view text, OpId next) {
    for (size_t i = text.size(); i-- > 0;) {
      const auto b = static_cast<uint8_t>(text[i]);
      next = byte(b, b, next);
    }
    return next;
  }

  // Builds a trie, so that only one path at a time is open in a list of 100,000 words.
  OpId words(std::vector<std::string> all, OpId next) {
    if (all.size() == 1) return word(all[0], next);
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return trie(all, 0, next);
  }
  OpId trie(std::span<const std::string> words, size_t at, OpId next) {
    if (words.size() == 1) return word(std::string_view(words[0]).substr(at), next);
    const std::string &first = words.front(), &last = words.back();
    size_t same = at;
    while (same < first.size() && same < last.size() && first[same] == last[same]) ++same;
    const bool ends = first.size() == same;
    std::vector<Edge> edges;
    for (size_t i = ends ? 1 : 0, end; i < words.size(); i = end) {
      end = i;
      while (end < words.size() && words[end][same] == words[i][same]) ++end;
      const auto b = static_cast<uint8_t>(words[i][same]);
      edges.push_back({b, b, trie(words.subspan(i, end - i), same + 1, next)});
    }
    OpId op = bytes(edges);
    if (ends) {
      const OpId ways[] = {op, next};
      op = split(ways);
    }
    return word(std::string_view(first).substr(at, same - at), op);
  }

  // Builds characters as UTF-8. Ranges are cut where the number of bytes or a leading byte changes,
  // as in Ken Thompson's grep and RE2.
  OpId chars(std::span<const CodeRange> ranges, OpId next) {
    tails_.clear();
    std::vector<Edge> edges;
    for (const CodeRange& r : ranges) cut(r.low, r.high, next, &edges);
    return bytes(edges);
  }
  void cut(uint32_t low, uint32_t high, OpId next, std::vector<Edge>* out) {
    for (const uint32_t limit : {0x7fu, 0x7ffu, 0xffffu})
      if (low <= limit && limit < high) {
        cut(low, limit, next, out);
        cut(limit + 1, high, next, out);
        return;
      }
    if (high < 0x80) {
      out->push_back({static_cast<uint8_t>(low), static_cast<uint8_t>(high), next});
      return;
    }
    const int n = high < 0x800 ? 2 : high < 0x10000 ? 3 : 4;
    // Between the ends of a range, only whole blocks of continuation bytes may differ.
    for (int i = 1; i < n; ++i) {
      const uint32_t mask = (1u << (6 * i)) - 1;
      if ((low & ~mask) == (high & ~mask)) break;
      if ((low & mask) != 0) {
        cut(low, low | mask, next, out);
        cut((low | mask) + 1, high, next, out);
        return;
      }
      if ((high & mask) != mask) {
        cut(low, (high & ~mask) - 1, next, out);
        cut(high & ~mask, high, next, out);
        return;
      }
    }
    uint8_t from[4], to[4];
    encode(low, n, from);
    encode(high, n, to);
    OpId op = next;
    for (int i = n - 1; i > 0; --i) {
      OpId& tail = tails_[{from[i], to[i], op}];
      if (tail == 0) tail = byte(from[i], to[i], op);
      op = tail;
    }
    Edge edge{from[0], to[0], op};
    if (!out->empty() && out->back().target == op && out->back().high + 1 == edge.low)
      out->back().high = edge.high;
    else out->push_back(edge);
  }
  static void encode(uint32_t code, int n, uint8_t* out) {
    static constexpr uint8_t kLead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; --i, code >>= 6) out[i] = static_cast<uint8_t>(0x80 | (code & 0x3f));
    out[0] = static_cast<uint8_t>(kLead[n] | code);
  }

  void find_classes() {
    std::array<bool, 257> begins{};
    begins[0] = true;
    for (const Edge& e : a_.edges) {
      if (e.low > e.high) continue;
      begins[e.low] = true;
      begins[e.high + 1] = true;
    }
    for (int b = 0; b < 256; ++b) {
      if (begins[b]) a_.byte_of.push_back(static_cast<uint8_t>(b));
      a_.class_of[b] = static_cast<uint8_t>(a_.byte_of.size() - 1);
    }
  }

  const Expressions& e_;
  Facts facts_;
  Automaton a_;
  OpId return_ = 0;
  std::vector<OpId> rule_ops_;
  std::vector<uint32_t> open_;
  std::map<std::tuple<uint8_t, uint8_t, OpId>, OpId> tails_;
};

}  // namespace

Automaton compile(const Expressions& expressions, std::span<const uint32_t> entries,
                  std::vector<OpId>* starts) {
  return Compiler(expressions).compile(entries, starts);
}

}  // namespace riffle::grammar
