// Scores from INT4 keys on the integer tensor cores (compute capability 8.0 and later; before,
// dp4a).
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/select/int4.cuh"

namespace riffle::cuda {

// Dot products of the digits of 8 query heads (rows 0-7 of a: the upper digits, 8-15: the lower
// ones) with the codes of 8 tokens, 32 dimensions at a time. Dimensions lie in the order of the
// codes: lane i % 4 has those of one code word, the low nibbles first (k = 4 (i % 4) + {0..3}),
// then the high ones (k + 16), so a fragment of b is one word, masked.
__device__ inline void mma_16832(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                 uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Lane i has row i / 4 (and 8 below) of a, token i / 4 of b, and row i / 4 for tokens 2 (i % 4) +
  // {0, 1} of c.
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int row = lane / 4 * 4 + word;
    const auto high0 = static_cast<int>(__shfl_sync(kAllLanes, a[0], row)),
               low0 = static_cast<int>(__shfl_sync(kAllLanes, a[1], row));
    const auto high1 = static_cast<int>(__shfl_sync(kAllLanes, a[2], row)),
               low1 = static_cast<int>(__shfl_sync(kAllLanes, a[3], row));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = (2 * (lane % 4) + j) * 4 + word;
      const auto first = static_cast<int>(__shfl_sync(kAllLanes, b0, token)),
                 second = static_cast<int>(__shfl_sync(kAllLanes, b1, token));
      c[j] = __dp4a(high1, second, __dp4a(high0, first, c[j]));
      c[j + 2] = __dp4a(low1, second, __dp4a(low0, first, c[j + 2]));
    }
  }
#endif
}

// Queries as two signed 8-bit digits a dimension, four dimensions a word:
// [word][nibble][digit][head]. Steps: number of steps, of 32 dimensions each.
template <int Steps>
using QueryDigits = uint32_t[4 * Steps][2][2][kMaxGroup];

// Dimension i of a word's four.
__device__ inline void put_digits(int value, int i, uint32_t& high, uint32_t& low) {
  const int lower = static_cast<int8_t>(value & 0xff);
  low |= static_cast<uint32_t>(lower & 0xff) << (8 * i);
  high |= static_cast<uint32_t>(((value - lower) / 256) & 0xff) << (8 * i);
}

// Loads a lane's part of a query and of codes for mma_16832: h (or the token of 8) is lane / 4,
// part is lane % 4. digits: QueryDigits of that many
// steps or more. Steps: of 32 dimensions.
template <int Steps>
__device__ inline void load_digits(const uint32_t (*digits)[2][2][kMaxGroup], int part, int h,
                                   uint32_t (&q)[Steps][4]) {
#pragma unroll
  for (int step = 0; step < Steps; ++step)
#pragma unroll
    for (int i = 0; i < 4; ++i) q[step][i] = digits[4 * step + part][i / 2][i % 2][h];
}

// A tile is 8 tokens, a group two of them: of token h the words part + {0, 4, ...}, of tokens 2
// part + {0, 1} zeros and scales.
template <int Steps, int Tiles>
__device__ inline void load_codes(const std::byte* codes, int64_t group, int64_t group_bytes,
                                  int words, int part, int h, uint32_t (&code)[Tiles][Steps],
                                  __half2 (&zeros)[Tiles], __half2 (&scales)[Tiles]) {
  const std::byte* at = codes + group * group_bytes;
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    const std::byte* base = at + tile / 2 * group_bytes;
    const auto* word =
        reinterpret_cast<const uint32_t*>(base) + part * kInt4Tokens + h + tile % 2 * 8;
    const auto* pair = reinterpret_cast<const __half2*>(base + words * 64) + part + tile % 2 * 4;
#pragma unroll
    for (int step = 0; step < Steps; ++step)
      code[tile][step] = 4 * step + part < words ? __ldg(word + step * 4 * kInt4Tokens) : 0;
    zeros[tile] = __ldg(pair);
    scales[tile] = __ldg(pair + kInt4Tokens / 2);
  }
}

// Multiplies codes with a query's digits.
template <int Steps>
__device__ inline void mma_codes(int32_t (&c)[4], const uint32_t (&q)[Steps][4],
                                 const uint32_t (&code)[Steps]) {
#pragma unroll
  for (int step = 0; step < Steps; ++step)
    mma_16832(c, q[step], code[step] & 0x0f0f0f0f, code[step] >> 4 & 0x0f0f0f0f);
}

// Joins the two sums of mma_codes to one number. They must begin at kMagic: 1.5 * 2^23 + s has s in
// its low bits as a float. The result is rounded once, as is the conversion of 256 * high + low,
// which takes longer.
inline constexpr int32_t kMagic = 0x4b400000;
__device__ inline float joined_digits(int32_t high, int32_t low) {
  constexpr float kZero = 12582912;
  return __fadd_rn(__fmaf_rn(__int_as_float(high), 256, -256 * kZero),
                   __fadd_rn(__int_as_float(low), -kZero));
}

}  // namespace riffle::cuda
