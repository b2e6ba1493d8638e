// The attention kernel of a decode step: a row is attended by kRowCtas CTAs that run together (a row group), each warp taking
// the positions p with p % kRowWarps == its own number, in order. Progressive rows test between microbatches behind a
// barrier of their group; blocks beyond the test are requested before it (at most one microbatch).
//
// A warp's blocks stream through a ring of stages in shared memory: looked up (order -> page table -> word), claimed
// (compare-and-swap of the slot's word), issued (cp.async from the slot, the tail, or pinned host memory), consumed.
#pragma once
#include <type_traits>

#include "kernels/attend_block.cuh"
#include "kernels/rank.cuh"

namespace riffle::cuda {

enum Source : int { kNone = 0, kHit = 1, kMiss = 2, kTail = 3, kGiven = 4 };

// Shared memory beside the ring.
template <int G>
struct AttendMemory {
  alignas(16) float p[kCtaWarps][64 * G];
  RankMemory rank;
  double left[kCtaWarps][kMaxGroup];
  HeadStats stats[kCtaWarps][G];
  float m[kCtaWarps][G], s[kCtaWarps][G];
  float weights[kRowCtas][G], norm[G];
  int2 stages[kCtaWarps][4];  // block, Source
  int counts[kCtaWarps][2];
  int decision;
};

__device__ inline void copy_async(void* shared, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
#else
  *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ inline void commit_async() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Until at most `pending` of this lane's groups are under way.
__device__ inline void wait_async(int pending) {
#if __CUDA_ARCH__ >= 800
  if (pending <= 0) asm volatile("cp.async.wait_group 0;" ::: "memory");
  else if (pending == 1) asm volatile("cp.async.wait_group 1;" ::: "memory");
  else asm volatile("cp.async.wait_group 2;" ::: "memory");
#else
  (void)pending;
#endif
}

// One barrier of a row group, by one thread of each CTA after a __syncthreads. target: arrivals of all barriers so far.
__device__ inline void group_barrier(uint32_t* counter, uint32_t target) {
  __threadfence();
  atomicAdd(counter, 1u);
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while (seen < target);
  __threadfence();
}

// A warp's way through a row's positions.
template <class T, int D, int G>
struct RowWarp {
  using Shape = BlockShape<T, D, G>;

  const AttendArgs& a;
  const StepSequence& sequence;
  const RowGeometry& r;
  AttendMemory<G>& memory;
  uint4* ring;               // this warp's stages
  const int32_t* order;      // this row's
  int row, warp, lane, number;  // number: of the row's kRowWarps
  int64_t entry0;            // of block 0 in the tables
  const int32_t* page_table;
  uint32_t now;
  WarpState<T, D, G> state;
  float smallest, largest;   // block masses of head lane % G
  int lookups = 0, misses = 0;

  // Lane i knows of position number + kRowWarps * (looked + i):
  int looked = 0, block = -1, slot = -1, source = kNone;
  unsigned long long word = 0;
  const std::byte* from = nullptr;
  int issued = 0, used = 0;  // own positions that have been issued, consumed

  __device__ RowWarp(const AttendArgs& args, const StepSequence& s, const RowGeometry& geometry, AttendMemory<G>& m,
                     uint4* stages, int row_)
      : a(args), sequence(s), r(geometry), memory(m), ring(stages), row(row_) {
    warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    number = warp * kRowCtas + blockIdx.x % kRowCtas;  // neighbouring positions go to different CTAs
    order = a.order + int64_t(row) * a.step.max_blocks;
    entry0 = (int64_t(a.step.layer) * a.step.n_kv_heads + row % a.step.n_kv_heads) * sequence.max_blocks;
    const bool pool = !a.host_driven && a.step.pool.n_slots > 0;
    page_table = pool ? a.step.pool.page_tables[sequence.table] : nullptr;
    now = pool ? *a.step.pool.now : 0;
    smallest = INFINITY;
    largest = -INFINITY;
    state.m = -INFINITY;
    state.s = 0;
    const int d = a.step.layout.head_dim, sub = lane % Shape::kLanes;
    const float* q = a.step.q + int64_t(row) * a.group * d;
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < Shape::kValues; ++j) {
        const int x = (sub + j / Shape::kChunk * Shape::kLanes) * Shape::kChunk + j % Shape::kChunk;
        state.q[h][j] = h < a.group && x < d ? q[h * d + x] * a.scale : 0.0f;
        state.o[h][j] = 0;
      }
  }

  __device__ int position(int i) const { return number + kRowWarps * i; }
  __device__ int position_at(int i) const { return a.begin + (number - a.begin % kRowWarps + kRowWarps) % kRowWarps + kRowWarps * i; }
  __device__ int own(int i) const { return a.host_driven ? position_at(i) : position(i); }
  __device__ unsigned long long key(int b) const { return device_pool_key(sequence.table, entry0 + b); }

  // Finds out what lanes do not know yet of positions below `known`, whose blocks are in the order.
  __device__ void look_up(int known) {
    const int p = own(looked + lane);
    if (block >= 0 || p >= known) return;
    block = a.step.ranked.everything ? p : __ldcg(order + p);
    if (a.host_driven) {
      source = block == r.n_blocks - 1 ? kTail : kGiven;
      from = source == kTail ? tail() : a.sources[int64_t(row) * a.max_positions + (p - a.begin)];
      return;
    }
    slot = -1;
    source = kNone;
    if (block == r.n_blocks - 1) {
      source = kTail;
      from = tail();
    } else if (page_table != nullptr) {
      slot = __ldcg(page_table + entry0 + block);
      if (slot >= 0) word = *static_cast<volatile unsigned long long*>(a.step.pool.words + slot);
    }
  }
  __device__ const std::byte* tail() const {
    const int64_t i = int64_t(a.step.layer) * a.step.n_kv_heads + row % a.step.n_kv_heads;
    return sequence.tail + i * a.step.layout.block_bytes;
  }
  // Settles where positions below `limit` come from; hits are ours for this step.
  __device__ void claim(int limit) {
    if (block < 0 || source != kNone || own(looked + lane) >= limit) return;
    if (slot >= 0 && claim_slot(a.step.pool, slot, key(block), now, word)) {
      source = kHit;
      from = a.step.pool.slots + slot * a.step.layout.block_bytes;
    } else {
      source = kMiss;
      from = sequence.host[entry0 + block];
    }
  }

  __device__ int stage_chunks() const { return 2 * a.step.layout.block_size * Shape::kChunks; }
  __device__ int valid_tokens(int b) const {
    return min(r.n_tokens - b * a.step.layout.block_size, a.step.layout.block_size);
  }

  // Requests own position number `issued` into its stage.
  __device__ void issue(int known, int limit) {
    if (issued >= looked + 32) {
      looked = issued;
      block = -1;
      source = kNone;
      look_up(known);
      claim(limit);
    }
    const int holder = issued - looked, stage = issued % a.n_stages;
    const int b = __shfl_sync(kAllLanes, block, holder), kind = __shfl_sync(kAllLanes, source, holder);
    const auto base = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(from), holder));
    if (lane == 0) memory.stages[warp][stage] = make_int2(b, kind);
    const int n_valid = valid_tokens(b), block_size = a.step.layout.block_size;
    const int64_t row_bytes = int64_t(a.step.layout.head_dim) * sizeof(T);
    const int sub = lane % Shape::kLanes, token0 = lane / Shape::kLanes;
    uint4* to = ring + stage * stage_chunks();
#pragma unroll
    for (int c = 0; c < Shape::kPerLane; ++c) {
      const int chunk = sub + c * Shape::kLanes;
      const bool inside = chunk * Shape::kChunk < a.step.layout.head_dim;
#pragma unroll 4
      for (int t = token0; t < block_size; t += Shape::kTokens) {
        const bool valid = inside && t < n_valid;
        const std::byte* source_k = base + (valid ? t * row_bytes + chunk * 16 : 0);
        copy_async(to + t * Shape::kChunks + chunk, source_k, valid);
      }
#pragma unroll 4
      for (int t = token0; t < block_size; t += Shape::kTokens) {
        const bool valid = inside && t < n_valid;
        const std::byte* source_v = base + (valid ? a.step.layout.value_offset + t * row_bytes + chunk * 16 : 0);
        copy_async(to + (block_size + t) * Shape::kChunks + chunk, source_v, valid);
      }
    }
    commit_async();
    ++issued;
  }
  // Requests what the ring has room for, up to position `limit`.
  __device__ void fill(int known, int limit, int claimed) {
    while (issued < used + a.n_stages && own(issued) < limit) issue(known, claimed);
  }

  __device__ void consume() {
    wait_async(issued - used - 1);
    __syncwarp();
    const int stage = used % a.n_stages, p = own(used);
    const int2 what = memory.stages[warp][stage];
    uint4* k = ring + stage * stage_chunks();
    const int block_size = a.step.layout.block_size;
    const float l = attend_block<T, D, G>(k, k + block_size * Shape::kChunks, memory.p[warp], block_size,
                                          valid_tokens(what.x), state);
    if (p >= r.n_forced) {
      smallest = fminf(smallest, l);
      largest = fmaxf(largest, l);
    }
    if (what.y == kHit || what.y == kMiss) ++lookups;
    if (what.y == kMiss) {
      ++misses;
      if (page_table != nullptr) keep(what.x, k);
    }
    if (lane == 0 && a.step.order != nullptr && !a.host_driven)
      a.step.order[int64_t(row) * a.step.max_blocks + p] = what.x;
    __syncwarp();  // before the stage is written again
    ++used;
  }
  // A miss, from its stage into a victim's slot, if there is one.
  __device__ void keep(int b, const uint4* stage) {
    int to = 0;
    if (lane == 0) to = take_victim(a.step.pool, key(b), now);
    to = __shfl_sync(kAllLanes, to, 0);
    if (to < 0) return;
    std::byte* base = a.step.pool.slots + to * a.step.layout.block_bytes;
    const int block_size = a.step.layout.block_size, chunks = a.step.layout.head_dim / Shape::kChunk;
    const int64_t row_bytes = int64_t(a.step.layout.head_dim) * sizeof(T);
    for (int c = lane % Shape::kLanes; c < chunks; c += Shape::kLanes)
      for (int t = lane / Shape::kLanes; t < block_size; t += Shape::kTokens) {
        *reinterpret_cast<uint4*>(base + t * row_bytes + c * 16) = stage[t * Shape::kChunks + c];
        *reinterpret_cast<uint4*>(base + a.step.layout.value_offset + t * row_bytes + c * 16) =
            stage[(block_size + t) * Shape::kChunks + c];
      }
    // Nobody takes a slot stamped now, so only later steps read this entry, and later kernels see all of the above.
    if (lane == 0) const_cast<int32_t*>(page_table)[entry0 + b] = to;
  }

  // Lane states between launches of a host-driven step: [value][32].
  __device__ float* saved() const {
    return a.scratch.lane_states + (int64_t(row) * kRowWarps + number) * 32 * a.scratch.lane_floats + lane;
  }
  __device__ void load() {
    const float* at = saved();
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < Shape::kValues; ++j) state.o[h][j] = at[32 * (h * Shape::kValues + j)];
    state.m = at[32 * (G * Shape::kValues)];
    state.s = at[32 * (G * Shape::kValues + 1)];
    smallest = at[32 * (G * Shape::kValues + 2)];
  }
  __device__ void save() const {
    float* at = saved();
#pragma unroll
    for (int h = 0; h < G; ++h)
#pragma unroll
      for (int j = 0; j < Shape::kValues; ++j) at[32 * (h * Shape::kValues + j)] = state.o[h][j];
    at[32 * (G * Shape::kValues)] = state.m;
    at[32 * (G * Shape::kValues + 1)] = state.s;
    at[32 * (G * Shape::kValues + 2)] = smallest;
  }
};

