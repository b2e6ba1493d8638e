// A compiled grammar, and the state of one answer in it.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/state_cache.h"
#include "grammar/token_tries.h"
#include "util/options.h"

namespace riffle {
class Tokenizer;
}

namespace riffle::grammar {

// Tags that a model writes around its reasoning. A tag of plain text is a part of the automaton,
// since its end may be inside a token. A tag of control tokens is recognised by their ids.
struct ReasoningTokens {
  std::string begin, end;                   // as text; "": none, or control tokens
  std::vector<int32_t> begin_ids, end_ids;  // if they are control tokens
  std::vector<int32_t> end_tail;            // end_ids from the last but one control token on
  size_t prompted = 0;  // first tokens of end_tail with which every message's prompt ends
};

// Text that may precede the text of a grammar.
struct Before {
  bool space = false;  // up to kMostSpace bytes of white space
  ReasoningRule reasoning = ReasoningRule::NONE;
};
inline constexpr uint32_t kMostSpace = 8;

class Grammar {
 public:
  static constexpr size_t kCacheBytes = size_t{64} << 20;
  // expressions contain the rule `root`. A cache that exceeds cache_bytes is replaced. Throws as
  // compile(), and RIFFLE_UNSUPPORTED if the beginning is too ambiguous.
  Grammar(Expressions expressions, uint32_t root, std::shared_ptr<const TokenTries> tokens,
          ReasoningTokens reasoning, size_t cache_bytes = kCacheBytes);
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  const TokenTries& tokens() const { return *tokens_; }
  const ReasoningTokens& reasoning() const { return reasoning_; }

 private:
  friend class Matcher;
  // Entries of starts_.
  enum Entry { PLAIN, SPACE, REASONING, MAYBE_REASONING, SPACE_MAYBE_REASONING, WHITE, N_ENTRIES };

  std::shared_ptr<StateCache> new_cache() const;

  std::shared_ptr<const TokenTries> tokens_;
  ReasoningTokens reasoning_;
  Automaton automaton_;
  std::vector<OpId> starts_;
  size_t cache_bytes_;
  // All answers share one cache, which grows. A cache that has grown too large is replaced; answers
  // move their states to the new one at their next call.
  mutable std::mutex lock_;
  mutable std::shared_ptr<StateCache> cache_;
};

// The position of one answer in a grammar. Copies are independent.
class Matcher {
 public:
  Matcher(std::shared_ptr<const Grammar> grammar, Before before);
  // Returns a matcher for white space alone, as in Before::space.
  static Matcher white(std::shared_ptr<const Grammar> grammar);

  // Takes a token's text. Returns false if the grammar does not allow it; after that, no text is
  // allowed. Throws as StateCache::next.
  bool accept(std::string_view text);
  bool complete() const;
  // Returns true if no byte may follow and no end token is allowed. end_tokens: as in `allowed`.
  bool over(bool end_tokens) const;
  // Sets the bits of tokens that the grammar allows next, and clears all others. end_tokens: also
  // those of the end tokens, if the text is complete. Returns whether any bit is set.
  bool allowed(bool end_tokens, std::span<uint32_t> mask);
  const Grammar& grammar() const { return *grammar_; }

 private:
  struct Walk;

  Matcher(Grammar::Entry entry, std::shared_ptr<const Grammar> grammar);
  static Grammar::Entry entry_of(const ReasoningTokens& marks, Before before);
  void enter();
  void renew(std::span<StateId> also);
  StateCache::Mask walk(StateId from, size_t trie);

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<StateCache> cache_;
  StateId state_;
};

}  // namespace riffle::grammar

// The handle of riffle.h.
struct riffle_grammar {
  std::shared_ptr<const riffle::grammar::Grammar> grammar;
  const riffle::Tokenizer* tokenizer = nullptr;  // the tokenizer for which masks are made
  // The text that answers continue; the grammar allows it (riffle_grammar_continue).
  std::string begun;
};
