// The transform of vectors before they become 2-bit codes, or digits that meet such codes.
#pragma once
#include "kernels/common/hadamard.h"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/select/int2.h"

namespace riffle::cuda {

// Transforms a vector as hadamard() does. Lane i of a warp has its dimensions i, i + 32, ...
template <int Steps>
__device__ inline void hadamard_warp(float (&x)[Steps], int d) {
  const int block = hadamard_block(d), lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 1; half < 32; half *= 2) {
    if (half >= block) break;
#pragma unroll
    for (int i = 0; i < Steps; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, x[i], half);
      x[i] = lane & half ? other - x[i] : x[i] + other;
    }
  }
#pragma unroll
  for (int half = 1; half < Steps; half *= 2) {
    if (32 * half >= block) break;
#pragma unroll
    for (int i = 0; i + half < Steps; ++i) {
      if (i & half) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  const float scale = hadamard_scale(block);
#pragma unroll
  for (int i = 0; i < Steps; ++i) x[i] *= scale;
}

}  // namespace riffle::cuda
