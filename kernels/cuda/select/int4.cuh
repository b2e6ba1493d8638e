// The form of INT4 keys, see kernels/cpu/select/select.h: groups of 16 tokens, [words][16 tokens][4
// bytes], then 16 zeros and 16 scales in f16.
#pragma once
#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {

inline constexpr int kInt4Tokens = 16;
__host__ __device__ constexpr int int4_words(int d) { return (d + 7) / 8; }
__host__ __device__ constexpr int64_t int4_group_bytes(int d) {
  return int64_t(int4_words(d)) * 64 + 64;
}
__host__ __device__ constexpr int64_t int4_block_bytes(int block_size, int d) {
  return block_size / kInt4Tokens * int4_group_bytes(d);
}

}  // namespace riffle::cuda
