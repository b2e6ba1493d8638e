#include "grammar/grammar.h"

#include <algorithm>
#include <array>

#include "util/error.h"

namespace riffle::grammar {

// Smaller subtrees are walked instead of being tested as a whole.
static constexpr uint32_t kFewTokens = 2;

Grammar::Grammar(Expressions e, uint32_t root, std::shared_ptr<const TokenTries> tokens,
                 ReasoningTokens reasoning, size_t cache_bytes)
    : tokens_(std::move(tokens)), reasoning_(std::move(reasoning)), cache_bytes_(cache_bytes) {
  const ExprId text = e.rule(root);
  const ExprId space =
      e.repeat(e.chars({{' ', ' '}, {'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}}), 0, kMostSpace);
  std::vector<uint32_t> entries(N_ENTRIES);
  entries[PLAIN] = root;
  entries[SPACE] = e.add_rule("root", e.sequence({space, text}));
  entries[WHITE] = e.add_rule("root", space);
  entries[REASONING] = entries[SPACE_MAYBE_REASONING] = entries[SPACE];
  entries[MAYBE_REASONING] = entries[PLAIN];
  if (!reasoning_.end.empty()) {
    const ExprId reasoned = e.sequence({e.until(reasoning_.end), space, text});
    entries[REASONING] = e.add_rule("root", reasoned);
    if (!reasoning_.begin.empty()) {
      const ExprId begun = e.sequence({e.text(reasoning_.begin), e.rule(entries[REASONING])});
      const ExprId either = e.choice({begun, text});
      entries[MAYBE_REASONING] = e.add_rule("root", either);
      entries[SPACE_MAYBE_REASONING] = e.add_rule("root", e.sequence({space, either}));
    }
  }
  automaton_ = compile(e, entries, &starts_);
  cache_ = new_cache();
  for (const OpId start : starts_) cache_->start(start);
}

std::shared_ptr<StateCache> Grammar::new_cache() const {
  return std::make_shared<StateCache>(automaton_, *tokens_);
}

Matcher::Matcher(Grammar::Entry entry, std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)) {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  cache_ = grammar_->cache_;
  state_ = cache_->start(grammar_->starts_[entry]);
}

Grammar::Entry Matcher::entry_of(const ReasoningTokens& marks, Before before) {
  const auto with_space = [&](Grammar::Entry spaced, Grammar::Entry plain) {
    return before.space ? spaced : plain;
  };
  if (!marks.end.empty() && before.reasoning == ReasoningRule::BEGUN) return Grammar::REASONING;
  if (!marks.end.empty() && before.reasoning == ReasoningRule::ALLOWED)
    return with_space(Grammar::SPACE_MAYBE_REASONING, Grammar::MAYBE_REASONING);
  return with_space(Grammar::SPACE, Grammar::PLAIN);
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, Before before)
    : Matcher(entry_of(grammar->reasoning(), before), grammar) {}

Matcher Matcher::white(std::shared_ptr<const Grammar> grammar) {
  return Matcher(Grammar::WHITE, std::move(grammar));
}

// Called before the cache is used. Requires: the grammar's lock is held.
void Matcher::enter() {
  if (cache_ != grammar_->cache_) {
    cache_->move_to(*grammar_->cache_, {&state_, 1});
    cache_ = grammar_->cache_;
  }
  if (cache_->bytes() > grammar_->cache_bytes_) renew({});
  cache_->begin_work();
}

// Starts a new cache with the answer's state and, in `also`, those of an unfinished walk.
void Matcher::renew(std::span<StateId> also) {
  std::shared_ptr<StateCache> fresh = grammar_->new_cache();
  cache_->move_to(*fresh, {&state_, 1});
  cache_->move_to(*fresh, also);
  grammar_->cache_ = cache_ = std::move(fresh);
}

bool Matcher::accept(std::string_view text) {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  enter();
  StateId state = state_;
  for (const char c : text) state = cache_->next(state, static_cast<uint8_t>(c));
  state_ = state;
  return state_ != StateCache::kDead;
}

bool Matcher::complete() const {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  return cache_->complete(state_);
}

bool Matcher::over(bool end_tokens) const {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  const bool may_end =
      end_tokens && cache_->complete(state_) && !grammar_->tokens_->end_tokens().empty();
  return !cache_->goes_on(state_) && !may_end;
}

// Finds the tokens of a trie that a state allows.
struct Matcher::Walk {
  Matcher& matcher;
  const TokenTrie& trie;
  StateCache::Mask mask;
  std::vector<StateId> states;  // by depth, along the path to a node
  // The state of the last loop that stay() followed, and for each byte whether it leads back to
  // that state.
  StateId loop = StateCache::kDead;
  std::array<bool, 256> leads_back{};

  Walk(Matcher& m, const TokenTrie& t, StateId from)
      : matcher(m),
        trie(t),
        mask(m.grammar_->tokens_->mask_words(), 0),
        states(t.longest + 1, StateCache::kDead) {
    states[0] = from;
  }

  void allow(uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const auto token = static_cast<uint32_t>(trie.order[i]);
      mask[token / 32] |= uint32_t{1} << (token % 32);
    }
  }
  // Allows those of the tokens [begin, end), in the order of the trie, that have at most `most`
  // characters.
  void allow_short(uint32_t begin, uint32_t end, int most) {
    for (uint32_t i = begin; i < end; ++i) {
      const auto token = static_cast<uint32_t>(trie.order[i]);
      mask[token / 32] |= uint32_t{trie.characters[i] <= most} << (token % 32);
    }
  }

  // Walks the nodes [i, end), which are whole subtrees. Requires: the states above them are known.
  void nodes(uint32_t i, uint32_t end) {
    while (i < end) {
      const TokenTrie::Node& node = trie.nodes[i];
      const StateId state = matcher.cache_->next(states[node.depth - 1], node.byte);
      if (state == StateCache::kDead) {
        i = node.end;
        continue;
      }
      states[node.depth] = state;
      if (trie.first_token(node.end) - node.first_token >= kFewTokens && node.characters &&
          characters(i)) {
        i = node.end;
        continue;
      }
      allow(node.first_token, trie.first_token(i + 1));
      ++i;
      if (matcher.cache_->bytes() > matcher.grammar_->cache_bytes_) {
        matcher.renew({states.data(), size_t{node.depth} + 1u});
        loop = StateCache::kDead;
      }
    }
  }

  // Allows tokens in the subtree of node i if counting characters decides it. Returns whether it
  // does.
  bool characters(uint32_t i) {
    const TokenTrie::Node& node = trie.nodes[i];
    // A character of several bytes counts from the state before it.
    const int half = node.byte >= 0x80 && TokenTrie::begins(node.byte) ? 1 : 0;
    const StateCache::Loops loops = matcher.cache_->loops(states[node.depth - half]);
    const bool all = loops.most >= node.height + half;
    if ((all || loops.ends) && trie.ascii[i].within(loops.ascii) &&
        (loops.wide || (!trie.wide[i] && !half))) {
      const uint32_t last = trie.first_token(node.end);
      if (all) allow(node.first_token, last);
      else allow_short(node.first_token, last, trie.begun[i] - half + loops.most);
      return true;
    }
    if (!loops.stays || half) return false;
    stay(i, loops);
    return true;
  }

  // Walks the subtree of a node whose state most characters do not change. Follows only the other
  // characters.
  void stay(uint32_t i, const StateCache::Loops& loops) {
    const TokenTrie::Node& node = trie.nodes[i];
    uint32_t first = node.first_token;
    for (uint32_t at = i + 1; at < node.end;) {
      if (loop != states[node.depth]) {
        loop = states[node.depth];
        for (int b = 0; b < 256; ++b)
          leads_back[b] = b < 0x80 ? loops.ascii.has(static_cast<uint8_t>(b)) : loops.wide;
      }
      while (at < node.end && leads_back[trie.nodes[at].byte]) ++at;
      allow(first, trie.first_token(at));
      if (at == node.end) return;
      const TokenTrie::Node& other = trie.nodes[at];
      std::fill(states.begin() + node.depth + 1, states.begin() + other.depth, loop);
      nodes(at, other.end);
      at = other.end;
      first = trie.first_token(at);
    }
  }
};

StateCache::Mask Matcher::walk(StateId from, size_t which) {
  const TokenTrie& trie = grammar_->tokens_->tries()[which];
  Walk walk(*this, trie, from);
  walk.nodes(0, static_cast<uint32_t>(trie.nodes.size()));
  return std::move(walk.mask);
}

bool Matcher::allowed(bool end_tokens, std::span<uint32_t> mask) {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  enter();
  std::fill(mask.begin(), mask.end(), 0);
  for (size_t trie = 0; trie < grammar_->tokens_->tries().size(); ++trie) {
    if (grammar_->tokens_->tries()[trie].order.empty()) continue;
    StateId blurred = cache_->blurred(state_, trie);
    const StateCache::Mask* known = cache_->mask_of(blurred);
    if (!known) {
      StateCache::Mask made = walk(blurred, trie);
      blurred = cache_->blurred(state_, trie);  // the cache may have been replaced
      known = cache_->keep_mask(blurred, std::move(made));
    }
    for (size_t i = 0; i < known->size(); ++i) mask[i] |= (*known)[i];
  }
  if (end_tokens && cache_->complete(state_))
    for (const int32_t id : grammar_->tokens_->end_tokens())
      mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
  return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
}

}  // namespace riffle::grammar
