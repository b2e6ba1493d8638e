// The router's choice: one warp a row. Lane l has experts l, l + 32, ...
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer/norm_row.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / 32;

// Whether score a of expert i ranks before score b of expert j.
__device__ bool before(float a, int i, float b, int j) {
  if (isnan(a) || isnan(b)) return isnan(a) == isnan(b) ? i < j : isnan(b);
  return a != b ? a > b : i < j;
}

// One warp; kOwn: experts that a lane has room for.
template <int kOwn>
__device__ void choose(const Route& a, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* scores = a.scores + row * a.n_experts;
  Routed* out = a.routed + row * a.n_used;
  float s[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) s[k] = lane + 32 * k < a.n_experts ? scores[lane + 32 * k] : 0;
  uint32_t taken = 0;  // bit k: expert lane + 32 k
  float most = 0, sum = 0;
  for (int i = 0; i < a.n_used; ++i) {
    float best = 0;
    int at = a.n_experts;  // none
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int e = lane + 32 * k;
      if (e < a.n_experts && !(taken >> k & 1) && (at == a.n_experts || before(s[k], e, best, at)))
        best = s[k], at = e;
    }
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(~0u, best, apart);
      const int other_at = __shfl_xor_sync(~0u, at, apart);
      if (other_at < a.n_experts && (at == a.n_experts || before(other, other_at, best, at)))
        best = other, at = other_at;
    }
    if (at % 32 == lane) taken |= 1u << at / 32;
    if (i == 0) most = best;
    const float weight = expf(best - most);
    sum += weight;
    if (lane == 0) out[i] = {at, weight};
  }
  if (!a.renormalised) {
    sum = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (lane + 32 * k < a.n_experts) sum += expf(s[k] - most);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < a.n_used; i += 32) out[i].weight /= sum;
}

template <int kOwn>
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ Route a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row < a.n) choose<kOwn>(a, row);
}

// One block a row: its first warp chooses, and all normalise.
template <int kOwn, bool kVector>
__global__ void __launch_bounds__(kNormThreads)
    route_and_norm_kernel(const __grid_constant__ Route a) {
  allow_next();
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  if (threadIdx.x < 32) choose<kOwn>(a, row);
  norm_row<kVector>(a.x + row * a.dim, a.norm, a.dim, a.eps, [&](int64_t c, const auto& values) {
    for (int j = 0; j < 4 && c + j < a.dim; j++) a.normed[row * a.dim + c + j] = values[j];
  });
}

template <int kOwn>
Status launch_route(const Route& args, cudaStream_t stream) {
  if (args.normed != nullptr) {
    const auto kernel =
        args.dim % 4 == 0 ? route_and_norm_kernel<kOwn, true> : route_and_norm_kernel<kOwn, false>;
    return launch(kernel, args, dim3(static_cast<unsigned>(args.n)), kNormThreads, args.overlap,
                  stream);
  }
  const dim3 blocks(static_cast<unsigned>((args.n + kRows - 1) / kRows));
  return launch(route_kernel<kOwn>, args, blocks, kThreads, false, stream);
}

}  // namespace

Status route(const Route& args, cudaStream_t stream) {
  if (args.n < 1 || args.n_experts < 1 || args.n_experts > kMaxExperts || args.n_used < 1 ||
      args.n_used > args.n_experts || (args.normed != nullptr && args.dim < 1))
    return cudaErrorInvalidValue;
  return args.n_experts <= 128 ? launch_route<4>(args, stream)
                               : launch_route<kMaxExperts / 32>(args, stream);
}

}  // namespace riffle::cuda
