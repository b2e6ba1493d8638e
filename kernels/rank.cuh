// Ranking by one block of threads: puts the next chunk of a row's candidates in order, exactly.
//
// A bucket sort on the keys' own range: bins of equal width between the least and the largest key that is left; the leading
// bins that hold at most kRankChunk keys together are the chunk. Keys are scattered to their bins, and each counts the
// smaller ones in its bin. If the first bin alone is too full, it is split again.
#pragma once
#include "kernels/decode.cuh"

namespace riffle::cuda {

inline constexpr int kRankChunk = 1024, kRankBins = 2048;

struct RankMemory {
  unsigned long long list[kRankChunk];
  unsigned long long low[32], high[32], last;
  uint32_t bins[kRankBins];
  uint32_t sums[32];
  int boundary;
  uint32_t taken;
};

// Exclusive sum over all threads' values in thread order; sums: [32] in shared memory. Ends with a barrier.
template <int kThreads>
__device__ inline uint32_t block_exclusive_sum(uint32_t value, uint32_t* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
#pragma unroll
  for (int o = 1; o < 32; o *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += below;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  uint32_t before = 0;
  for (int w = 0; w < warp; ++w) before += sums[w];
  __syncthreads();
  return before + sum - value;
}

// Extends order[0..state.ranked) by 1 to kRankChunk candidates (state.ranked < n). scores: [n], of blocks first.. ; may be
// written by this block just before (after a barrier) or by earlier kernels. All threads call it with equal arguments.
template <int kThreads>
__device__ inline RankState rank_chunk(const float* scores, int first, int n, const RankState& state, int32_t* order,
                                       RankMemory& memory) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const auto key_of = [&](int i) { return rank_key(scores[i], static_cast<uint32_t>(first + i)); };
  unsigned long long low = ~0ull, high = 0;
  for (int i = thread; i < n; i += kThreads) {
    const unsigned long long key = key_of(i);
    if (state.ranked > 0 && key <= state.last) continue;
    low = min(low, key);
    high = max(high, key);
  }
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    low = min(low, __shfl_xor_sync(kAllLanes, low, o));
    high = max(high, __shfl_xor_sync(kAllLanes, high, o));
  }
  if (lane == 0) memory.low[warp] = low, memory.high[warp] = high;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) low = min(low, memory.low[w]), high = max(high, memory.high[w]);

  int shift;
  for (;;) {
    const int bits = 64 - __clzll(static_cast<long long>(high - low));
    shift = max(0, bits - 11);
    for (int b = thread; b < kRankBins; b += kThreads) memory.bins[b] = 0;
    if (thread == 0) memory.boundary = 0, memory.taken = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kThreads) {
      const unsigned long long key = key_of(i);
      if (key >= low && key <= high) atomicAdd(&memory.bins[(key - low) >> shift], 1u);
    }
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
    if (lane == 0) atomicAdd(&memory.boundary, whole), atomicMax(&memory.taken, taken);
    __syncthreads();
    if (memory.taken > 0) break;
    // The bins before the boundary are empty, and it holds several keys, all different: it can be split.
    low += static_cast<unsigned long long>(memory.boundary) << shift;
    high = min(high, low + ((1ull << shift) - 1));
    __syncthreads();
  }
  const uint32_t boundary = memory.boundary, taken = memory.taken;
  for (int i = thread; i < n; i += kThreads) {
    const unsigned long long key = key_of(i);
    if (key < low || key > high) continue;
    const unsigned long long bin = (key - low) >> shift;
    if (bin < boundary) memory.list[atomicAdd(&memory.bins[bin], 1u)] = key;  // bins[] move from first to end
  }
  __syncthreads();
  for (uint32_t i = thread; i < taken; i += kThreads) {
    const unsigned long long key = memory.list[i], bin = (key - low) >> shift;
    const uint32_t begin = bin > 0 ? memory.bins[bin - 1] : 0, end = memory.bins[bin];
    uint32_t at = begin;
    for (uint32_t j = begin; j < end; ++j) at += memory.list[j] < key;
    order[state.ranked + at] = static_cast<int32_t>(key & 0xffffffffu);
    if (at == taken - 1) memory.last = key;
  }
  __syncthreads();
  const RankState next = {state.ranked + static_cast<int32_t>(taken), memory.last};
  __syncthreads();
  return next;
}

}  // namespace riffle::cuda
