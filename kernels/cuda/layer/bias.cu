// y[i] += bias for n rows of a product, in f32.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    bias_kernel(float* y, int64_t ldy, int64_t rows, const float* bias) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (r < rows) y[blockIdx.y * ldy + r] += bias[r];
}

}  // namespace

Status add_bias(float* y, int64_t n, int64_t ldy, int64_t rows, const float* bias,
                cudaStream_t stream) {
  if (n < 1 || rows < 1) return cudaErrorInvalidValue;
  constexpr int64_t kMost = 65535;  // limit of the grid's second dimension
  for (int64_t first = 0; first < n; first += kMost) {
    const int64_t count = n - first < kMost ? n - first : kMost;
    const dim3 grid(static_cast<unsigned>((rows + kThreads - 1) / kThreads),
                    static_cast<unsigned>(count));
    bias_kernel<<<grid, kThreads, 0, stream>>>(y + first * ldy, ldy, rows, bias);
    if (const Status s = cudaGetLastError(); s != cudaSuccess) return s;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
