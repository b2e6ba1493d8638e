// The selector share chooses a row's blocks here, by the log masses of estimate.cu: the candidates
// that hold at least a share of some query head's weight, in token order. The kernel also sums up
// each head's weight in unread blocks, and the mean value that stands for these. In base 2.
//
// A row's heads are shared among the CTAs of a cluster, one each, or two if there are more heads
// than a cluster has CTAs (compute capability 9.0 and later; before, one CTA has all). The CTAs
// tell each other which candidates their heads keep.
#include "kernels/common/agreed.h"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/f16_exact.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
// Candidates come kChunk at a time, kEach times 32 neighbours to a warp.
constexpr int kEach = 4, kChunk = kEach * kThreads;

struct ChooseArgs {
  DecodeStep step;
  ShareRule share;
  DecodeScratch scratch;
  int g, ctas;      // query heads and CTAs of a row; CTA i has heads i, i + ctas, ...
  int mean_stride;  // stride of scratch.mean_value
};

constexpr int kMaxCtas = 8;  // CTAs of a row: the largest cluster that all devices allow

// Shared memory of a CTA of a row. All but `keeps` is of its own heads.
struct ChooseMemory {
  uint4 keeps[2][kMaxCtas][kWarps];  // by parity of the chunk, CTA and warp: a bit a candidate
  float whole[kMaxHeads];            // log mass of all blocks
  float least[kMaxHeads];            // least log mass of a block that is kept
  float m[kMaxHeads][kWarps], s[kMaxHeads][kWarps];
  float unread[kMaxHeads][kWarps];
};

// Adds a mass s2 2^m2: base-2 online softmax. An empty sum has m = kLowest, s = 0. One of the two
// factors of such a sum is 1, so one power is enough.
constexpr float kLowest = -1e30f;
__device__ inline void join(float& m, float& s, float m2, float s2) {
  const float smaller = exp2_approx(-fabsf(m - m2));
  const bool grows = m2 > m;
  s = __fmaf_rn(s, grows ? smaller : 1, grows ? s2 : __fmul_rn(s2, smaller));
  m = fmaxf(m, m2);
}
__device__ inline void join_warp(float& m, float& s) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2)
    join(m, s, __shfl_xor_sync(kAllLanes, m, o), __shfl_xor_sync(kAllLanes, s, o));
}

// Loads kEach of a head's log masses: of blocks from `at` on, `step` apart, of which n are left.
__device__ inline void load_masses(const float* at, int step, int n, float (&mass)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) mass[i] = i * step < n ? __ldcg(at + i * step) : kLowest;
}

// Sums the whole mass of a head: of its blocks and of the tail's tokens. The order of the sum
// depends only on the row, not on the number of CTAs that estimated it, since the unread share
// follows from it and enters the result. Each warp's part goes to memory.
__device__ inline void sum_masses(const ChooseArgs& a, int row, const RowGeometry& r, int head,
                                  int own, const float* masses, ChooseMemory& memory) {
  const int thread = threadIdx.x;
  const int n_tail = r.n_tokens - r.n_full * a.step.layout.block_size;
  float tail = 0, m = kLowest, s = 0;
  if (thread < n_tail)
    tail = __ldcg(a.scratch.tail_scores +
                  (int64_t(row) * a.scratch.head_stride + head) * kMaxBlock + thread);
#pragma unroll 1
  for (int first = thread; first < r.n_full; first += kChunk) {
    float mass[kEach];
    load_masses(masses + first, kThreads, r.n_full - first, mass);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (first + i * kThreads < r.n_full) join(m, s, mass[i], 1);
  }
  if (thread < n_tail) join(m, s, tail, 1);
  join_warp(m, s);
  if (thread % 32 == 0) memory.m[own][thread / 32] = m, memory.s[own][thread / 32] = s;
}

// Joins the warps' parts of a head, by one warp, after a barrier. The logarithms of the share are
// added to its least mass one after the other.
__device__ inline void join_warps(float log2_share, float log2_factor, int own,
                                  ChooseMemory& memory) {
  const int lane = threadIdx.x % 32;
  float m = memory.m[own][lane], s = memory.s[own][lane];
  join_warp(m, s);
  if (lane != 0) return;
  memory.whole[own] = m + log2f(s);
  memory.least[own] = memory.whole[own] + log2_share + log2_factor;
}

// Waits for all threads of a row's CTAs, and for their stores to each other's memory.
__device__ inline void row_barrier() {
#if __CUDA_ARCH__ >= 900
  cluster_arrive();
  cluster_wait();
#else
  __syncthreads();
#endif
}
// Writes a warp's `keeps` to the memory of all CTAs of the row.
__device__ inline void tell(uint4* at, const uint4& keeps, int ctas) {
  const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
  if (lane < ctas) store_far(in_block(shared_address(at), lane), keeps);
#else
  if (lane < ctas) *at = keeps;
#endif
}

