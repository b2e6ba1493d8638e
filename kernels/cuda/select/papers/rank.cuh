// Ranking by one block of threads: puts the next chunk of a row's candidates in order, exactly.
//
// A bucket sort: bins of equal width lie between the best and the worst score that is left; the
// leading bins that hold at most kRankChunk keys together are the chunk. Keys are scattered to
// their bins, and each counts the smaller ones in its bin. If the first bin alone is too full, the
// sort continues with bins over the keys themselves, which are split until none is.
#pragma once
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/papers/paper_parts.h"

namespace riffle::cuda {

// Returns row_geometry with n_total limited to the budget.
__device__ inline RowGeometry ranked_geometry(const RowRule& rule, const RankRule& rank,
                                              int n_tokens, int block_size) {
  RowGeometry r = row_geometry(rule, n_tokens, block_size);
  if (r.everything || rank.progressive()) return r;
  const double tokens = rank.budget <= 1 ? rank.budget * n_tokens : rank.budget;
  const double blocks = fmin(ceil(tokens / block_size), double(r.n_blocks));
  r.n_total = r.n_forced + min(max(int(blocks) - r.n_forced, 0), r.n_candidates);
  return r;
}

// Larger score first, then lower index: one ascending key holds both (select/ranking.cpp).
__device__ inline unsigned long long rank_key(float score, uint32_t index) {
  uint32_t bits = __float_as_uint(score);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(~bits) << 32 | index;
}

inline constexpr int kRankChunk = 1024, kRankBins = 2048;

struct RankMemory {
  unsigned long long list[kRankChunk];
  unsigned long long low[32], high[32], last;
  uint32_t bins[kRankBins];
  uint32_t sums[32];
  int boundary;
  uint32_t taken;
};

// Exclusive sum over all threads' values in thread order; sums: [32] in shared memory. Ends with a
// barrier.
template <int kThreads>
__device__ inline uint32_t block_exclusive_sum(uint32_t value, uint32_t* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll 1
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += below;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  uint32_t before = 0;
#pragma unroll 1
  for (int w = 0; w < warp; ++w) before += sums[w];
  __syncthreads();
  return before + sum - value;
}

__device__ inline float score_of_key(unsigned long long key) {  // rank_key backwards
  const uint32_t flipped = ~static_cast<uint32_t>(key >> 32);
  return __uint_as_float(flipped & 0x80000000u ? flipped & 0x7fffffffu : ~flipped);
}

// Bins of equal width in score, best first. Scores of a head lie near each other, so few share a
// bin.
struct ScoreBins {
  float high, inverse;
  __device__ int bin(unsigned long long key) const {
    const float b = (high - score_of_key(key)) * inverse;
    return b >= 0 ? min(static_cast<int>(b), kRankBins - 1) : 0;  // false for NaN, too
  }
  __device__ bool inside(unsigned long long) const { return true; }
};
// Bins of equal width in the key itself, all different: keys of one bin can always be split
// further.
struct KeyBins {
  unsigned long long low, high;
  int shift;
  __device__ int bin(unsigned long long key) const {
    return static_cast<int>((key - low) >> shift);
  }
  __device__ bool inside(unsigned long long key) const { return key >= low && key <= high; }
};

// Counts keys into memory.bins, which become their exclusive sums. memory.boundary: number of
// leading bins that hold at most kRankChunk keys together; memory.taken: number of these keys.
// for_each calls back with every key that is left.
template <int kThreads, class Bins, class ForEach>
__device__ inline void count_bins(const Bins& bins, ForEach&& for_each, RankMemory& memory) {
  const int thread = threadIdx.x;
  for (int b = thread; b < kRankBins; b += kThreads) memory.bins[b] = 0;
  if (thread == 0) memory.boundary = 0, memory.taken = 0;
  __syncthreads();
  for_each([&](unsigned long long key) {
    if (bins.inside(key)) atomicAdd(&memory.bins[bins.bin(key)], 1u);
  });
  __syncthreads();
  constexpr int kMine = kRankBins / kThreads;
  uint32_t count[kMine], total = 0;
#pragma unroll
  for (int b = 0; b < kMine; ++b) total += count[b] = memory.bins[thread * kMine + b];
  uint32_t at = block_exclusive_sum<kThreads>(total, memory.sums);
  int whole = 0;  // bins that fit with all before them
  uint32_t taken = 0;
#pragma unroll
  for (int b = 0; b < kMine; ++b) {
    memory.bins[thread * kMine + b] = at;
    at += count[b];
    if (at <= kRankChunk) ++whole, taken = at;
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    whole += __shfl_xor_sync(kAllLanes, whole, o);
    taken = max(taken, __shfl_xor_sync(kAllLanes, taken, o));
  }
  if (thread % 32 == 0) atomicAdd(&memory.boundary, whole), atomicMax(&memory.taken, taken);
  __syncthreads();
}

// Puts the keys of the leading bins into order, each after the smaller ones.
template <int kThreads, class Bins, class ForEach>
__device__ inline RankState place_bins(const Bins& bins, ForEach&& for_each, int ranked,
                                       int32_t* order, RankMemory& memory) {
  const int boundary = memory.boundary;
  const uint32_t taken = memory.taken;
  for_each([&](unsigned long long key) {
    if (!bins.inside(key)) return;
    const int bin = bins.bin(key);
    if (bin < boundary)
      memory.list[atomicAdd(&memory.bins[bin], 1u)] = key;  // bins[] move from first to end
  });
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < taken; i += kThreads) {
    const unsigned long long key = memory.list[i];
    const int bin = bins.bin(key);
    const uint32_t begin = bin > 0 ? memory.bins[bin - 1] : 0, end = memory.bins[bin];
    uint32_t at = begin;
#pragma unroll 1
    for (uint32_t j = begin; j < end; ++j) at += memory.list[j] < key;
    order[ranked + at] = static_cast<int32_t>(key & 0xffffffffu);
    if (at == taken - 1) memory.last = key;
  }
  __syncthreads();
  const RankState next = {ranked + static_cast<int32_t>(taken), 0, memory.last};
  __syncthreads();
  return next;
}

