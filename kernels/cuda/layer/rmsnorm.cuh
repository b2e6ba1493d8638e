// The arithmetic of RMS normalisation, shared by rmsnorm.cu and the prologue of gemv.cu: x /
// sqrt(mean(x^2) + eps) * w. The order of the sum is fixed by kNormThreads: thread t takes the
// quadruples t, t + kNormThreads, ... of the row; then the lanes of a warp; then the warps in
// order.
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda {

inline constexpr int kNormThreads = 512, kNormWarps = kNormThreads / 32;

__device__ inline float add_squares(float sum, float4 v) {
  return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
}

// 1 / rms from the warps' sums of squares.
__device__ inline float norm_scale(const float* warp_sums, int64_t dim, float eps) {
  float sum = 0;
  for (int w = 0; w < kNormWarps; w++) sum += warp_sums[w];
  return 1.0f / sqrtf(__fadd_rn(sum / static_cast<float>(dim), eps));
}

}  // namespace riffle::cuda
