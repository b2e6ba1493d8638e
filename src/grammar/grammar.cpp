#include "grammar/grammar.h"

#include <algorithm>

#include "util/error.h"

namespace riffle::grammar {

// A subtree of fewer tokens is walked rather than tested as a whole.
static constexpr uint32_t kFewTokens = 4;

Grammar::Grammar(Expressions e, uint32_t root, std::shared_ptr<const TokenTries> tokens,
                 ReasoningTokens reasoning, size_t cache_bytes)
    : tokens_(std::move(tokens)), reasoning_(std::move(reasoning)), cache_bytes_(cache_bytes) {
  const ExprId text = e.rule(root);
  const ExprId space =
      e.repeat(e.chars({{' ', ' '}, {'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}}), 0, kMostSpace);
  std::vector<uint32_t> entries(N_ENTRIES);
  entries[PLAIN] = root;
  entries[SPACE] = e.add_rule("root", e.sequence({space, text}));
  entries[REASONING] = entries[MAYBE_REASONING] = entries[SPACE];
  if (!reasoning_.end.empty()) {
    const ExprId reasoned = e.sequence({e.until(reasoning_.end), space, text});
    entries[REASONING] = e.add_rule("root", reasoned);
    if (!reasoning_.begin.empty()) {
      const ExprId begun = e.sequence({e.text(reasoning_.begin), e.rule(entries[REASONING])});
      entries[MAYBE_REASONING] = e.add_rule("root", e.sequence({space, e.choice({begun, text})}));
    }
  }
  automaton_ = compile(e, entries, &starts_);
  cache_ = new_cache();
  for (const OpId start : starts_) cache_->start(start);
}

std::shared_ptr<StateCache> Grammar::new_cache() const {
  return std::make_shared<StateCache>(automaton_, *tokens_);
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, Before before)
    : grammar_(std::move(grammar)) {
  const std::lock_guard<std::mutex> lock(grammar_->lock_);
  const auto entry = before.reasoning == RIFFLE_REASONING_BEGUN     ? Grammar::REASONING
                     : before.reasoning == RIFFLE_REASONING_ALLOWED ? Grammar::MAYBE_REASONING
                     : before.space                                 ? Grammar::SPACE
                                                                    : Grammar::PLAIN;
  const bool marks = !grammar_->reasoning_.end.empty();
  cache_ = grammar_->cache_;
  state_ =
      cache_->start(grammar_->starts_[marks || before.reasoning == RIFFLE_REASONING_NONE ? entry
                                      : before.space ? Grammar::SPACE
                                                     : Grammar::PLAIN]);
}

// The grammar's lock is held. Before anything is asked of the cache.
void Matcher::enter() {
  if (cache_ != grammar_->cache_) {
    cache_->move_to(*grammar_->cache_, {&state_, 1});
    cache_ = grammar_->cache_;
  }
  if (cache_->bytes() > grammar_->cache_bytes_) renew({});
  cache_->begin_work();
}

// Begins another cache, with the answer's state and those of a walk that is under way.
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

StateCache::Mask Matcher::walk(StateId from, size_t which) {
  const TokenTrie& trie = grammar_->tokens_->tries()[which];
  StateCache::Mask mask(grammar_->tokens_->mask_words(), 0);
  const auto allow = [&](uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; ++i) {
      const auto token = static_cast<uint32_t>(trie.order[i]);
      mask[token / 32] |= uint32_t{1} << (token % 32);
    }
  };
  std::vector<StateId> states(trie.longest + 1, StateCache::kDead);
  states[0] = from;
  const auto n = static_cast<uint32_t>(trie.nodes.size());
  for (uint32_t i = 0; i < n;) {
    const TokenTrie::Node& node = trie.nodes[i];
    const StateId state = cache_->next(states[node.depth - 1], node.byte);
    if (state == StateCache::kDead) {
      i = node.end;
      continue;
    }
    states[node.depth] = state;
    const uint32_t first = node.first_token, last = trie.first_token(node.end);
    if (last - first >= kFewTokens && node.characters) {
      const StateCache::Loops& loops = cache_->loops(state);
      if (loops.most >= node.height && trie.ascii[i].within(loops.ascii) &&
          (loops.wide || !trie.wide[i])) {
        allow(first, last);
        i = node.end;
        continue;
      }
    }
    allow(first, trie.first_token(i + 1));
    ++i;
    if (cache_->bytes() > grammar_->cache_bytes_) renew({states.data(), size_t{node.depth} + 1u});
  }
  return mask;
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
      blurred = cache_->blurred(state_, trie);  // the cache may be another one by now
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