// What this CTA's share (candidates i with i / kCtaThreads % kRowCtas == cta) of the blocks not attended may hold, for each
// head: sum of e^(bound - top) over those ranked after position `end` - 1. memory.left[.][h]; ends without a barrier.
template <int G>
__device__ inline void sum_left(const AttendArgs& a, const RowGeometry& r, int row, int end, AttendMemory<G>& memory) {
  const float* scores = a.scratch.scores + int64_t(row) * a.step.max_blocks;
  const int last_block = __ldcg(a.order + int64_t(row) * a.step.max_blocks + end - 1);
  const unsigned long long last = rank_key(__ldcg(scores + last_block - r.first), last_block);
  const int thread = threadIdx.x, cta = blockIdx.x % kRowCtas;
  double sum[G];
#pragma unroll
  for (int h = 0; h < G; ++h) sum[h] = 0;
  for (int i = cta * kCtaThreads + thread; i < r.n_candidates; i += kRowCtas * kCtaThreads) {
    if (rank_key(scores[i], static_cast<uint32_t>(r.first + i)) <= last) continue;
#pragma unroll
    for (int h = 0; h < G; ++h)
      if (h < a.group) {
        const float bound = a.scratch.bounds[(int64_t(row) * a.group + h) * a.step.max_blocks + i];
        sum[h] += exp(double(bound) - double(a.scratch.top[row * kMaxGroup + h]));
      }
  }
#pragma unroll
  for (int h = 0; h < G; ++h) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum[h] += __shfl_xor_sync(kAllLanes, sum[h], o);
    if (thread % 32 == 0) memory.left[thread / 32][h] = sum[h];
  }
}

