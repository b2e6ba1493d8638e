// Soft caps of logits (Gemma 2, arXiv 2408.00118): x = cap * tanh(x / cap), elementwise.
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) softcap_kernel(float* x, int64_t count, float cap) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = cap * tanhf(x[i] / cap);
}

}  // namespace

Status softcap(float* x, int64_t count, float cap, cudaStream_t stream) {
  if (count < 1 || !(cap > 0)) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  softcap_kernel<<<blocks, kThreads, 0, stream>>>(x, count, cap);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
