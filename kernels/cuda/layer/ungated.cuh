// Activations of FFNs without a gate, elementwise: out = f(x + bias).
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda {

inline constexpr int kUngatedThreads = 256, kUngatedPerThread = 4;

// out may be x: an element is read and written by one thread, and read first.
template <class F>
__global__ void __launch_bounds__(kUngatedThreads)
    ungated_kernel(const void* x, int64_t count, WType in_type, void* out, WType out_type,
                   const float* bias, int64_t width, F f) {
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kUngatedThreads * kUngatedPerThread + threadIdx.x;
  float v[kUngatedPerThread];
#pragma unroll
  for (int j = 0; j < kUngatedPerThread; j++) {
    const int64_t i = first + j * kUngatedThreads;
    if (i >= count) continue;
    v[j] = load_as_f32(x, in_type, i);
    if (in_type == WType::F16) v[j] = cut_to_f16(v[j]);  // as glu does
    if (bias) v[j] += bias[i % width];
  }
#pragma unroll
  for (int j = 0; j < kUngatedPerThread; j++) {
    const int64_t i = first + j * kUngatedThreads;
    if (i < count) store_f32_as(out, out_type, i, f(v[j]));
  }
}

template <class F>
Status ungated(const void* x, int64_t count, WType in_type, void* out, WType out_type,
               cudaStream_t stream, const float* bias, int64_t width, F f) {
  if (bias && (width < 1 || count % width != 0)) return cudaErrorInvalidValue;
  if (is_quantised(in_type) || is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  constexpr int64_t kEach = kUngatedThreads * kUngatedPerThread;
  const int64_t blocks = (count + kEach - 1) / kEach;
  ungated_kernel<<<static_cast<unsigned>(blocks), kUngatedThreads, 0, stream>>>(
      x, count, in_type, out, out_type, bias, width, f);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