// Publishes what this CTA has attended of positions below `end` into buffer 0 or 1 of the row. Warp 0 has done it on return.
template <class T, int D, int G>
__device__ inline void publish(const AttendArgs& a, const RowWarp<T, D, G>& w, int end, int buffer, AttendMemory<G>& memory) {
  if (w.lane < G) memory.stats[w.warp][w.lane] = {w.state.m, w.state.s, w.smallest, w.largest};
  const bool bounds = needs_bounds(a.step.ranked.stop);
  if (bounds && end > w.r.n_forced) sum_left<G>(a, w.r, w.row, end, memory);
  __syncthreads();
  if (w.warp == 0 && w.lane < a.group) {
    HeadStats x = memory.stats[0][w.lane];
    double left = memory.left[0][w.lane];
    for (int i = 1; i < kCtaWarps; ++i) x = merge_stats(x, memory.stats[i][w.lane]), left += memory.left[i][w.lane];
    const int64_t at = ((int64_t(w.row) * 2 + buffer) * kRowCtas + blockIdx.x % kRowCtas) * kMaxGroup + w.lane;
    __stcg(reinterpret_cast<float4*>(a.scratch.stats + at), make_float4(x.m, x.s, x.smallest, x.largest));
    if (bounds) __stcg(a.scratch.left + at, left);
  }
  if (w.warp == 0) __syncwarp();
}

