// The router's choice: one warp a row. Lane l has experts l, l + 32, ...
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / 32;

// Whether score a of expert i ranks before score b of expert j.
__device__ bool before(float a, int i, float b, int j) {
  if (isnan(a) || isnan(b)) return isnan(a) == isnan(b) ? i < j : isnan(b);
  return a != b ? a > b : i < j;
}

// kOwn: experts that a lane has room for.
template <int kOwn>
__global__ void __launch_bounds__(kThreads)
    route_kernel(const float* scores, int64_t n, int n_experts, int n_used, bool renormalised,
                 Routed* routed) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= n) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Routed* out = routed + row * n_used;
  float s[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    s[k] = lane + 32 * k < n_experts ? scores[row * n_experts + lane + 32 * k] : 0;
  uint32_t taken = 0;  // bit k: expert lane + 32 k
  float most = 0, sum = 0;
  for (int i = 0; i < n_used; ++i) {
    float best = 0;
    int at = n_experts;  // none
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int e = lane + 32 * k;
      if (e < n_experts && !(taken >> k & 1) && (at == n_experts || before(s[k], e, best, at)))
        best = s[k], at = e;
    }
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(~0u, best, apart);
      const int other_at = __shfl_xor_sync(~0u, at, apart);
      if (other_at < n_experts && (at == n_experts || before(other, other_at, best, at)))
        best = other, at = other_at;
    }
    if (at % 32 == lane) taken |= 1u << at / 32;
    if (i == 0) most = best;
    const float weight = expf(best - most);
    sum += weight;
    if (lane == 0) out[i] = {at, weight};
  }
  if (!renormalised) {
    sum = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (lane + 32 * k < n_experts) sum += expf(s[k] - most);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < n_used; i += 32) out[i].weight /= sum;
}

}  // namespace

Status route(const float* scores, int64_t n, int n_experts, int n_used, bool renormalised,
             Routed* routed, cudaStream_t stream) {
  if (n < 1 || n_experts < 1 || n_experts > kMaxExperts || n_used < 1 || n_used > n_experts)
    return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((n + kRows - 1) / kRows);
  if (n_experts <= 128)
    route_kernel<4>
        <<<blocks, kThreads, 0, stream>>>(scores, n, n_experts, n_used, renormalised, routed);
  else
    route_kernel<kMaxExperts / 32>
        <<<blocks, kThreads, 0, stream>>>(scores, n, n_experts, n_used, renormalised, routed);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
