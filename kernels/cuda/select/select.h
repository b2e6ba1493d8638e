// Choice of the blocks that a decode step attends to: the rules, and the digests and codes of keys
// by which blocks are chosen. attend/attend.h applies a rule; papers/rules.h has more of them.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// The blocks that a row always reads, and whether it selects others.
struct RowRule {
  bool everything = false;  // all that the query sees, in token order: no selection
  int window = 0;           // with everything: the query sees this many of the last tokens; 0: all
  int sink_blocks = 1, recent_blocks = 2;  // first and last full blocks that are always read
  // Rows of fewer tokens are read as `everything` reads them, with the same bits.
  int64_t everything_below = 0;
};

// share: reads the candidates that hold at least 2^log2_share of some head's weight, estimated by
// their 2-bit keys, and samples of the others. In rows of more than share_blocks blocks that share
// is multiplied by share_blocks / blocks.
struct ShareRule {
  float log2_share = 0;
  int share_blocks = 1 << 30;
};

// digest.cu: digests of full blocks, bit for bit those of kernels/cpu digest_build. Blocks lie at
// base + (h * n_blocks + b) * block_bytes for h < n_kv_heads. Blocks first <= b < last are read,
// and their digests written to digests + (h * max_blocks + b) * stride (f16 values) and
// bound_factor[h * max_blocks + b].
Status build_digests(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                     int n_kv_heads, const KvLayout& layout, DigestKind kind, bool with_mean,
                     uint16_t* digests, int64_t stride, float* bound_factor, int64_t max_blocks,
                     cudaStream_t stream);

// int4.cu: INT4 keys of blocks that lie as for build_digests, bit for bit those of kernels/cpu
// int4_encode; written to codes + (h * max_blocks + b) * int4_block_bytes
// (kernels/cuda/select/int4.cuh).
Status encode_int4(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream);

// int2.cu: 2-bit keys of these blocks, to codes + (h * max_blocks + b) * int2_block_bytes
// (kernels/cuda/select/int2.h).
Status encode_int2(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, std::byte* codes, int64_t max_blocks,
                   cudaStream_t stream);

// Codes of keys that are kept of a sequence.
enum class KeyCodes : uint8_t { None, Int2, Int4 };
inline Status encode_keys(KeyCodes kind, const std::byte* base, int64_t n_blocks, int64_t first,
                          int64_t last, int n_kv_heads, const KvLayout& layout, std::byte* codes,
                          int64_t max_blocks, cudaStream_t stream) {
  const auto encode = kind == KeyCodes::Int2 ? encode_int2 : encode_int4;
  return kind == KeyCodes::None
             ? cudaErrorInvalidValue
             : encode(base, n_blocks, first, last, n_kv_heads, layout, codes, max_blocks, stream);
}

}  // namespace riffle::cuda
