// RMS normalisation of a row by a block of kNormThreads, of its values or of their distances from
// the row's mean (Ba et al., arXiv 1607.06450).
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

// Returns the mean of a row, in all threads.
template <bool kVector>
__device__ __forceinline__ float row_mean(const float* x, int64_t dim) {
  __shared__ float sums[kNormWarps];
  float sum = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4) {
    const float4 v = load4<kVector>(x, c, dim);
    sum += (v.x + v.y) + (v.z + v.w);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float all = 0;
  for (int w = 0; w < kNormWarps; w++) all += sums[w];
  return all / static_cast<float>(dim);
}

// store(c, values): values c to c + 3 of the normalised row. Those from dim on do not exist.
// kCentred: the row's mean is subtracted first.
template <bool kVector, bool kCentred = false, class Store>
__device__ __forceinline__ void norm_row(const float* x, const float* weight, int64_t dim,
                                         float eps, Store&& store) {
  __shared__ float sums[kNormWarps];
  float mean = 0;
  if constexpr (kCentred) mean = row_mean<kVector>(x, dim);
  const auto load = [&](int64_t c) {
    float4 v = load4<kVector>(x, c, dim);
    if constexpr (kCentred) {
      v.x -= mean;
      if (kVector || c + 1 < dim) v.y -= mean;
      if (kVector || c + 2 < dim) v.z -= mean;
      if (kVector || c + 3 < dim) v.w -= mean;
    }
    return v;
  };
  float squares = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4)
    squares = add_squares(squares, load(c));
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  const float scale = norm_scale(sums, dim, eps);
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4) {
    const float4 v = load(c), w = load4<kVector>(weight, c, dim);
    const float values[4] = {v.x * w.x * scale, v.y * w.y * scale, v.z * w.z * scale,
                             v.w * w.w * scale};
    store(c, values);
  }
}

}  // namespace riffle::cuda
