// Scales of a layer's output (Gemma 4): x *= factor, elementwise.
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) scale_kernel(float* x, int64_t count, float factor) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] *= factor;
}

}  // namespace

Status scale(float* x, int64_t count, float factor, cudaStream_t stream) {
  if (count < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  scale_kernel<<<blocks, kThreads, 0, stream>>>(x, count, factor);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