// Computes the mean value of a row's full blocks, from at most kMeanBlocks evenly spaced ones,
// which are those of select/int4_keys.cpp. The order of the sum is this kernel's own. The blocks'
// means were written before this step began, but the last layer's result is read until its
// attention ends.
__device__ inline void mean_of_values(const ChooseArgs& a, int row, float* memory) {
  constexpr int kAtOnce = 16;
  const int d = a.step.layout.head_dim, thread = threadIdx.x;
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const RowGeometry r = row_geometry(a.step.rule, sequence.n_tokens, a.step.layout.block_size);
  if (r.everything) return wait_for_earlier();  // attention reads no choice of this row
  const int stride = (r.n_full + kMeanBlocks - 1) / kMeanBlocks, parts = kThreads / d,
            part = thread / d, j = thread % d;
  const int n = stride > 0 ? r.n_full / stride : 0;
  const uint16_t* means =
      sequence.value_means + index_row(a.step, row) * sequence.max_blocks * d + j;
  float sum = 0;
  const int64_t step = int64_t(parts) * stride * d;
  const uint16_t* at = means + int64_t(part * stride + stride - 1) * d;
#pragma unroll 1
  for (int first = part; first < n && part < parts; first += kAtOnce * parts) {
    uint16_t value[kAtOnce];  // all of them in flight at once
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k, at += step) value[k] = first + k * parts < n ? *at : 0;
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += from_f16(value[k]);
  }
  memory[thread] = sum;
  __syncthreads();
  wait_for_earlier();
  if (thread >= d) return;
  for (int p = 1; p < parts; ++p) sum += memory[p * d + thread];
  a.scratch.mean_value[int64_t(row) * a.mean_stride + thread] =
      n > 0 ? sum / static_cast<float>(n) : 0;
}

__device__ inline uint4 either(const uint4& x, const uint4& y) {
  return {x.x | y.x, x.y | y.y, x.z | y.z, x.w | y.w};
}
__device__ inline uint4 kept_by_any(const uint4 (*keeps)[kWarps], int ctas, int warp) {
  uint4 any = keeps[0][warp];
#pragma unroll 1
  for (int cta = 1; cta < ctas; ++cta) any = either(any, keeps[cta][warp]);
  return any;
}

// Enters a chunk's candidates that some head keeps, from position `at` on, in token order; returns
// how many there are. The warps of a row's CTAs share the work.
__device__ inline int enter(const uint4 (*keeps)[kWarps], int ctas, int first_block, int32_t* at) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint4 any = kept_by_any(keeps, ctas, lane);  // bits of warp `lane`
  const uint32_t word[kEach] = {any.x, any.y, any.z, any.w};
  int count = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) count += __popc(word[i]);
  int sum = count;  // counts of the warps up to this one
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const int below = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += below;
  }
  at += __shfl_sync(kAllLanes, sum - count, warp);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t mine = __shfl_sync(kAllLanes, word[i], warp);
    if (mine >> lane & 1)
      at[__popc(mine & ((1u << lane) - 1))] = first_block + 32 * (kEach * warp + i) + lane;
    at += __popc(mine);
  }
  return __shfl_sync(kAllLanes, sum, 31);
}

// Subtracts from each head's unread share the weight of the candidates that have a bit in `any` (of
// the lane's kEach candidates of a chunk), since they are read. masses_of: place of a head's log
// masses of these candidates.
template <int kHeads, class MassesOf>
__device__ inline void take_back(const uint4& any, const float (&weight)[kEach], int own_heads,
                                 MassesOf&& masses_of, const ChooseMemory& memory,
                                 float (&unread)[kHeads]) {
  const uint32_t kept[kEach] = {any.x, any.y, any.z, any.w};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!(kept[i] >> threadIdx.x % 32 & 1)) continue;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      if (k >= own_heads) break;
      unread[k] -=
          kHeads == 1 ? weight[i] : exp2_approx(__ldcg(masses_of(k) + 32 * i) - memory.whole[k]);
    }
  }
}

// Stores the sum of all threads' unread shares of each head to out[k * ctas].
template <int kHeads>
__device__ inline void store_unread(float (&unread)[kHeads], int own_heads, ChooseMemory& memory,
                                    float* out, int ctas) {
  const int thread = threadIdx.x;
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) unread[k] += __shfl_xor_sync(kAllLanes, unread[k], o);
    if (thread % 32 == 0) memory.unread[k][thread / 32] = unread[k];
  }
  __syncthreads();
  if (thread < own_heads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += memory.unread[thread][w];
    out[thread * ctas] = fminf(fmaxf(sum, 0.0f), 1.0f);
  }
}

