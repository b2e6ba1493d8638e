// Gated attention (transformers' Muse Glimmer): x *= sigmoid(gate), elementwise.
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// If e^-g overflows, the quotient is 0, which is the sigmoid's rounded value.
__global__ void __launch_bounds__(kThreads)
    sigmoid_gate_kernel(float* x, const float* gate, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = x[i] / (1.0f + expf(-gate[i]));
}

}  // namespace

Status sigmoid_gate(float* x, const float* gate, int64_t count, cudaStream_t stream) {
  if (count < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  sigmoid_gate_kernel<<<blocks, kThreads, 0, stream>>>(x, gate, count);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
