// The attention kernel of a decode step. An item is one part of one slice of a row
// (decode_parts.h); most rows are one item. kRowCtas CTAs that run together, a row group, attend to
// one item at a time. If a row has n warps, warp i takes its positions i, i + n, i + 2n, ... The
// last CTA of a slice merges the states of all its parts, and the last slice the states of the
// slices.
//
// If more rows step than can run together, CTAs next to the row groups fetch blocks for the waiting
// rows (fetch_ahead). They enter these blocks in the page tables and mark them in the rows' orders.
// A row group reads the order of its row once these CTAs are done with the row.
#pragma once
#include "kernels/cuda/attend/finish_row.cuh"
#include "kernels/cuda/attend/launch_rows.cuh"
#include "kernels/cuda/attend/patience.cuh"
#include "kernels/cuda/attend/row_reads.cuh"

namespace riffle::cuda {

// Runs on the CTAs that are in no row group. Fetches the blocks that waiting rows are likely to
// read, so that the link has work while groups compute. Rows are served in their order; a row's
// group waits until these CTAs are done with the row. counts: a count for each warp, in shared
// memory. reads_of: as row_reads.
template <class Reads>
__device__ inline void fetch_ahead(const AttendArgs& a, int loader, int (*counts)[2],
                                   Reads&& reads_of) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32,
            n_rows = a.step.n * a.step.n_kv_heads;
  const Pool& pool = a.step.pool;
  const uint32_t now = *pool.now;
  for (int row = a.n_groups + loader; row < n_rows; row += a.n_loaders) {
    const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
    const RowReads reads = reads_of(sequence, row);
    const int64_t entry0 = head_index(a.step, row) * sequence.max_blocks;
    int32_t* order = a.order + int64_t(row) * a.step.max_blocks;
    int n_brought = 0;
    for (int base = 0; base < reads.likely; base += kCtaThreads) {
      const int p = base + lane * kCtaWarps + warp;
      int block = reads.geometry.n_blocks - 1, to = -1;  // the last block is never in a slot
      if (p < reads.likely) block = __ldcg(order + p);
      const int64_t entry = entry0 + block;
      int32_t* place = pool.page_tables[table_of(sequence, block)] + entry;
      const std::byte* from = nullptr;
      if (block != reads.geometry.n_blocks - 1) {
        const unsigned long long key = pool_key(table_of(sequence, block), entry);
        const int slot = __ldcg(place);
        const bool here =
            slot >= 0 && claim_slot(pool, slot, key, now,
                                    *static_cast<volatile unsigned long long*>(pool.words + slot));
        if (!here) {
          from = sequence.host[entry];
          to = take_victim(pool, key, now);
        }
      }
      const unsigned lanes = __ballot_sync(kAllLanes, to >= 0);
      if (lanes == 0) continue;
      n_brought += __popc(lanes);
      bring<16>(pool, a.step.layout.block_bytes, lanes, from, to);
      if (to >= 0) {
        *place = to;
        order[p] = block | kBroughtBit;
      }
    }
    if (lane == 0) counts[warp][0] = n_brought;
    __threadfence();
    __syncthreads();
    if (thread == 0) {
      uint32_t sum = 1;
      for (int w = 0; w < kCtaWarps; ++w) sum += static_cast<uint32_t>(counts[w][0]);
      __threadfence();
      atomicAdd(a.scratch.counters + int64_t(row) * kCounterStride + kAhead, sum);
    }
    __syncthreads();
  }
}

// Waits until fetch_ahead is done with the row, if it serves this row. In one warp of the row,
// brought gets the number of blocks that it has fetched. Returns false if the wait was given up
// (DecodeStep::fault). All threads call it.
__device__ inline bool await_fetched(const AttendArgs& a, int row, int slice, int& brought) {
  if (a.n_loaders == 0 || row < a.n_groups) return true;
  const uint32_t* counter = a.scratch.counters + int64_t(row) * kCounterStride + kAhead;
  const bool late = threadIdx.x == 0 && !await(counter, 1, a.step.fault);
  if (__syncthreads_or(late)) return false;
  if (slice == 0 && blockIdx.x % kRowCtas == 0 && threadIdx.x / 32 == 0)
    brought = static_cast<int>(__ldcg(counter)) - 1;
  return true;
}

// Returns the counter of CTAs of a slice's first part that have fetched.
__device__ inline uint32_t* first_part_of(const AttendArgs& a, int row, int slice) {
  return a.scratch.counters + int64_t(row) * kCounterStride + kFirstPart + slice;
}
// Waits until the CTAs of the slice's first part have fetched, so that no block is fetched twice.
// The first part is an earlier item, so its group never waits for this one. Returns false if the
// wait was given up. All threads call it.
__device__ inline bool await_first_part(const AttendArgs& a, int row, int slice) {
  const uint32_t* counter = first_part_of(a, row, slice);
  const bool late = threadIdx.x == 0 && !await(counter, kRowCtas, a.step.fault);
  return !__syncthreads_or(late);
}