// Serves scores that are too similar for ScoreBins. Not inlined: its code is seldom needed in the
// instruction cache.
template <int kThreads>
__device__ __noinline__ RankState rank_by_keys(const float* scores, int first, int n,
                                               RankState state, unsigned long long low,
                                               unsigned long long high, int32_t* order,
                                               RankMemory* memory) {
  const auto for_each = [&](auto&& take) {
#pragma unroll 1
    for (int i = threadIdx.x; i < n; i += kThreads) {
      const unsigned long long key = rank_key(scores[i], static_cast<uint32_t>(first + i));
      if (state.ranked == 0 || key > state.last) take(key);
    }
  };
  for (;;) {
    const KeyBins bins = {low, high, max(0, 64 - __clzll(static_cast<long long>(high - low)) - 11)};
    count_bins<kThreads>(bins, for_each, *memory);
    if (memory->taken > 0)
      return place_bins<kThreads>(bins, for_each, state.ranked, order, *memory);
    // The bins before the boundary are empty, and it holds several keys, all different: it can be
    // split.
    low += static_cast<unsigned long long>(memory->boundary) << bins.shift;
    high = min(high, low + ((1ull << bins.shift) - 1));
    __syncthreads();
  }
}

// Extends order[0..state.ranked) by 1 to kRankChunk candidates (state.ranked < n). scores: [n], of
// blocks first.. ; may be written by this block just before (after a barrier) or by earlier
// kernels. All threads call it with equal arguments.
template <int kThreads>
__device__ inline RankState rank_chunk(const float* scores, int first, int n,
                                       const RankState& state, int32_t* order, RankMemory& memory) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  // Enough loads at once; more code would cost more than it saves, since other kernels empty the
  // instruction cache.
  const auto for_each = [&](auto&& take) {
#pragma unroll 4
    for (int i = thread; i < n; i += kThreads) {
      const unsigned long long key = rank_key(scores[i], static_cast<uint32_t>(first + i));
      if (state.ranked == 0 || key > state.last) take(key);
    }
  };

  unsigned long long low = ~0ull, high = 0;
  for_each([&](unsigned long long key) {
    low = min(low, key);
    high = max(high, key);
  });
#pragma unroll 1
  for (int o = 16; o > 0; o /= 2) {
    low = min(low, __shfl_xor_sync(kAllLanes, low, o));
    high = max(high, __shfl_xor_sync(kAllLanes, high, o));
  }
  if (lane == 0) memory.low[warp] = low, memory.high[warp] = high;
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < kThreads / 32; ++w)
    low = min(low, memory.low[w]), high = max(high, memory.high[w]);

  const float best = score_of_key(low), range = best - score_of_key(high);
  const float inverse = static_cast<float>(kRankBins) / range;
  if (range > 0 && inverse < 1e30f && best < 1e30f && best > -1e30f) {
    const ScoreBins bins = {best, inverse};
    count_bins<kThreads>(bins, for_each, memory);
    if (memory.taken > 0) return place_bins<kThreads>(bins, for_each, state.ranked, order, memory);
    __syncthreads();
  }
  return rank_by_keys<kThreads>(scores, first, n, state, low, high, order, &memory);
}

}  // namespace riffle::cuda
