#include "grammar/ordered_members.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace riffle::grammar {
namespace {

// Tries of keys. Each trie shares its common parts with the one before. If it were a choice of keys
// instead of a trie, a state would have a place for each member that may come next, and a mask
// would take that many steps for each node of the vocabulary's trie.
class KeyTries {
 public:
  explicit KeyTries(Expressions* out) : e_(*out) {}

  // Return a trie of one key, and a trie with one more key. No key begins another one, since each
  // ends with a quotation mark. behind: the text after the key. The key's bytes must outlive this
  // object.
  size_t of(std::string_view key, ExprId behind) { return node({edge(key, kLeaf, behind)}); }
  size_t with(size_t trie, std::string_view key, ExprId behind) {
    struct Step {
      size_t node, edge, bytes;  // bytes: the edge's bytes that the key shares
    };
    std::vector<Step> path;
    size_t at = trie, made;
    for (;;) {
      const std::vector<Edge>& edges = nodes_[at].edges;
      const auto found = std::find_if(edges.begin(), edges.end(),
                                      [&](const Edge& e) { return e.bytes[0] == key[0]; });
      if (found == edges.end()) {
        std::vector<Edge> more = edges;
        more.push_back(edge(key, kLeaf, behind));
        made = node(std::move(more));
        break;
      }
      const Edge old = *found;
      const auto same = static_cast<size_t>(
          std::mismatch(old.bytes.begin(), old.bytes.end(), key.begin(), key.end()).first -
          old.bytes.begin());
      path.push_back({at, static_cast<size_t>(found - edges.begin()), same});
      key.remove_prefix(same);
      if (same < old.bytes.size()) {
        made = node({edge(old.bytes.substr(same), old.node, old.behind), edge(key, kLeaf, behind)});
        break;
      }
      at = old.node;
    }
    for (; !path.empty(); path.pop_back()) {
      const Step step = path.back();
      std::vector<Edge> edges = nodes_[step.node].edges;
      edges[step.edge] = edge(edges[step.edge].bytes.substr(0, step.bytes), made, expr(made));
      made = node(std::move(edges));
    }
    return made;
  }
  ExprId expr(size_t trie) { return e_.rule(nodes_[trie].rule); }

 private:
  static constexpr size_t kLeaf = SIZE_MAX;
  struct Edge {
    std::string_view bytes;  // a part of a member's key
    size_t node;             // node after the bytes; kLeaf: the key ends with them
    ExprId behind, expr;     // the text after the bytes; the bytes with that text
  };
  struct Node {
    std::vector<Edge> edges;
    uint32_t rule;
  };

  // An edge is a rule of its own, so that tries that share it have one copy of its operations.
  Edge edge(std::string_view bytes, size_t node, ExprId behind) {
    const uint32_t rule = e_.add_rule("members", e_.sequence({e_.text(bytes), behind}));
    return {bytes, node, behind, e_.rule(rule)};
  }
  size_t node(std::vector<Edge> edges) {
    std::vector<ExprId> ways;
    for (const Edge& e : edges) ways.push_back(e.expr);
    const uint32_t rule = e_.add_rule("members", e_.choice(std::move(ways)));
    nodes_.push_back({std::move(edges), rule});
    return nodes_.size() - 1;
  }

  Expressions& e_;
  std::vector<Node> nodes_;
};

}  // namespace

// Goes from the last member to the first, with a rule for the text after each, and a trie of the
// members that may come next, up to the first required one.
ExprId ordered_members(const std::vector<OrderedMember>& members, ExprId extra, ExprId separator,
                       Expressions* out) {
  Expressions& e = *out;
  KeyTries tries(out);
  const ExprId others = e.repeat(e.sequence({separator, extra}), 0, kUnlimited);
  const ExprId extras = e.sequence({extra, others});
  ExprId later = others, next = extras;
  size_t trie = 0;
  bool may_end = true;  // true if no member from here on is required
  for (size_t i = members.size(); i-- > 0;) {
    const OrderedMember& m = members[i];
    const ExprId behind = e.rule(e.add_rule("members", e.sequence({m.value, later})));
    trie = m.required || i + 1 == members.size() ? tries.of(m.key, behind)
                                                 : tries.with(trie, m.key, behind);
    may_end = may_end && !m.required;
    next = may_end ? e.choice({tries.expr(trie), extras}) : tries.expr(trie);
    const ExprId one_more = e.sequence({separator, next});
    later = e.rule(e.add_rule("members", may_end ? e.optional(one_more) : one_more));
  }
  return may_end ? e.optional(next) : next;
}

}  // namespace riffle::grammar
