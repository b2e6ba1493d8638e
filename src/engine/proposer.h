// Speculation: tokens that are likely to follow are computed ahead, as rows of one step. If the
// answer then draws them, they need no step of their own. The text has the same bits.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace riffle {

// Guesses how the text of one answer continues.
class Proposer {
 public:
  virtual ~Proposer() = default;
  // Appends at most `most` tokens to out, which are likely to follow `next`. held: the sequence's
  // tokens, which `next` follows. Between two calls held only grows.
  virtual void propose(std::span<const int32_t> held, int32_t next, int64_t most,
                       std::vector<int32_t>& out) = 0;
};

// most_ahead: number of tokens that a step may compute ahead (Engine::lookup). Returns null if it
// is 0.
std::unique_ptr<Proposer> make_proposer(int most_ahead);

}  // namespace riffle
