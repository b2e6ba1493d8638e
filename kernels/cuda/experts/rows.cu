// Prefill of a mixture of experts: copies rows into the order of experts, and adds the results
// back.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const float* x, const int32_t* from, int64_t dim, void* out, WType out_type) {
  const int64_t j = blockIdx.x, row = from[j];
  for (int64_t c = threadIdx.x; c < dim; c += kThreads)
    store_f32_as(out, out_type, j * dim + c, x[row * dim + c]);
}

__global__ void __launch_bounds__(kThreads)
    combine_kernel(const float* y, const Routed* routed, const int32_t* at, int n_used, int64_t dim,
                   float* x) {
  const int64_t i = blockIdx.x;
  for (int64_t c = threadIdx.x; c < dim; c += kThreads) {
    float sum = 0;
    for (int64_t k = i * n_used; k < (i + 1) * n_used; ++k)
      sum = fmaf(routed[k].weight, y[(at == nullptr ? k : at[k]) * dim + c], sum);
    x[i * dim + c] += sum;
  }
}

}  // namespace

Status gather_rows(const float* x, const int32_t* from, int64_t n, int64_t dim, void* out,
                   WType out_type, cudaStream_t stream) {
  if (n < 1 || dim < 1 || out_type > WType::BF16) return cudaErrorInvalidValue;
  gather_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(x, from, dim, out, out_type);
  return cudaGetLastError();
}

Status combine_rows(const float* y, const Routed* routed, const int32_t* at, int64_t n, int n_used,
                    int64_t dim, float* x, cudaStream_t stream) {
  if (n < 1 || dim < 1) return cudaErrorInvalidValue;
  combine_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(y, routed, at, n_used, dim, x);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
