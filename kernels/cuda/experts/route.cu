// The router's choice: one warp a row. Lane l has experts l, l + 32, ...
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layer/norm_row.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 128, kRows = kThreads / 32;

// Returns a larger number for scores that rank earlier: finite ones in their order, NaN last. It is
// never 0, and zeros of both signs are equal.
__device__ uint32_t rank_of(float score) {
  if (isnan(score)) return 1;
  const uint32_t bits = __float_as_uint(score + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The same operations as route_by_sigmoid of kernels/common/routing.h.
__device__ float sigmoid(float score) { return 1.0f / (1.0f + expf(-score)); }

__device__ uint32_t warp_most(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, x);
#else
  for (int apart = 16; apart > 0; apart /= 2) x = max(x, __shfl_xor_sync(~0u, x, apart));
  return x;
#endif
}

// Replaces a row's scores by their softmax values, as route_by_biased_softmax does. A lane has
// those of experts lane, lane + 32, ... One warp calls it.
template <int kOwn>
__device__ void softmax(const Route& a, float (&s)[kOwn]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float most = -INFINITY, sum = 0;
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    if (lane + 32 * k < a.n_experts) most = fmaxf(most, s[k]);
  for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    if (lane + 32 * k < a.n_experts) s[k] = expf(s[k] - most), sum += s[k];
  sum = warp_sum(sum);
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    if (lane + 32 * k < a.n_experts) s[k] /= sum;
}

// Returns the number by which an expert with this value is chosen.
__device__ float chosen_by(const Route& a, float value, int expert) {
  return a.choice_bias == nullptr ? value : __fadd_rn(value, a.choice_bias[expert]);
}

// Sets the rank of experts to 0 unless their group is used, as choose_groups says. s: the experts'
// values. One warp calls it.
template <int kOwn>
__device__ void keep_groups(const Route& a, const float (&s)[kOwn], uint32_t (&rank)[kOwn]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, n_groups = a.routing.n_groups,
            size = a.n_experts / n_groups;
  uint32_t of_group[2] = {};  // ranks of groups lane and lane + 32
  for (int g = 0; g < n_groups; ++g) {
    float first = -INFINITY, second = -INFINITY;  // the best two numbers
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (rank[k] > 0 && (lane + 32 * k) / size == g) {
        const float by = chosen_by(a, s[k], lane + 32 * k);
        second = fmaxf(second, fminf(first, by));
        first = fmaxf(first, by);
      }
    for (int apart = 16; apart > 0; apart /= 2) {
      const float first_there = __shfl_xor_sync(~0u, first, apart),
                  second_there = __shfl_xor_sync(~0u, second, apart);
      second = fmaxf(fmaxf(second, second_there), fminf(first, first_there));
      first = fmaxf(first, first_there);
    }
    if (lane == g % 32) of_group[g / 32] = rank_of(first + second);
  }
  uint64_t used = 0;
  for (int i = 0; i < a.routing.used_groups; ++i) {
    const uint32_t best = warp_most(max(of_group[0], of_group[1]));
    uint32_t lowest = 0;  // 64 minus the lowest group with this rank
    for (int half = 0; half < 2; ++half)
      if (of_group[half] == best)
        lowest = max(lowest, static_cast<uint32_t>(64 - lane - 32 * half));
    const int group = 64 - static_cast<int>(warp_most(lowest));
    used |= uint64_t{1} << group;
    if (lane == group % 32) of_group[group / 32] = 0;
  }
#pragma unroll
  for (int k = 0; k < kOwn; ++k)
    if (rank[k] > 0 && !(used >> (lane + 32 * k) / size & 1)) rank[k] = 0;
}

// Tells whether experts are chosen by softmax values plus a bias.
__host__ __device__ bool by_biased_softmax(const Route& a) {
  return a.choice_bias != nullptr && !a.routing.sigmoid;
}

// One warp calls it. kOwn: the most experts that a lane has. kRare: the choice may be that of
// by_biased_softmax, and experts may be in groups; other kernels have the registers of neither.
template <int kOwn, bool kRare>
__device__ void choose(const Route& a, int64_t row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* scores = a.scores + row * a.n_experts;
  Routed* out = a.routed + row * a.n_used;
  const bool sigmoids = a.routing.sigmoid, softmaxes = kRare && by_biased_softmax(a);
  float s[kOwn];        // scores, or the values that they become and that weights are
  uint32_t rank[kOwn];  // 0: none, or taken
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const bool present = lane + 32 * k < a.n_experts;
    s[k] = present ? __fmul_rn(scores[lane + 32 * k], a.score_scale) : 0;
    if (sigmoids) s[k] = sigmoid(s[k]);
  }
  if constexpr (kRare)
    if (softmaxes) softmax(a, s);
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const bool present = lane + 32 * k < a.n_experts;
    rank[k] = present ? rank_of(chosen_by(a, s[k], lane + 32 * k)) : 0;
  }
  if constexpr (kRare)
    if (a.routing.n_groups > 1 && (sigmoids || softmaxes)) keep_groups(a, s, rank);
  float most = 0, sum = 0;
  for (int i = 0; i < a.n_used; ++i) {
    uint32_t best = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k) best = max(best, rank[k]);
    best = warp_most(best);
    uint32_t first = 0;  // kMostExperts minus the lowest expert with this rank
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (rank[k] == best) first = max(first, static_cast<uint32_t>(kMostExperts - lane - 32 * k));
    const int at = kMostExperts - static_cast<int>(warp_most(first));
    float score = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (at == lane + 32 * k) score = s[k], rank[k] = 0;
    score = __shfl_sync(~0u, score, at % 32);
    if (i == 0) most = score;
    const float weight = sigmoids || softmaxes ? score : expf(score - most);
    sum += weight;
    if (lane == 0) out[i] = {at, weight};
  }
  if (sigmoids) {
    sum = a.renormalised ? __fadd_rn(sum, a.routing.sum_eps) : 1.0f;
  } else if (softmaxes) {
    const float least = a.routing.least_sum;
    sum = !a.renormalised ? 1.0f : sum < least ? least : sum;
  } else if (!a.renormalised) {
    sum = 0;
#pragma unroll
    for (int k = 0; k < kOwn; ++k)
      if (lane + 32 * k < a.n_experts) sum += expf(s[k] - most);
    sum = warp_sum(sum);
  }
  __syncwarp();
  for (int i = lane; i < a.n_used; i += 32) {
    float weight = out[i].weight / sum;
    if (sigmoids) weight *= a.routing.scale;
    if (a.expert_scales != nullptr) weight *= a.expert_scales[out[i].expert];
    if (!sigmoids) weight *= a.routing.scale;
    out[i].weight = weight;
  }
}

