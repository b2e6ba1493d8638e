// Which blocks a decode step attends to: the rules, and the digests, INT4 keys and mean values by
// which blocks are ranked. attend_decode (attend/attend.h) applies a rule.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// The last selection of a layer by vote; n_tokens 0: none. Then follow the query that voted, f32
// [n_heads * d], and of each block the tokens that are read beside those from `window` on, u64
// [max_blocks].
struct VoteState {
  int32_t n_tokens, window;  // of the sequence then; where the local tokens begin
  int32_t select, init, local, kind;
  float scale;
  int32_t unused;
};
__host__ __device__ constexpr int64_t vote_bytes(int64_t n_query, int64_t max_blocks) {
  return static_cast<int64_t>(sizeof(VoteState)) + 4 * n_query + 8 * max_blocks;
}

// tokenselect: the tokens that all heads of a layer vote for, the first and the last ones
// (select/papers/tokenselect.cpp).
struct VoteRule {
  int32_t select = 0, init = 0, local = 1;  // tokens; select 0: no vote
  VoteKind kind = VoteKind::Soft;
  float scale = 1, cache_threshold = 2;
};

struct Ranked {
  bool everything = false;  // dense: no ranking at all
  int window = 0;  // with everything: so many of the last tokens are what the query sees; 0: all
  int sink_blocks = 1, recent_blocks = 2;
  bool progressive = false;  // psa: test after each microbatch; else one shot (topk)
  double budget = 0;  // one shot: <= 1 a share of the tokens, > 1 tokens; as select/papers/topk.cpp
                      // computes blocks
  DigestKind digest = DigestKind::CuboidMean;
  Gqa gqa = Gqa::Mean;
  bool rank_codes = false;  // ranked by the masses that INT4 keys give the blocks, not by digests
  Stop stop = Stop::Paper;
  double slack = 0;  // log((1 - epsilon) / epsilon)
  int microbatch = 16;
  // share: no ranking; one shot reads the candidates that hold 2^log2_share of some head's weight,
  // by their INT4 keys; in rows of more than share_blocks blocks share_blocks / blocks of that.
  bool by_share = false;
  float log2_share = 0;
  int share_blocks = 1 << 30;
  // With by_share: rows of fewer tokens are read as `everything` reads them, with the same bits.
  int64_t everything_below = 0;
  // twilight: > 0: of the blocks that the words above choose (a progressive test looks at masses by
  // INT4 keys; Paper or Last) the fewest tokens that hold this share of each head's weight, as
  // INT4 keys tell; the union of the heads'.
  double top_p = 0;
  VoteRule vote;  // instead of all of the above, if it selects any (sink_blocks and recent_blocks
                  // are 0, budget is 1)
};

// digest.cu: digests of full blocks, the twin of kernels/cpu digest_build bit for bit. Blocks lie
// at base + (h * n_blocks + b) * block_bytes for h < n_kv_heads; those with first <= b < last are
// read, and written to digests + (h * max_blocks + b) * stride (f16 values) and bound_factor[h *
// max_blocks + b].
Status build_digests(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                     int n_kv_heads, const KvLayout& layout, DigestKind kind, bool with_mean,
                     uint16_t* digests, int64_t stride, float* bound_factor, int64_t max_blocks,
                     cudaStream_t stream);

// int4.cu: INT4 keys of blocks that lie as for build_digests, the twin of kernels/cpu int4_encode
// bit for bit; written to codes + (h * max_blocks + b) * int4_block_bytes
// (kernels/cuda/select/int4.cuh).
Status encode_int4(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream);

// value_means.cu: the mean value of each of these blocks, f16, to means + (h * max_blocks + b) * d.
Status mean_values(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, uint16_t* means, int64_t max_blocks,
                   cudaStream_t stream);

}  // namespace riffle::cuda
