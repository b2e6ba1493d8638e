// The rules of published papers' selectors, by which a decode step chooses what it attends to.
#pragma once
#include "kernels/cuda/select/select.h"

namespace riffle::cuda {

// Mirror HeadRule, StopRule and VoteRule (backend/cuda/papers pins the equality).
enum class Gqa : uint8_t { Mean = 0, SoftSum = 1, Union = 2 };
enum class Stop : uint8_t { Paper = 0, Last = 1, Bound = 2, Veto = 3 };
enum class VoteKind : uint8_t { Soft = 0, Logits = 1, Hard = 2 };

// psa: the test that ends a row's reading.
struct StopTest {
  Stop stop = Stop::Paper;
  double slack = 0;    // log((1 - epsilon) / epsilon)
  int microbatch = 0;  // blocks between two tests; 0: there is no test
};

// The order in which a row's candidates are read, and how far.
struct RankRule {
  DigestKind digest = DigestKind::CuboidMean;
  Gqa gqa = Gqa::Mean;
  bool codes = false;  // ranked by the masses that 2-bit keys give the blocks, not by digests
  double budget = 1;   // without a test: <= 1 a share of the tokens, > 1 a number of tokens
  StopTest test;

  RIFFLE_HOST_DEVICE bool progressive() const { return test.microbatch > 0; }
};

// twilight: of the blocks that the base chooses, the fewest tokens that hold this share of each
// head's weight, estimated by INT4 keys; then the union of the heads' tokens. A test of the base
// uses masses by INT4 keys, and is Paper or Last. A base without a test and with a budget of 1 is
// everything.
struct TopPRule {
  RankRule base;
  double top_p = 1;
};

// tokenselect: the tokens that all heads of a layer vote for, between the first and the last ones
// (select/papers/tokenselect.cpp).
struct VoteRule {
  int32_t select = 0, init = 0, local = 1;  // tokens
  VoteKind kind = VoteKind::Soft;
  float scale = 1, cache_threshold = 2;
};

// The last selection of a layer by vote; n_tokens 0: none. In memory the query that voted follows,
// f32 [n_heads * d], then for each block a mask of the tokens that are read in addition to those
// from `window` on, u64 [max_blocks].
struct VoteState {
  int32_t n_tokens, window;  // length of the sequence then; beginning of the local tokens
  int32_t select, init, local, kind;
  float scale;
  int32_t unused;
};
__host__ __device__ constexpr int64_t vote_bytes(int64_t n_query, int64_t max_blocks) {
  return static_cast<int64_t>(sizeof(VoteState)) + 4 * n_query + 8 * max_blocks;
}

}  // namespace riffle::cuda