// Attends to an item. Returns false if a wait for other CTAs was given up.
template <class T, int D, int G>
__device__ inline bool attend_item(const AttendArgs& a, int number, uint4* ring,
                                   AttendMemory<T, D, G>& memory) {
  using Warp = RowWarp<T, D, G>;
  const int warp = threadIdx.x / 32;
  const Item item = item_of(a, number);
  const int row = item.row;
  if (threadIdx.x % 32 == 0) {
    memory.sequence[warp] = a.step.sequences[row / a.step.n_kv_heads];
    // Parts of a row read blocks that the first one has just entered, as rows of a sequence do.
    if (a.parts > 1) memory.sequence[warp].many_rows = true;
  }
  __syncwarp();
  const StepSequence& sequence = memory.sequence[warp];
  int likely = 0;
  {
    const RowReads reads = row_reads(a, sequence, row);
    likely = reads.likely;
    if (item.slice >= reads.geometry.slices) return true;
    if (threadIdx.x % 32 == 0) memory.geometry[warp] = reads.geometry;
  }
  __syncwarp();
  const RowGeometry& r = memory.geometry[warp];
  const int n_total = r.n_total;
  Warp w(a, sequence, r, memory, ring + warp * Warp::ring_chunks(a), item);
  if (!await_fetched(a, row, w.slice(), w.misses)) return false;
  const bool fetches_once = a.parts > 1 && likely > 0;
  if (fetches_once && w.part() > 0 && !await_first_part(a, row, w.slice())) return false;
  w.look_up(n_total);
  w.claim(n_total);
  // Missing blocks come first only if rows have two parts, if loaders run, or if the ring holds one
  // block. Otherwise fill requests a missing block while the warp attends to the blocks before it.
  if (likely > 0 && (fetches_once || a.n_loaders > 0 || a.n_stages == 1)) w.fetch(likely);
  w.fill(n_total, n_total, n_total);
  w.block_.split_q(memory.block, a.scale);
  __syncthreads();
  if (fetches_once && w.part() == 0 && threadIdx.x == 0) arrive(first_part_of(a, row, w.slice()));
  w.block_.begin(memory.block);
  for (;;) {
    w.fill(n_total, n_total, n_total);
    const int p = w.own(w.used);
    if (p >= n_total) break;
    w.scores();
    w.values();
    w.keep_result(p);
  }
  wait_async(0);  // requests that are no longer needed
  w.count_waste();
  __syncthreads();
  finish_row<T, D, G>(a, w, n_total, ring, memory);
  return true;
}

template <class T, int D, int G>
__global__ __launch_bounds__(kCtaThreads) void attend_kernel(const __grid_constant__ AttendArgs a) {
  extern __shared__ __align__(128) uint4 ring[];
  // Bytes: shared memory has no constructors.
  __shared__ alignas(AttendMemory<T, D, G>) std::byte storage[sizeof(AttendMemory<T, D, G>)];
  auto& memory = reinterpret_cast<AttendMemory<T, D, G>&>(storage);
  // The next kernel may start once every CTA of this one runs, so it keeps none of them from
  // starting.
  allow_next();
  wait_for_earlier();
  const int n_items = items_of_slice(a) * a.slices, group = blockIdx.x / kRowCtas;
  if (group >= a.n_groups)
    return fetch_ahead(a, static_cast<int>(blockIdx.x) - a.n_groups * kRowCtas, memory.counts,
                       [&](const StepSequence& s, int row) { return row_reads(a, s, row); });
  for (int item = group; item < n_items; item += a.n_groups) {
    if (!attend_item<T, D, G>(a, item, ring, memory)) return;
    __syncthreads();  // before the next item uses the shared memory
  }
}

template <class T, int D, int G>
Status launch_attend(const AttendArgs& a, const DeviceLimits& limits, cudaStream_t stream) {
  RowTraits traits;
  traits.selects = !a.step.rule.everything;
  traits.together = traits.selects && a.parts > 1;
  return launch_rows<RowWarp<T, D, G>>(attend_kernel<T, D, G>, a, traits, limits, stream);
}

// Tells whether the kernel has room for blocks of this layout.
template <class T, int D, int G>
Status attend_fits(const KvLayout& layout, const DeviceLimits& limits) {
  RingSize ring;
  return ring_of<RowWarp<T, D, G>>(reinterpret_cast<const void*>(attend_kernel<T, D, G>), layout,
                                   limits, ring);
}

}  // namespace riffle::cuda