// Merges the warps' states (fixed order), and in the last CTA of the row to come here the CTAs' (fixed order), into out.
template <class T, int D, int G>
__device__ inline void finish_row(const AttendArgs& a, RowWarp<T, D, G>& w, int n_read, uint4* ring, AttendMemory<G>& memory) {
  using Shape = BlockShape<T, D, G>;
  constexpr int kFours = G * D / 4;
  const int thread = threadIdx.x, cta = blockIdx.x % kRowCtas, sub = w.lane % Shape::kLanes;
  const int stage_floats = w.stage_chunks() * 4 * a.n_stages;  // of a warp's ring
  float* own = reinterpret_cast<float*>(ring) + w.warp * stage_floats;
#pragma unroll
  for (int h = 0; h < G; ++h)
#pragma unroll
    for (int j = 0; j < Shape::kValues; ++j) {
      float x = w.state.o[h][j];
#pragma unroll
      for (int o = Shape::kLanes; o < 32; o *= 2) x += __shfl_xor_sync(kAllLanes, x, o);
      if (w.lane < Shape::kLanes)
        own[h * D + (sub + j / Shape::kChunk * Shape::kLanes) * Shape::kChunk + j % Shape::kChunk] = x;
    }
  if (w.lane < G) memory.m[w.warp][w.lane] = w.state.m, memory.s[w.warp][w.lane] = w.state.s;
  if (w.lane == 0) memory.counts[w.warp][0] = w.lookups, memory.counts[w.warp][1] = w.misses;
  __syncthreads();

  float* cta_states = a.scratch.cta_states + int64_t(w.row) * kRowCtas * a.scratch.cta_floats;
  float* mine = cta_states + cta * a.scratch.cta_floats;
  if (thread < G) {
    float m = -INFINITY, s = 0;
    for (int i = 0; i < kCtaWarps; ++i) m = fmaxf(m, memory.m[i][thread]);
    for (int i = 0; i < kCtaWarps; ++i) {
      memory.weights[i][thread] = weight2(memory.m[i][thread], m);
      s += memory.s[i][thread] * memory.weights[i][thread];
    }
    __stcg(mine + G * D + thread, m);
    __stcg(mine + G * D + G + thread, s);
  }
  if (thread < 2) {
    int sum = 0;
    for (int i = 0; i < kCtaWarps; ++i) sum += memory.counts[i][thread];
    __stcg(a.scratch.cta_counts + (int64_t(w.row) * kRowCtas + cta) * 2 + thread, sum);
  }
  __syncthreads();
  for (int e = thread; e < kFours; e += kCtaThreads) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kCtaWarps; ++i) {
      const float4 x = reinterpret_cast<const float4*>(reinterpret_cast<const float*>(ring) + i * stage_floats)[e];
      const float f = memory.weights[i][4 * e / D];
      sum.x += f * x.x, sum.y += f * x.y, sum.z += f * x.z, sum.w += f * x.w;
    }
    __stcg(reinterpret_cast<float4*>(mine) + e, sum);
  }
  __threadfence();
  __syncthreads();
  uint32_t* arrived = a.scratch.counters + int64_t(w.row) * kCounterStride + 1;
  if (thread == 0) memory.decision = atomicAdd(arrived, 1u) == kRowCtas - 1;
  __syncthreads();
  if (!memory.decision) return;
  __threadfence();

  if (thread < G) {
    float m_of[kRowCtas], s_of[kRowCtas], m = -INFINITY, s = 0;
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      m_of[c] = __ldcg(cta_states + c * a.scratch.cta_floats + G * D + thread);
      s_of[c] = __ldcg(cta_states + c * a.scratch.cta_floats + G * D + G + thread);
    }
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) m = fmaxf(m, m_of[c]);
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float f = weight2(m_of[c], m);
      memory.weights[c][thread] = f;
      s += s_of[c] * f;
    }
    memory.norm[thread] = 1 / s;
    if (a.step.lse != nullptr && thread < a.group) a.step.lse[int64_t(w.row) * a.group + thread] = (m + log2f(s)) * kLn2;
  }
  if (thread == kCtaThreads - 1 && a.step.results != nullptr) {
    int lookups = 0, misses = 0;
    for (int c = 0; c < kRowCtas; ++c) {
      const int2 two = __ldcg(reinterpret_cast<const int2*>(a.scratch.cta_counts) + int64_t(w.row) * kRowCtas + c);
      lookups += two.x, misses += two.y;
    }
    a.step.results[w.row] = {w.r.n_blocks, n_read, lookups, misses};
  }
  __syncthreads();
  const int d = a.step.layout.head_dim;
  for (int e = thread; e < kFours; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    if (h >= a.group || x >= d) continue;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float4 part = __ldcg(reinterpret_cast<const float4*>(cta_states + c * a.scratch.cta_floats) + e);
      const float f = memory.weights[c][h];
      sum.x += f * part.x, sum.y += f * part.y, sum.z += f * part.z, sum.w += f * part.w;
    }
    const float f = memory.norm[h];
    sum.x *= f, sum.y *= f, sum.z *= f, sum.w *= f;
    *reinterpret_cast<float4*>(a.step.out + (int64_t(w.row) * a.group + h) * d + x) = sum;
  }
}

