// RMS normalisation after attention or FFN: their output is normalised, then added to the residual
// stream. One block a row.
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/rmsnorm.cuh"

namespace riffle::cuda {
namespace {

__global__ void __launch_bounds__(kNormThreads)
    add_rmsnorm_kernel(float* x, const float* y, const float* bias, const float* weight,
                       int64_t dim, float eps) {
  __shared__ float sums[kNormWarps];
  const int64_t row = static_cast<int64_t>(blockIdx.x) * dim;
  const auto value = [&](int64_t c) {
    return c >= dim ? 0 : bias ? y[row + c] + bias[c] : y[row + c];
  };
  float squares = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4)
    squares = add_squares(squares, make_float4(value(c), value(c + 1), value(c + 2), value(c + 3)));
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  const float scale = norm_scale(sums, dim, eps);
  for (int64_t c = threadIdx.x; c < dim; c += kNormThreads)
    x[row + c] += value(c) * weight[c] * scale;
}

}  // namespace

Status add_rmsnorm(float* x, const float* y, const float* bias, const float* weight, int64_t n,
                   int64_t dim, float eps, cudaStream_t stream) {
  if (n < 1 || dim < 1) return cudaErrorInvalidValue;
  add_rmsnorm_kernel<<<static_cast<unsigned>(n), kNormThreads, 0, stream>>>(x, y, bias, weight, dim,
                                                                            eps);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
