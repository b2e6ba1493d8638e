// Gates of attention's output by softplus (Laguna): x *= softplus(gate), one gate for `width`
// values.
#include "kernels/common/softplus.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    softplus_gate_kernel(float* x, const float* gate, int64_t count, int64_t width) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] *= softplus(gate[i / width]);
}

}  // namespace

Status softplus_gate(float* x, const float* gate, int64_t n, int64_t width, cudaStream_t stream) {
  if (n < 1 || width < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((n * width + kThreads - 1) / kThreads);
  softplus_gate_kernel<<<blocks, kThreads, 0, stream>>>(x, gate, n * width, width);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