template <int kOwn, bool kRare>
__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ Route a) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row < a.n) choose<kOwn, kRare>(a, row);
}

// One block a row: its first warp chooses, and all normalise.
template <int kOwn, bool kRare, bool kVector>
__global__ void __launch_bounds__(kNormThreads)
    route_and_norm_kernel(const __grid_constant__ Route a) {
  allow_next();
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  if (threadIdx.x < 32) choose<kOwn, kRare>(a, row);
  norm_row<kVector>(a.x + row * a.dim, a.norm, a.dim, a.eps, [&](int64_t c, const auto& values) {
    for (int j = 0; j < 4 && c + j < a.dim; j++) a.normed[row * a.dim + c + j] = values[j];
  });
}

template <int kOwn, bool kRare>
Status launch_route(const Route& args, cudaStream_t stream) {
  if (args.normed != nullptr) {
    const auto kernel = args.dim % 4 == 0 ? route_and_norm_kernel<kOwn, kRare, true>
                                          : route_and_norm_kernel<kOwn, kRare, false>;
    return launch(kernel, args, dim3(static_cast<unsigned>(args.n)), kNormThreads, args.overlap,
                  stream);
  }
  const dim3 blocks(static_cast<unsigned>((args.n + kRows - 1) / kRows));
  return launch(route_kernel<kOwn, kRare>, args, blocks, kThreads, false, stream);
}

}  // namespace

Status route(const Route& args, cudaStream_t stream) {
  if (args.n < 1 || args.n_experts < 1 || args.n_experts > kMostExperts || args.n_used < 1 ||
      args.n_used > args.n_experts || (args.normed != nullptr && args.dim < 1))
    return cudaErrorInvalidValue;
  const int groups = args.routing.n_groups, used = args.routing.used_groups;
  if (groups < 1 || groups > 64 || used < 1 || used > groups || args.n_experts % groups != 0 ||
      (groups > 1 && args.n_used > used * (args.n_experts / groups)))
    return cudaErrorInvalidValue;
  constexpr int kFew = 4, kMany = kMostExperts / 32;
  if (groups > 1 || by_biased_softmax(args))
    return args.n_experts <= 32 * kFew ? launch_route<kFew, true>(args, stream)
                                       : launch_route<kMany, true>(args, stream);
  return args.n_experts <= 32 * kFew ? launch_route<kFew, false>(args, stream)
                                     : launch_route<kMany, false>(args, stream);
}

}  // namespace riffle::cuda