template <class T, int D, int G>
__device__ inline void attend_row(const AttendArgs& a, int row, uint32_t* barrier, uint32_t& epoch, uint4* ring,
                                  AttendMemory<G>& memory) {
  const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
  const Ranked& ranked = a.step.ranked;
  const RowGeometry r = row_geometry(ranked, sequence.n_tokens, a.step.layout.block_size);
  using Warp = RowWarp<T, D, G>;
  const int warp = threadIdx.x / 32, cta = blockIdx.x % kRowCtas;
  Warp w(a, sequence, r, memory, ring + warp * a.n_stages * 2 * a.step.layout.block_size * Warp::Shape::kChunks, row);

  if (a.host_driven) {
    if (a.load_states) w.load();
    const int end = min(a.end, r.n_total);
    w.look_up(end);
    while (w.own(w.used) < end) {
      w.fill(end, end, end);
      w.consume();
    }
    if (!a.merge) {
      w.save();
      publish<T, D, G>(a, w, end, 0, memory);
      return;
    }
    // What was read is known to the host, which has the order.
    __syncthreads();
    finish_row<T, D, G>(a, w, a.end, ring, memory);
    return;
  }

  const bool tests = a.tests;
  int end = tests ? min(r.n_forced + ranked.microbatch, r.n_total) : r.n_total;
  int known = r.n_total;
  RankState state{};
  if (tests) {
    state.ranked = __ldcg(&a.scratch.ranks[row].ranked);
    state.last = __ldcg(&a.scratch.ranks[row].last);
    known = min(r.n_total, r.n_forced + state.ranked);
  }
  for (;;) {
    const int limit = tests ? min(end + ranked.microbatch, r.n_total) : r.n_total;
    while (known < limit) {
      // The row outlives what is ranked: its first CTA ranks more. All CTAs come here with the same numbers.
      if (cta == 0) {
        state = rank_chunk<kCtaThreads>(a.scratch.scores + int64_t(row) * a.step.max_blocks, r.first, r.n_candidates, state,
                                        const_cast<int32_t*>(w.order) + r.n_forced, memory.rank);
        if (threadIdx.x == 0) {
          __stcg(&a.scratch.ranks[row].ranked, state.ranked);
          __stcg(&a.scratch.ranks[row].last, state.last);
        }
      }
      __threadfence();
      __syncthreads();
      ++epoch;
      if (threadIdx.x == 0) group_barrier(barrier, epoch * kRowCtas);
      __syncthreads();
      state.ranked = __ldcg(&a.scratch.ranks[row].ranked);
      state.last = __ldcg(&a.scratch.ranks[row].last);
      known = min(r.n_total, r.n_forced + state.ranked);
    }
    w.look_up(known);
    w.claim(limit);
    while (w.own(w.used) < end) {
      w.fill(known, end, limit);
      w.consume();
    }
    w.fill(known, limit, limit);
    if (end == r.n_total) break;

    ++epoch;
    publish<T, D, G>(a, w, end, epoch & 1, memory);
    if (warp == 0) {
      if (w.lane == 0) group_barrier(barrier, epoch * kRowCtas);
      __syncwarp();
      const int64_t at = (int64_t(row) * 2 + (epoch & 1)) * kRowCtas * kMaxGroup;
      const bool stop = row_passes(ranked, a.scratch.stats + at, a.scratch.left + at, a.scratch.top + row * kMaxGroup, a.group,
                                   a.step.layout.block_size, r.n_total - end);
      if (w.lane == 0) memory.decision = stop;
    }
    __syncthreads();
    const bool stop = memory.decision;
    __syncthreads();
    if (stop) break;
    end = min(end + ranked.microbatch, r.n_total);
    w.largest = -INFINITY;
  }
  wait_async(0);  // what was requested in vain
  __syncthreads();
  finish_row<T, D, G>(a, w, end, ring, memory);
}

