// The Walsh-Hadamard transform of rows in place (kernels/common/hadamard.h).
#include "kernels/common/hadamard.h"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kMaxDim = 1024, kThreads = 128;

__global__ void __launch_bounds__(kThreads) hadamard_kernel(float* x, int d) {
  __shared__ float row[kMaxDim];
  float* at = x + static_cast<int64_t>(blockIdx.x) * d;
  const int thread = static_cast<int>(threadIdx.x), block = hadamard_block(d);
  for (int j = thread; j < d; j += kThreads) row[j] = at[j];
  for (int half = 1; half < block; half *= 2) {
    __syncthreads();
    for (int j = thread; j < d / 2; j += kThreads) {
      const int i = j / half * 2 * half + j % half;
      const float a = row[i], b = row[i + half];
      row[i] = a + b;
      row[i + half] = a - b;
    }
  }
  __syncthreads();
  const float scale = hadamard_scale(block);
  for (int j = thread; j < d; j += kThreads) at[j] = __fmul_rn(row[j], scale);
}

}  // namespace

Status hadamard_rows(float* x, int64_t n, int d, cudaStream_t stream) {
  if (n < 1 || n > INT32_MAX || d < 1 || d > kMaxDim) return cudaErrorInvalidValue;
  hadamard_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(x, d);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
