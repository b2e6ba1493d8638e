// The selector share chooses a row's blocks here, by the log masses of estimate.cu: the candidates
// that hold at least a share of some query head's weight, in token order, and after them samples of
// the other candidates. The samples stand for the weight of all unread candidates
// (select/share.cpp). In base 2.
//
// A row's heads are shared among the CTAs of a cluster, one each, or two if there are more heads
// than a cluster has CTAs (compute capability 9.0 and later; before, one CTA has all). The CTAs
// tell each other which candidates their heads keep.
#include "kernels/cuda/attend/covered.h"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/cluster.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / 32;
// Candidates come kChunk at a time, kEach times 32 neighbours to a warp.
constexpr int kEach = 4, kChunk = kEach * kThreads;

struct ChooseArgs {
  DecodeStep step;
  ShareRule share;
  DecodeScratch scratch;
  int g, ctas;  // query heads and CTAs of a row; CTA i has heads i, i + ctas, ...
  int each;     // samples of a head
};

constexpr int kMaxCtas = 8;  // CTAs of a row: the largest cluster that all devices allow

// Shared memory of a CTA of a row. All but `keeps` is of its own heads.
struct ChooseMemory {
  uint4 keeps[2][kMaxCtas][kWarps];  // by parity of the chunk, CTA and warp: a bit a candidate
  float whole[kMaxHeads];            // log mass of all blocks
  float least[kMaxHeads];            // least log mass of a block that is kept
  float m[kMaxHeads][kWarps], s[kMaxHeads][kWarps];
  float unread[kMaxHeads][kWarps];  // weight in blocks that are not read, by warp
  uint32_t sums[kWarps];            // each warp's weight in the current chunk, in kUnits
  float expected[kMaxHeads][32];    // expected number of times that each head chooses a sample
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
// the lane's kEach candidates of a chunk), since they are read, and sets their stored masses to
// nothing, so that they are not sampled. masses_of: place of a head's log masses of these
// candidates.
template <int kHeads, class MassesOf>
__device__ inline void take_back(const uint4& any, float (&weight)[kEach], int own_heads,
                                 MassesOf&& masses_of, const ChooseMemory& memory,
                                 float (&unread)[kHeads]) {
  const uint32_t kept[kEach] = {any.x, any.y, any.z, any.w};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (!(kept[i] >> threadIdx.x % 32 & 1)) continue;
#pragma unroll
    for (int k = 0; k < kHeads; ++k) {
      if (k >= own_heads) break;
      float* mass = masses_of(k) + 32 * i;
      unread[k] -= kHeads == 1 ? weight[i] : exp2_approx(__ldcg(mass) - memory.whole[k]);
      __stcg(mass, kLowest);
      weight[i] = 0;
    }
  }
}

// Leaves each warp's part of the heads' unread shares in memory.
template <int kHeads>
__device__ inline void keep_unread(float (&unread)[kHeads], int own_heads, ChooseMemory& memory) {
#pragma unroll
  for (int k = 0; k < kHeads; ++k) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) unread[k] += __shfl_xor_sync(kAllLanes, unread[k], o);
    if (k < own_heads && threadIdx.x % 32 == 0) memory.unread[k][threadIdx.x / 32] = unread[k];
  }
}

// Weights are summed as integers, in units of 2^-30 of a head's weight. So all warps agree on the
// sums, and a block of no weight is never chosen.
constexpr float kUnits = 0x1p30f;

// Turns x into the sums of the lanes up to each one; returns the sum of all.
__device__ inline uint32_t scan_warp(uint32_t& x) {
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, x, o);
    if (threadIdx.x % 32 >= o) x += below;
  }
  return __shfl_sync(kAllLanes, x, 31);
}

// Samples a head's candidates. Their weights are laid end to end and cut into stretches of 1 /
// per_weight, and the block in the middle of each stretch is a sample. weights_of: gives the
// weights of the chunk that begins at a candidate. list: gets the samples, at most `each`. All
// threads call it.
template <class WeightsOf>
__device__ inline void sample_head(const RowGeometry& r, WeightsOf&& weights_of, float per_weight,
                                   int each, int32_t* list, ChooseMemory& memory) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, own_first = kEach * 32 * warp + lane;
  const float per_unit = per_weight / kUnits;
  // Returns the number of stretches whose middle lies within the first `units`.
  const auto passed_at = [&](uint32_t units) {
    return min(each, static_cast<int>(fmaf(__uint2float_rn(units), per_unit, 0.5f)));
  };
  uint32_t before = 0;  // weight of earlier chunks
