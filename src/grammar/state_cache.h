// States of the deterministic automaton, made as texts need them and kept for all answers.
//
// A state is a set of places in the grammar: an operation that takes a byte, and a stack of frames.
// Stacks share their lower frames. If one place allows everything that another one allows, as with
// fewer rounds of the same loop, only the first is kept. So `([a-z]+ " "?){1,300}` has three
// states, however many ways there are to read a text.
//
// A state belongs to a horizon. Horizon 0 is exact. Horizon h is correct for texts no longer than
// the longest token of trie h - 1: limits that such texts cannot reach are left out. States that
// differ only in such limits are then one, and have one mask.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/token_tries.h"

namespace riffle::grammar {

using StateId = uint32_t;

// A set of nonzero numbers that is emptied often.
class Seen {
 public:
  void clear();
  bool add(uint64_t number);  // returns true if it is new

 private:
  std::vector<uint64_t> table_ = std::vector<uint64_t>(64, 0);
  std::vector<uint32_t> used_;
};

// Finds numbers by a hash. Many entries share one allocation.
class HashIndex {
 public:
  // Returns the first number added with this hash for which is_it(number) holds, else kNone.
  static constexpr uint32_t kNone = UINT32_MAX;
  template <class IsIt>
  uint32_t find(uint64_t hash, const IsIt& is_it) const {
    const size_t mask = table_.size() - 1;
    for (size_t at = hash & mask; table_[at].number != kNone; at = (at + 1) & mask)
      if (table_[at].hash == hash && is_it(table_[at].number)) return table_[at].number;
    return kNone;
  }
  void add(uint64_t hash, uint32_t number);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t number = kNone;
  };

 public:
  static constexpr size_t kBytes = 2 * sizeof(Entry);  // bytes per number if the table is half full

 private:
  std::vector<Entry> table_ = std::vector<Entry>(64);  // a power of two, at most half full
  size_t n_ = 0;
};

class StateCache {
 public:
  static constexpr StateId kDead = 0;  // no text continues or ends here
  // Texts that nest deeper are not allowed. Grammars of documents may need this much.
  static constexpr uint32_t kDeepest = 4096;
  // A state with more places is an error, and so is a mask or a token that takes more steps.
  static constexpr size_t kMostPlaces = 4096;
  static constexpr int64_t kMostWork = int64_t{1} << 22;

  StateCache(const Automaton& automaton, const TokenTries& tokens);

  StateId start(OpId op);
  // Throws RIFFLE_UNSUPPORTED where a bound is reached.
  StateId next(StateId state, uint8_t byte) {
    const uint32_t known = table_[state * n_classes_ + automaton_.class_of[byte]];
    return known != kUnknown ? known : make_next(state, automaton_.class_of[byte]);
  }
  bool complete(StateId state) const { return states_[state].complete; }
  // Tells whether any byte can follow.
  bool goes_on(StateId state) const { return states_[state].n > 0; }

  // Tokens of a trie that a state of any horizon allows: bits of mask_words() words.
  using Mask = std::vector<uint32_t>;
  // Returns the state for the horizon of a trie. It is the key of the mask.
  StateId blurred(StateId exact, size_t trie);
  const Mask* mask_of(StateId blurred) const;
  const Mask* keep_mask(StateId blurred, Mask mask);

  // Characters that a state accepts in any order, up to `most` of them in a row.
  struct Loops {
    TokenTrie::Ascii ascii;
    bool wide = false;   // all characters from U+0080
    uint8_t most = 0;    // kEver: any number
    bool stays = false;  // each of them leads back to the state
    bool ends = false;   // after `most` of these characters, none of them can follow
  };
  static constexpr uint8_t kEver = 255;
  const Loops& loops(StateId state);

  void begin_work() { work_ = kMostWork; }
  size_t bytes() const { return bytes_; }
  // Moves states to another cache with the same automaton.
  void move_to(StateCache& other, std::span<StateId> states) const;

 private:
  static constexpr uint32_t kUnknown = UINT32_MAX;
  static constexpr uint64_t kMany = UINT64_MAX;     // rounds: any number may follow, or none
  static constexpr uint64_t kFew = UINT64_MAX - 1;  // rounds: more must follow than fit the horizon

  using StackId = uint32_t;  // 0: empty
  struct Frame {
    OpId op;  // CALL, LOOP or PICK
    uint32_t depth;
    uint64_t value;  // LOOP: rounds finished; PICK: bits of members, and above them their number
    StackId parent;
    uint64_t shape;  // a hash of the operations of this frame and those below it
  };
  struct Place {
    OpId op;
    StackId stack;
    bool operator==(const Place&) const = default;
    bool operator<(const Place& o) const { return op != o.op ? op < o.op : stack < o.stack; }
  };
  struct State {
    uint32_t first, n;  // range of places_
    uint8_t horizon;
    bool complete;
    int32_t loops = -1;
  };

  StateId make_next(StateId state, uint8_t byte_class);
  StackId push(OpId op, uint64_t value, StackId parent, bool* too_deep);
  void reach(OpId op, StackId stack);  // adds a place to process
  void push_and_reach(OpId op, uint64_t value, StackId parent, OpId target);
  void close();  // follows the operations that take no byte
  void follow(const Op& op, OpId id, StackId stack);
  void pick(OpId id, StackId parent, uint64_t value);
  uint64_t rounds(const Op& loop, uint64_t finished) const;
  void drop_covered();
  bool drop_more_rounds(size_t begin, size_t end, size_t* kept);
  bool covers(StackId a, StackId b) const;
  StateId intern();
  StackId blurred_stack(StackId stack);
  bool all_wide_lead(StateId from, StateId to);
  bool all_end(StateId state, const Loops& characters);
  StateId likely_next(StateId state, TokenTrie::Ascii* ascii);

  const Automaton& automaton_;
  const TokenTries& tokens_;
  size_t n_classes_;
  std::vector<uint32_t> table_;  // [state][class]
  std::vector<State> states_;
  std::vector<Place> places_;
  std::vector<Frame> frames_;
  std::vector<Loops> loops_;
  HashIndex frame_index_, state_index_;
  std::unordered_map<StateId, Mask> masks_;
  std::vector<std::unordered_map<StateId, StateId>> blurred_states_;  // by trie
  std::vector<std::unordered_map<StackId, StackId>> blurred_stacks_;
  int64_t work_ = kMostWork;
  size_t bytes_ = 0;

  // The state that is being made.
  uint8_t horizon_ = 0;
  bool complete_ = false;
  std::vector<Place> open_, found_;
  Seen seen_;
  // Frames of loops whose body may be empty: old ones, of places before the byte, and new ones,
  // pushed since, which an empty round would pop.
  std::unordered_map<StackId, bool> old_frames_, new_frames_;
};

}  // namespace riffle::grammar
