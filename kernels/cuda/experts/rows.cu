// Moves rows into the order of experts, and their results back.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/launch.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    gather_kernel(const float* x, const int32_t* from, int64_t dim, void* out, WType out_type) {
  const int64_t j = blockIdx.x, row = from[j];
  for (int64_t c = threadIdx.x; c < dim; c += kThreads)
    store_f32_as(out, out_type, j * dim + c, x[row * dim + c]);
}

struct Combine {
  const float* y;
  const Routed* routed;
  const int32_t* at;
  int n_used;
  int64_t dim;
  float* x;
  SharedOutput shared;
  bool add;
};

// One thread a value: a step has few rows.
__global__ void __launch_bounds__(kThreads) combine_kernel(const __grid_constant__ Combine a) {
  const int64_t i = blockIdx.x, c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  allow_next();
  wait_for_earlier();
  if (c >= a.dim) return;
  float sum = 0;
  for (int64_t k = i * a.n_used; k < (i + 1) * a.n_used; ++k)
    sum = fmaf(a.routed[k].weight, a.y[(a.at == nullptr ? k : a.at[k]) * a.dim + c], sum);
  if (a.shared.shared != nullptr) {
    // If e^-share overflows, the quotient is 0, which is the sigmoid's rounded value.
    const float scale = a.shared.scale, share = a.shared.share == nullptr
                                                    ? scale
                                                    : scale / (1.0f + expf(-a.shared.share[i]));
    sum = fmaf(share, a.shared.shared[i * a.dim + c], sum);
  }
  float* const x = a.x + i * a.dim + c;
  *x = a.add ? *x + sum : sum;
}

}  // namespace

Status gather_rows(const float* x, const int32_t* from, int64_t n, int64_t dim, void* out,
                   WType out_type, cudaStream_t stream) {
  if (n < 1 || dim < 1 || out_type > WType::BF16) return cudaErrorInvalidValue;
  gather_kernel<<<static_cast<unsigned>(n), kThreads, 0, stream>>>(x, from, dim, out, out_type);
  return cudaGetLastError();
}

Status combine_rows(const float* y, const Routed* routed, const int32_t* at, int64_t n, int n_used,
                    int64_t dim, float* x, bool overlap, cudaStream_t stream,
                    const SharedOutput& shared, bool add) {
  if (n < 1 || dim < 1) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(n), static_cast<unsigned>((dim + kThreads - 1) / kThreads));
  return launch(combine_kernel, Combine{y, routed, at, n_used, dim, x, shared, add}, grid, kThreads,
                overlap, stream);
}

}  // namespace riffle::cuda
