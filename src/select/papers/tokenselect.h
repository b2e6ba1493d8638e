// Parts of tokenselect, in a header for its tests: the vote, and the data kept for a sequence.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/agreed.h"
#include "select/selector.h"

namespace riffle {

// One vote of all query heads on the tokens [first, first + n) (TokenSelect 4.1; README.md).
// The object is kept from vote to vote, so that its memory is reused: 4 bytes for each candidate
// and query head. The votes have the same bits for any number of threads.
class Ballot {
 public:
  // rows: the KV heads of one layer. q.k is not divided by sqrt(d).
  // clang-format off
  //   SOFT    c_i = sum over heads of softmax_i(q.k_i) over the candidates; the votes sum to
  //           the number of heads
  //   LOGITS  c_i = sum over heads of q.k_i
  //   HARD    c_i = number of heads that have i among their own k best
  // clang-format on
  void vote(std::span<const Row> rows, int64_t first, int64_t n, VoteRule kind, int64_t k,
            ThreadPool& threads);
  std::span<const float> votes() const { return votes_; }
  // Writes the k tokens with the most votes, ascending; all tokens if there are at most k. With
  // equal votes the earlier token wins.
  void best(int64_t k, std::vector<int32_t>& tokens);

 private:
  float* logits(int64_t head) { return logits_.data() + head * n_; }

  int64_t first_ = 0, n_ = 0;
  std::vector<float> q_;       // [heads][d]
  std::vector<float> logits_;  // [heads][n]
  std::vector<float> votes_;   // [n]
  // [spans][heads]: the largest logit of a span, later the factor of its exponentials.
  std::vector<float> top_;
  std::vector<float> sum_;             // [spans][heads] of exp(logit - top)
  std::vector<uint64_t> keys_, last_;  // scratch; key of each head's k-th best token
  std::vector<uint32_t> histogram_;
};

// The last selection of one layer, and the list of the current step.
struct TokenSelection {
  bool valid = false;             // selected, query and window may be used again
  int64_t n_tokens = 0;           // length of the sequence when the selection was made
  int64_t window = 0;             // position at which the local part begins
  std::vector<int32_t> selected;  // ascending, all in [init_tokens, window)
  std::vector<float> query;       // [n_heads][d], the query that voted
  Selection settings{};           // settings in force at the vote

  bool everything = false, cached = false;
  int64_t scored = 0;         // keys of each head that were scored
  std::vector<int32_t> list;  // init + selected + local
};

struct TokenSelectState : SelectorState {
  std::vector<TokenSelection> layers;

  // The first step after a prompt always selects [P: Algorithm 1, flag f].
  void end_prompt(const PromptEnd& end) override;
  void truncate(int64_t n_tokens) override;
  void settle() override {
    for (TokenSelection& layer : layers) layer.valid = false;
  }
  uint64_t bytes() const override;
};

}  // namespace riffle
