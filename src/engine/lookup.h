// Lookup speculation (prompt lookup): text that an answer quotes is already in its prompt. If the
// last tokens occurred before, the tokens that followed them there are proposed. The method follows
// Saxena, "Prompt Lookup Decoding" (2023), and LLMA (arXiv 2304.04487).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "engine/proposer.h"

namespace riffle {

// Finds where the last tokens of a sequence occurred before.
class Lookup : public Proposer {
 public:
  void propose(std::span<const int32_t> held, int32_t next, int64_t most,
               std::vector<int32_t>& out) override;

 private:
  // The longest and the shortest run of tokens that is looked up. A single token occurs in too many
  // places to predict the next one.
  static constexpr int kLongest = 4, kShortest = 2, kRuns = kLongest - kShortest + 1;

  void index(std::span<const int32_t> held);
  uint32_t& place(int run, std::span<const int32_t> tokens);

  // [kRuns][2^bits_]: by a hash of the tokens, 1 + the place of the last token of a run, the latest
  // of those with this hash; 0: none. A run that another one has overwritten is not found.
  std::vector<uint32_t> places_;
  int bits_ = 0;
  size_t indexed_ = 0;  // runs that end before this are in places_
};

}  // namespace riffle