#pragma unroll 1
  for (int first = 0; first < r.n_candidates; first += kChunk) {
    float weight[kEach];
    uint32_t up_to[kEach], sum = 0;
    weights_of(first, weight);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      up_to[i] = __float2uint_rn(weight[i] * kUnits);
      const uint32_t all = scan_warp(up_to[i]);
      up_to[i] += sum;
      sum += all;
    }
    if (lane == 0) memory.sums[warp] = sum;
    __syncthreads();
    uint32_t of_warps = memory.sums[lane];
    const uint32_t chunk = scan_warp(of_warps);
    const uint32_t base = before + __shfl_sync(kAllLanes, of_warps, warp) - sum;
    before += chunk;
    int last = passed_at(base);
    if (passed_at(base + sum) > last)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int passed = passed_at(base + up_to[i]);
        int from = __shfl_up_sync(kAllLanes, passed, 1);
        if (lane == 0) from = last;
        for (int n = from; n < passed; ++n) __stcg(list + n, r.first + first + own_first + 32 * i);
        last = __shfl_sync(kAllLanes, passed, 31);
      }
    if (first + kChunk < r.n_candidates) __syncthreads();  // before the sums are written again
  }
}

// Samples the candidates for the CTA's heads. weight: if the CTA has one head and its candidates
// fit one chunk, their weights, 0 for those that are read; otherwise unused.
template <int kHeads, class MassesOf>
__device__ inline void sample_heads(const ChooseArgs& a, const RowGeometry& r, int row, int cta,
                                    float log2_factor, int own_heads, MassesOf&& masses_of,
                                    const float (&weight)[kEach], ChooseMemory& memory) {
  const int lane = threadIdx.x % 32, own_first = kEach * 32 * (threadIdx.x / 32) + lane;
  const float share = exp2f(a.share.log2_share + log2_factor);
  if (threadIdx.x < own_heads * a.each)
    __stcg(a.scratch.samples + int64_t(row) * kMaxSamples +
               (cta + threadIdx.x / a.each * a.ctas) * a.each + threadIdx.x % a.each,
           -1);
  __syncthreads();  // all warps' unread weight is there, and the lists are empty
#pragma unroll 1
  for (int k = 0; k < own_heads; ++k) {
    const int head = cta + k * a.ctas;
    float unread = memory.unread[k][lane];
#pragma unroll
    for (int o = 16; o > 0; o /= 2) unread += __shfl_xor_sync(kAllLanes, unread, o);
    // A sample stands for at least `share`, the least weight of a block that is read for itself.
    const float per_weight =
        unread > 0 ? fminf(static_cast<float>(a.each) / unread, 1 / share) : 1 / share;
    if (threadIdx.x == 0)
      a.scratch.heads[int64_t(row) * a.scratch.head_stride + head] = {memory.whole[k], per_weight};
    if (!(unread >= share / 2 && unread > 0)) continue;
    sample_head(
        r,
        [&](int first, float(&w)[kEach]) {
          if (kHeads == 1 && r.n_candidates <= kChunk) {
#pragma unroll
            for (int i = 0; i < kEach; ++i) w[i] = weight[i];
            return;
          }
          load_masses(masses_of(k) + r.first + first + own_first, 32,
                      r.n_candidates - first - own_first, w);
#pragma unroll
          for (int i = 0; i < kEach; ++i) w[i] = exp2_approx(w[i] - memory.whole[k]);
        },
        per_weight, a.each, a.scratch.samples + int64_t(row) * kMaxSamples + head * a.each, memory);
    __syncthreads();  // before the next head's sums
  }
}

