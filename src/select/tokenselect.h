// What tokenselect is made of, for its tests: the vote, and what it keeps of a sequence.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "select/selector.h"

namespace riffle {

// One vote of all query heads on the tokens [first, first + n) (TokenSelect 4.1; algorithms.md 5).
// Kept from vote to vote for its memory, 4 bytes a candidate and query head. The same bits for any
// number of threads.
class Ballot {
 public:
  // rows: the KV heads of one layer. scale multiplies q.k, which is not divided by sqrt(d).
  //   SOFT    c_i = sum over heads of softmax_i(scale q.k_i), over the candidates alone; they sum
  //   to the number of heads LOGITS  c_i = sum over heads of scale q.k_i HARD    c_i = heads that
  //   have i among their own k best
  void vote(std::span<const Row> rows, int64_t first, int64_t n, riffle_vote kind, float scale,
            int64_t k, ThreadPool& threads);
  std::span<const float> votes() const { return votes_; }
  // The k tokens with the most votes, ties to the earlier one, ascending; all if there are no more.
  void best(int64_t k, std::vector<int32_t>& tokens);

 private:
  float* logits(int64_t head) { return logits_.data() + head * n_; }

  int64_t first_ = 0, n_ = 0;
  std::vector<float> q_;       // [heads][d]
  std::vector<float> logits_;  // [heads][n]
  std::vector<float> votes_;   // [n]
  std::vector<float>
      top_;  // [spans][heads] largest logit of a span, then what its exponentials are multiplied by
  std::vector<float> sum_;             // [spans][heads] of exp(logit - top)
  std::vector<uint64_t> keys_, last_;  // scratch; of each head the k-th best
  std::vector<uint32_t> histogram_;
};

// The last selection of one layer, and the list of the step under way.
struct TokenSelection {
  bool valid = false;             // selected, query and window can be used again
  int64_t n_tokens = 0;           // of the sequence when it was made
  int64_t window = 0;             // where the local part begins
  std::vector<int32_t> selected;  // ascending, all in [init_tokens, window)
  std::vector<float> query;       // [n_heads][d] that voted
  riffle_selection settings{};    // in force then

  bool everything = false, cached = false;
  int64_t scored = 0;         // keys of each head that were looked at
  std::vector<int32_t> list;  // init + selected + local
};

struct TokenSelectState : SelectorState {
  std::vector<TokenSelection> layers;

  void end_prompt(const PromptEnd& end)
      override;  // the first step after a prompt always selects [P: Algorithm 1, flag f]
  void truncate(int64_t n_tokens) override;
  uint64_t bytes() const override;
};

// An earlier selection is used for at most so many further tokens: that is how far the list grows
// while the window's edge is frozen (our choice).
inline constexpr int64_t kMaxReuse = 64;

}  // namespace riffle
