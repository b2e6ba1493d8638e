// The activation of FFNs without a gate: max(0, x)^2 (So et al., arXiv 2109.08668), elementwise.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kPerThread = 4;

// out may be x: an element is read and written by one thread, and read first.
__global__ void __launch_bounds__(kThreads)
    relu_squared_kernel(const void* x, int64_t count, WType in_type, void* out, WType out_type,
                        const float* bias, int64_t width) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread + threadIdx.x;
  float v[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread; j++) {
    const int64_t i = first + j * kThreads;
    if (i >= count) continue;
    v[j] = load_as_f32(x, in_type, i);
    if (in_type == WType::F16) v[j] = cut_to_f16(v[j]);  // as glu does
    if (bias) v[j] += bias[i % width];
  }
#pragma unroll
  for (int j = 0; j < kPerThread; j++) {
    const int64_t i = first + j * kThreads;
    if (i < count) store_f32_as(out, out_type, i, relu_squared(v[j]));
  }
}

}  // namespace

Status relu_squared(const void* x, int64_t count, WType in_type, void* out, WType out_type,
                    cudaStream_t stream, const float* bias, int64_t width) {
  if (bias && (width < 1 || count % width != 0)) return cudaErrorInvalidValue;
  if (is_quantised(in_type) || is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  const int64_t blocks = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  relu_squared_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      x, count, in_type, out, out_type, bias, width);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
