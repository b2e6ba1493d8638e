// Parts that the kernels of decode attention share: a row's geometry, the pool protocol, small warp
// helpers.
#pragma once
#include <cuda_fp16.h>

#include <climits>

#include "kernels/cuda/attend/decode_parts.h"

namespace riffle::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;

// ---- rows

// The device's RowPlan (select/selector.h): the blocks that a row holds, the forced ones, and how
// many positions it may read.
struct RowGeometry {
  bool everything;  // all that is visible, in token order: the row has no order in the scratch
  int n_tokens, n_blocks, n_full;
  int sinks, recent, n_forced;
  int first_seen;           // token; above 0 where RowRule::window leaves some out
  int first_block;          // first block that holds a visible token
  int first, n_candidates;  // candidates: blocks [first, first + n_candidates)
  int n_total;              // positions the row may read
  int first_sample;         // position of the first sample
  int slices;               // decode_parts.h slices_of; 1 where a kernel has none
};

__device__ inline bool row_reads_everything(const RowRule& rule, int n_tokens) {
  return rule.everything || n_tokens < rule.everything_below;
}

// Returns the geometry, with n_total counting all candidates.
__device__ inline RowGeometry row_geometry(const RowRule& rule, int n_tokens, int block_size) {
  RowGeometry r;
  r.slices = 1;
  r.first_sample = INT_MAX;
  r.n_tokens = n_tokens;
  r.n_blocks = (n_tokens + block_size - 1) / block_size;
  r.n_full = r.n_blocks - 1;
  r.first_seen = r.first_block = 0;
  r.everything = row_reads_everything(rule, n_tokens);
  if (r.everything) {
    if (rule.window > 0) r.first_seen = max(0, n_tokens - rule.window);
    r.first_block = r.first_seen / block_size;
    r.sinks = r.n_forced = r.n_total = r.n_blocks - r.first_block;
    r.recent = 0;
    r.first = r.n_blocks;
    r.n_candidates = 0;
    return r;
  }
  r.sinks = min(rule.sink_blocks, r.n_full);
  r.recent = min(rule.recent_blocks, r.n_full - r.sinks);
  r.n_forced = r.sinks + r.recent + 1;
  r.first = r.sinks;
  r.n_candidates = r.n_full - r.recent - r.sinks;
  r.n_total = r.n_forced + r.n_candidates;
  return r;
}

// The forced block at a position below n_forced.
__device__ inline int forced_block(const RowGeometry& r, int position) {
  return position < r.sinks ? r.first_block + position : r.n_full - r.recent + position - r.sinks;
}

// Return the numbers (KvShape) of the head and the index row that a row reads, and of the row
// itself among the rows of all layers.
__device__ inline int64_t head_index(const DecodeStep& step, int row) {
  return step.first_head + row % step.n_kv_heads;
}
__device__ inline int64_t index_row(const DecodeStep& step, int row) {
  return step.first_index + row % step.n_kv_heads;
}
__device__ inline int64_t row_index(const DecodeStep& step, int row) {
  return step.first_row + row % step.n_kv_heads;
}

// Returns the newest block of the head that a row reads.
__device__ inline const std::byte* tail_of(const DecodeStep& step, const StepSequence& sequence,
                                           int row) {
  return sequence.tail + step.tail_offset + row % step.n_kv_heads * step.layout.block_bytes;
}

// ---- warps

// Sums v[0..N) over aligned groups of L lanes, splitting the values among the lanes on the way:
// each exchange halves the values of a lane while there is more than one. Then v[i] of lane s
// (within its group) is the sum of value s * N / L + i; for N < L, L / N neighbours hold the same
// one.
template <int N, int L>
__device__ inline void reduce_split(float (&v)[N], int lane) {
  int n = N;
#pragma unroll
  for (int o = L / 2; o > 0; o /= 2) {
    if (n > 1) {
      n /= 2;
      const bool upper = lane & o;
#pragma unroll
      for (int i = 0; i < N / 2; ++i)
        if (i < n) {
          const float send = upper ? v[i] : v[i + n], keep = upper ? v[i + n] : v[i];
          v[i] = keep + __shfl_xor_sync(kAllLanes, send, o);
        }
    } else {
      v[0] += __shfl_xor_sync(kAllLanes, v[0], o);
    }
  }
}

__device__ inline void widen(const uint4& chunk, float (&out)[8]) {
  const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
    out[2 * i] = pair.x;
    out[2 * i + 1] = pair.y;
  }
}
__device__ inline void widen(const uint4& chunk, float (&out)[4]) {
  out[0] = __uint_as_float(chunk.x), out[1] = __uint_as_float(chunk.y);
  out[2] = __uint_as_float(chunk.z), out[3] = __uint_as_float(chunk.w);
}

// ---- the pool (struct Pool)

__device__ inline std::byte* slot_at(const Pool& pool, int64_t slot) {
  return pool.slots + slot * pool.slot_bytes;
}

// The table that names a block of a sequence.
__device__ inline int table_of(const StepSequence& s, int block) {
  return block < s.prefix_blocks ? s.prefix_table : s.table;
}
// Tells whether the slot holds this key. If so, the slot keeps it during this step. word: the value
// of words[slot] last seen.
__device__ inline bool claim_slot(const Pool& pool, int slot, unsigned long long key, uint32_t now,
                                  unsigned long long word) {
  while (word >> kStampBits == key >> kStampBits) {
    if (word ==
        (key | now)) {  // a row of another sequence holds it, and may have fetched it in this step
      __threadfence();
      return true;
    }
    const unsigned long long seen = atomicCAS(pool.words + slot, word, key | now);
    if (seen == word) return true;
    word = seen;
  }
  return false;
}
// Returns a slot for a block that has none: the next victim that this step has not used. -1: none
// is left.
__device__ inline int take_victim(const Pool& pool, unsigned long long key, uint32_t now) {
  const int n = *pool.n_victims;
  while (*static_cast<volatile int32_t*>(pool.next_victim) < n) {
    const int i = atomicAdd(pool.next_victim, 1);
    if (i >= n) break;
    const int slot = pool.victims[i];
    const unsigned long long word = *static_cast<volatile unsigned long long*>(pool.words + slot);
    if ((word & kMaxStamp) == now) continue;
    if (atomicCAS(pool.words + slot, word, key | now) != word)
      continue;  // its owner has just claimed it again
    constexpr unsigned long long kEntryMask = (1ull << 30) - 1, kFree = kFreeWord >> kStampBits;
    const unsigned long long loser = word >> kStampBits;
    if (loser != kFree) atomicCAS(pool.page_tables[loser >> 30] + (loser & kEntryMask), slot, -1);
    return slot;
  }
  return -1;
}

}  // namespace riffle::cuda