template <class T, int D, int G>
__global__ __launch_bounds__(kCtaThreads) void attend_kernel(const __grid_constant__ AttendArgs a) {
  extern __shared__ uint4 ring[];
  __shared__ AttendMemory<G> memory;
  const int n_rows = a.step.n * a.step.n_kv_heads, n_groups = gridDim.x / kRowCtas;
  uint32_t* barrier = a.scratch.counters + int64_t(blockIdx.x / kRowCtas) * kCounterStride;
  uint32_t epoch = 0;
  for (int row = blockIdx.x / kRowCtas; row < n_rows; row += n_groups) {
    if (a.host_driven && !a.merge && a.done[row]) continue;
    attend_row<T, D, G>(a, row, barrier, epoch, ring, memory);
    __syncthreads();  // before the next row uses the shared memory
  }
}

// Grid: as many row groups as can run together (they wait for each other), at most one a row.
template <class T, int D, int G>
Status launch_attend(AttendArgs a, const DeviceLimits& limits, cudaStream_t stream) {
  const auto kernel = attend_kernel<T, D, G>;
  const void* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes;
  if (Status status = cudaFuncGetAttributes(&attributes, function); status != cudaSuccess) return status;
  const size_t stage = 2 * size_t(a.step.layout.block_size) * D * sizeof(T) * kCtaWarps;
  const size_t room = size_t(limits.smem_per_block) - attributes.sharedSizeBytes;
  a.n_stages = static_cast<int>(room / stage < 3 ? room / stage : 3);
  if (a.n_stages < 1) return cudaErrorNotSupported;
  const size_t ring = stage * a.n_stages;
  if (Status status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(ring));
      status != cudaSuccess)
    return status;
  int per_sm = 0;
  if (Status status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, function, kCtaThreads, ring);
      status != cudaSuccess)
    return status;
  const int rows = a.step.n * a.step.n_kv_heads, together = per_sm * limits.n_sm / kRowCtas;
  if (together < 1) return cudaErrorNotSupported;
  const int groups = a.host_driven || rows < together ? rows : together;  // host-driven rows do not wait for each other
  void* arguments[] = {&a};
  if (a.tests)
    return cudaLaunchCooperativeKernel(function, dim3(groups * kRowCtas), dim3(kCtaThreads), arguments, ring, stream);
  return cudaLaunchKernel(function, dim3(groups * kRowCtas), dim3(kCtaThreads), arguments, ring, stream);
}

template <class T, int D>
Status launch_group(const AttendArgs& a, const DeviceLimits& limits, cudaStream_t stream) {
  switch (padded_group(a.group)) {
    case 1: return launch_attend<T, D, 1>(a, limits, stream);
    case 2: return launch_attend<T, D, 2>(a, limits, stream);
    case 4: return launch_attend<T, D, 4>(a, limits, stream);
    default: return launch_attend<T, D, 8>(a, limits, stream);
  }
}

template <class T>
Status launch_dim(const AttendArgs& a, const DeviceLimits& limits, cudaStream_t stream) {
  switch (padded_dim(a.step.layout.head_dim)) {
    case 32: return launch_group<T, 32>(a, limits, stream);
    case 64: return launch_group<T, 64>(a, limits, stream);
    case 128: return launch_group<T, 128>(a, limits, stream);
    default: return launch_group<T, 256>(a, limits, stream);
  }
}

}  // namespace riffle::cuda
