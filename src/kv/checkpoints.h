// The lengths after which a sequence keeps the states of its recurrent layers (checkpoints). Unlike
// keys and values, a state cannot be cut back: a sequence is cut to the nearest shorter length that
// has states, and the rest is read again.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace riffle {

struct Checkpoint {
  enum Kind : uint8_t {
    OTHER,  // any other length
    TURN,   // the end of a prompt, or a length at which the caller will cut or fork
    LEAD,   // shortly before the end of a prompt
  };
  int64_t n_tokens = 0;
  Kind kind = OTHER;
  bool keep = true;  // Checkpoints::choose
};

// The rule that chooses them. A sequence of n tokens keeps
// - the state at its end,
// - the newest kTurns turns,
// - the newest lead, since chat templates print the end of a prompt differently when its answer
//   follows,
// - the states after m tokens with m a multiple of g, where g is the largest power of two times
//   kApart that is at most max(kApart, n - m): the grid, whose gaps double with the distance n - m.
// So a cut to n - D tokens reads fewer than max(kApart, 2 D) tokens again. A state that the rule
// has dropped is never wanted again as the sequence grows. If there are more states than a limit,
// the rule drops the farthest of kind OTHER first, and then the oldest turns. Cuts to lengths
// before these read more again.
class Checkpoints {
 public:
  static constexpr int64_t kApart = 256;
  static constexpr int64_t kLead = 16;  // tokens of a lead before the end of its prompt
  static constexpr int kTurns = 4;
  // The limit is an eighth of the bytes of a full session's KV, but at least kFewest and at most
  // kMost states. The fewest are the end, the last turn, its lead, and one more.
  static constexpr int kFewest = 4, kMost = 16;
  // The limit of a batch's request: the end, two lengths where other requests begin to differ, and
  // three lengths of the grid, since later ones may begin to differ elsewhere.
  static constexpr int kOfRequest = 6;

  // Tells whether a sequence of n tokens wants the state after m, which is not a turn.
  static bool on_grid(int64_t m, int64_t n) {
    if (m <= 0 || m >= n || m % kApart != 0) return false;
    int64_t apart = kApart;
    while (2 * apart <= n - m) apart *= 2;
    return m % apart == 0;
  }
  // Returns the lengths between n0 and n that are on the grid of n, ascending.
  static std::vector<int64_t> grid(int64_t n0, int64_t n) {
    std::vector<int64_t> lengths;
    for (int64_t apart = kApart;; apart *= 2) {
      // Lengths at a distance from apart on and below 2 * apart; the nearest ones from 1 on.
      const int64_t nearest = apart == kApart ? 1 : apart;
      for (int64_t m = (n - nearest) / apart * apart; m > n - 2 * apart; m -= apart)
        if (m > n0) lengths.push_back(m);
      if (n - 2 * apart <= n0) break;
    }
    std::reverse(lengths.begin(), lengths.end());
    return lengths;
  }
  // Sets `keep` of the states of a sequence of n tokens, which are ascending and at most n. Never
  // allocates.
  template <class State>
  static void choose(std::vector<State>& states, int64_t n, int most) {
    int kept = 0, turns = 0;
    bool lead = false;  // the newest lead was seen
    for (size_t i = states.size(); i-- > 0;) {
      State& s = states[i];
      if (s.kind == Checkpoint::TURN && ++turns > kTurns) s.kind = Checkpoint::OTHER;
      if (s.kind == Checkpoint::LEAD && std::exchange(lead, true)) s.kind = Checkpoint::OTHER;
      s.keep = s.n_tokens == n || s.kind != Checkpoint::OTHER || on_grid(s.n_tokens, n);
      kept += s.keep;
    }
    for (const Checkpoint::Kind kind : {Checkpoint::OTHER, Checkpoint::TURN})
      for (State& s : states)
        if (kept > most && s.keep && s.n_tokens != n && s.kind == kind) s.keep = false, --kept;
  }
};

}  // namespace riffle