// kHeads: the most heads that a CTA has. Each of the CTAs after those of the rows computes a mean
// value.
template <int kHeads>
__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ ChooseArgs a) {
  __shared__ union {
    ChooseMemory choice;
    float values[kThreads];
  } shared;
  ChooseMemory& memory = shared.choice;
  const int rows = a.step.n * a.step.n_kv_heads, row = blockIdx.x / a.ctas,
            cta = blockIdx.x % a.ctas, thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  allow_next();
  if (row >= rows) {
    const int of_mean = blockIdx.x - rows * a.ctas;
    if (of_mean < rows) mean_of_values(a, of_mean, shared.values);
    return;
  }
  const RowGeometry r = row_geometry(
      a.step.rule, a.step.sequences[row / a.step.n_kv_heads].n_tokens, a.step.layout.block_size);
  if (r.everything) return wait_for_earlier();
  const int own_heads = (a.g - cta + a.ctas - 1) / a.ctas;  // at most kHeads
  // Returns the masses of head cta + k * ctas.
  const auto masses_of = [&](int k) {
    return a.scratch.head_scores + (int64_t(row) * a.g + cta + k * a.ctas) * a.step.max_blocks;
  };
  int32_t* order = a.scratch.order + int64_t(row) * a.step.max_blocks;
  const float log2_factor = log2f(
      fminf(static_cast<float>(a.share.share_blocks) / static_cast<float>(r.n_full + 1), 1.0f));
  const int own_first = kEach * 32 * warp + lane;  // candidate of a chunk
  row_barrier();  // the row's CTAs have started: their memory may be written
  wait_for_earlier();
  float mass[kEach];
  if (kHeads == 1 && own_heads > 0)  // while the whole mass is summed
    load_masses(masses_of(0) + r.first + own_first, 32, r.n_candidates - own_first, mass);
#pragma unroll 1
  for (int k = 0; k < own_heads; ++k)
    sum_masses(a, row, r, cta + k * a.ctas, k, masses_of(k), memory);
  __syncthreads();
  if (warp < own_heads) join_warps(a.share.log2_share, log2_factor, warp, memory);
  if (cta == 0)  // the last warps, since the first ones join
#pragma unroll 1
    for (int p = kThreads - 1 - thread; p < r.n_forced; p += kThreads)
      order[p] = forced_block(r, p);
  __syncthreads();

  int n_kept = 0;
  float unread[kHeads] = {};
#pragma unroll 1
  for (int first = 0; first < r.n_candidates; first += kChunk) {
    const int left = r.n_candidates - first - own_first, buffer = first / kChunk % 2;
    const uint4(*const keeps)[kWarps] = memory.keeps[buffer];
    bool keep[kEach] = {};
    float weight[kEach];
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      if (k >= own_heads) break;
      if (kHeads > 1 || first > 0)
        load_masses(masses_of(k) + r.first + first + own_first, 32, left, mass);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        // A share of 0 keeps all candidates, and nothing beyond them.
        keep[i] |= 32 * i < left && mass[i] >= memory.least[k];
        unread[k] += weight[i] = exp2_approx(mass[i] - memory.whole[k]);
      }
    }
    tell(&memory.keeps[buffer][cta][warp],
         {__ballot_sync(kAllLanes, keep[0]), __ballot_sync(kAllLanes, keep[1]),
          __ballot_sync(kAllLanes, keep[2]), __ballot_sync(kAllLanes, keep[3])},
         a.ctas);
    row_barrier();
    // Few candidates are kept, so their weight is subtracted again.
    take_back<kHeads>(
        kept_by_any(keeps, a.ctas, warp), weight, own_heads,
        [&](int k) { return masses_of(k) + r.first + first + own_first; }, memory, unread);
    if (warp % a.ctas == cta)
      n_kept += enter(keeps, a.ctas, r.first + first, order + r.n_forced + n_kept);
  }
  if (thread == 0 && cta == 0) a.scratch.ranks[row] = {n_kept, 0};
  store_unread<kHeads>(unread, own_heads, memory,
                       a.scratch.unread + row * a.scratch.head_stride + cta, a.ctas);
}

}  // namespace

Status choose_orders(const DecodeStep& step, const ShareRule& share, const DecodeScratch& scratch,
                     cudaStream_t stream) {
  ChooseArgs a{};
  a.step = step;
  a.share = share;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  a.mean_stride = padded_dim(step.layout.head_dim);
  // The code that the device runs may be that of an older generation.
  cudaFuncAttributes about;
  if (Status s = cudaFuncGetAttributes(&about, reinterpret_cast<const void*>(choose_kernel<1>));
      s != cudaSuccess)
    return s;
  const bool clusters = about.ptxVersion >= 90;
  a.ctas = clusters ? padded_group(a.g) : 1;  // at most kMaxCtas
  const bool many = a.g > kMaxGroup;
  const int rows = step.n * step.n_kv_heads;
  const dim3 grid(a.ctas * (rows + (rows + a.ctas - 1) / a.ctas));
  if (!clusters)
    return launch(many ? choose_kernel<kMaxHeads> : choose_kernel<kMaxGroup>, a, grid, kThreads,
                  step.overlap, stream);
  return launch_clusters(many ? choose_kernel<kMaxHeads / kMaxCtas> : choose_kernel<1>, a, grid,
                         kThreads, a.ctas, step.overlap, stream);
}

}  // namespace riffle::cuda