// Enters the samples of all heads after the row's other positions, each block once. A block counts
// (times chosen) / (expected times) times. All threads of one CTA call it. n_before: positions
// before the samples; only the first warp needs it. Returns the number of samples to the first
// warp, 0 to the others.
__device__ inline int enter_samples(const ChooseArgs& a, int row, int n_before, int32_t* order,
                                    ChooseMemory& memory) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int block =
      lane < a.g * a.each ? __ldcg(a.scratch.samples + int64_t(row) * kMaxSamples + lane) : -1;
  // Each warp has a head, and each lane a sample.
  if (warp < a.g) {
    const HeadShare* head = a.scratch.heads + int64_t(row) * a.scratch.head_stride + warp;
    const float per_weight = __ldcg(&head->per_weight), whole = __ldcg(&head->whole);
    float expected = 0;
    if (block >= 0)
      expected =
          per_weight * exp2_approx(__ldcg(a.scratch.head_scores +
                                          (int64_t(row) * a.g + warp) * a.step.max_blocks + block) -
                                   whole);
    memory.expected[warp][lane] = expected > 0 ? expected : 0;  // a NaN has no part in it
  }
  __syncthreads();
  if (warp > 0) return 0;
  float expected = 0;
  for (int h = 0; h < a.g; ++h) expected += memory.expected[h][lane];
  unsigned same = 0;  // lanes with the same block
#if __CUDA_ARCH__ >= 700
  same = __match_any_sync(kAllLanes, block);
#else
#pragma unroll 1
  for (int i = 0; i < 32; ++i)
    if (__shfl_sync(kAllLanes, block, i) == block) same |= 1u << i;
#endif
  const bool first = expected > 0 && __ffs(static_cast<int>(same)) - 1 == lane;
  const unsigned firsts = __ballot_sync(kAllLanes, first);
  if (first) {
    const int rank = __popc(firsts & ((1u << lane) - 1));
    order[n_before + rank] = block;
    a.scratch.sample_weights[int64_t(row) * kMaxSamples + rank] =
        log2f(static_cast<float>(__popc(same)) / expected);
  }
  return __popc(firsts);
}

// kHeads: the most heads that a CTA has.
template <int kHeads>
__global__ __launch_bounds__(kThreads) void choose_kernel(const __grid_constant__ ChooseArgs a) {
  __shared__ ChooseMemory memory;
  const int row = blockIdx.x / a.ctas, cta = blockIdx.x % a.ctas, thread = threadIdx.x,
            lane = thread % 32, warp = thread / 32;
  allow_next();
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
  float unread[kHeads] = {}, weight[kEach] = {};
#pragma unroll 1
  for (int first = 0; first < r.n_candidates; first += kChunk) {
    const int left = r.n_candidates - first - own_first, buffer = first / kChunk % 2;
    const uint4(*const keeps)[kWarps] = memory.keeps[buffer];
    bool keep[kEach] = {};
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
  keep_unread(unread, own_heads, memory);
  sample_heads<kHeads>(a, r, row, cta, log2_factor, own_heads, masses_of, weight, memory);
  row_barrier();  // the lists of all heads are there
  if (cta > 0) return;
  const int n_sampled = enter_samples(a, row, r.n_forced + n_kept, order, memory);
  if (thread == 0) a.scratch.ranks[row] = {n_kept, n_sampled, 0};
}

__global__ void drop_kernel(RankState* ranks, int rows) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row < rows) ranks[row].sampled = 0;
}

}  // namespace

Status choose_orders(const DecodeStep& step, const ShareRule& share, const DecodeScratch& scratch,
                     cudaStream_t stream) {
  ChooseArgs a{};
  a.step = step;
  a.share = share;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  a.each = samples_each(a.g);
  // The code that the device runs may be that of an older generation.
  cudaFuncAttributes about;
  if (Status s = cudaFuncGetAttributes(&about, reinterpret_cast<const void*>(choose_kernel<1>));
      s != cudaSuccess)
    return s;
  const bool clusters = about.ptxVersion >= 90;
  a.ctas = clusters ? padded_group(a.g) : 1;  // at most kMaxCtas
  const int rows = step.n * step.n_kv_heads;
  const dim3 grid(a.ctas * rows);
  // Kernels for few heads have fewer registers.
  if (!clusters)
    return launch(a.g > kMaxGroup ? choose_kernel<kMaxHeads> : choose_kernel<kMaxGroup>, a, grid,
                  kThreads, step.overlap, stream);
  return launch_clusters(a.g > 2 * kMaxCtas ? choose_kernel<kMaxHeads / kMaxCtas>
                         : a.g > kMaxCtas   ? choose_kernel<2>
                                            : choose_kernel<1>,
                         a, grid, kThreads, a.ctas, step.overlap, stream);
}

Status drop_samples(const DecodeStep& step, const DecodeScratch& scratch, cudaStream_t stream) {
  const int rows = step.n * step.n_kv_heads;
  drop_kernel<<<(rows + 127) / 128, 128, 0, stream>>>(scratch.ranks, rows);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
