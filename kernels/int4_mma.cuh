// Scores from INT4 keys on the integer tensor cores (compute capability 8.0 and later; before, dp4a).
#pragma once
#include "kernels/decode.cuh"
#include "kernels/int4.cuh"

namespace riffle::cuda {

// Dot products of the digits of 8 query heads (rows 0-7 of a: the upper digits, 8-15: the lower ones) with the codes of 8
// tokens, 32 dimensions at a time. Dimensions lie in the order of the codes: lane i % 4 has those of one code word, the low
// nibbles first (k = 4 (i % 4) + {0..3}), then the high ones (k + 16), so a fragment of b is one word, masked.
__device__ inline void mma_16832(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Lane i has row i / 4 (and 8 below) of a, token i / 4 of b, and row i / 4 for tokens 2 (i % 4) + {0, 1} of c.
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int row = lane / 4 * 4 + word;
    const auto high0 = static_cast<int>(__shfl_sync(kAllLanes, a[0], row)), low0 = static_cast<int>(__shfl_sync(kAllLanes, a[1], row));
    const auto high1 = static_cast<int>(__shfl_sync(kAllLanes, a[2], row)), low1 = static_cast<int>(__shfl_sync(kAllLanes, a[3], row));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = (2 * (lane % 4) + j) * 4 + word;
      const auto first = static_cast<int>(__shfl_sync(kAllLanes, b0, token)), second = static_cast<int>(__shfl_sync(kAllLanes, b1, token));
      c[j] = __dp4a(high1, second, __dp4a(high0, first, c[j]));
      c[j + 2] = __dp4a(low1, second, __dp4a(low0, first, c[j + 2]));
    }
  }
#endif
}

}  // namespace riffle::cuda
