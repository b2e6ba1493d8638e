// RMS normalisation of a row by a block of kNormThreads.
#pragma once
#include "kernels/cuda/layer/rmsnorm.cuh"

namespace riffle::cuda {

// kVector: dim is a multiple of 4, so that every row is 16-byte aligned.
template <bool kVector>
__device__ __forceinline__ float4 load4(const float* x, int64_t c, int64_t dim) {
  if constexpr (kVector) {
    return *reinterpret_cast<const float4*>(x + c);
  } else {
    float v[4];
    for (int j = 0; j < 4; j++) v[j] = c + j < dim ? x[c + j] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
  }
}

// store(c, values): values c to c + 3 of the normalised row. Those from dim on do not exist.
template <bool kVector, class Store>
__device__ __forceinline__ void norm_row(const float* x, const float* weight, int64_t dim,
                                         float eps, Store&& store) {
  __shared__ float sums[kNormWarps];
  float squares = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4)
    squares = add_squares(squares, load4<kVector>(x, c, dim));
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  const float scale = norm_scale(sums, dim, eps);
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4) {
    const float4 v = load4<kVector>(x, c, dim), w = load4<kVector>(weight, c, dim);
    const float values[4] = {v.x * w.x * scale, v.y * w.y * scale, v.z * w.z * scale,
                             v.w * w.w * scale};
    store(c, values);
  }
}

}  // namespace riffle::cuda
