// The attention kernel of a decode step: a row is attended by kRowCtas CTAs that run together (a
// row group), each warp taking the positions p with p % kRowWarps == its own number, in order.
//
// Progressive rows go in waves: one microbatch of any size, or several of together at most
// kRowWarps positions, as many as the row is expected to read. Warps publish their blocks' masses;
// then every CTA evaluates the tests inside the wave (stop.cuh), and warps that hold a block beyond
// the stop drop it. So a row reads exactly what one test after each microbatch makes it read.
// Resident blocks of the next wave are requested before the test; others never are.
//
// Where more rows step than run together, CTAs beside the row groups bring the blocks of those that
// wait (fetch_ahead): they enter them in the page tables and mark them in the rows' orders, which a
// row group reads when they are through with its row.
//
// Words (AttendArgs::scratch.words) are published in one of two buffers, by parity of the wave,
// tagged with its number. A warp writes wave w + 2 into the buffer of w: it has then seen the test
// of w + 1, so every warp had published w + 1, and a CTA's warps publish w + 1 only after all its
// threads have read all words of w. Words of earlier launches are wiped at the start; nobody reads
// any before all have wiped theirs (counter kWiped).
#pragma once
#include <type_traits>

#include "kernels/cuda/attend/attend_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {

// A row's counters: CTAs that have wiped their words, CTAs that have finished, arrivals at barriers
// after rankings; 1 and the blocks that fetch_ahead has brought, when it is through with the row.
// 3 and 4 are those of top_p.cu and vote.cu.
enum Counter : int { kWiped = 0, kFinished = 1, kRanking = 2, kAhead = 8 };

__device__ inline void arrive(uint32_t* counter) {
  __threadfence();
  atomicAdd(counter, 1u);
}
// False: given up.
__device__ inline bool await(const uint32_t* counter, uint32_t target, uint32_t* fault) {
  Patience patience;
  while (load_acquire(counter) < target)
    if (patience.ends(fault)) return false;
  __threadfence();
  return true;
}

// What this CTA's share (candidates i with i / kCtaThreads % kRowCtas == cta) of the blocks not
// attended may hold, for each head: sum of e^(bound - top) over those ranked after position `end`
// - 1. left: [kCtaWarps][kMaxGroup]; no barrier.
__device__ inline void sum_left(const AttendArgs& a, const RowGeometry& r, int row, int end,
                                double (*left)[kMaxGroup]) {
  const float* scores = a.scratch.scores + int64_t(row) * a.step.max_blocks;
  const int last_block = block_in(__ldcg(a.order + int64_t(row) * a.step.max_blocks + end - 1));
  const unsigned long long last = rank_key(__ldcg(scores + last_block - r.first), last_block);
  const int thread = threadIdx.x, cta = blockIdx.x % kRowCtas;
  double sum[kMaxGroup];
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h) sum[h] = 0;
  for (int i = cta * kCtaThreads + thread; i < r.n_candidates; i += kRowCtas * kCtaThreads) {
    if (rank_key(scores[i], static_cast<uint32_t>(r.first + i)) <= last) continue;
#pragma unroll
    for (int h = 0; h < kMaxGroup; ++h)
      if (h < a.group) {
        const float bound = a.scratch.bounds[(int64_t(row) * a.group + h) * a.step.max_blocks + i];
        sum[h] += exp(double(bound) - double(a.scratch.top[row * kMaxGroup + h]));
      }
  }
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum[h] += __shfl_xor_sync(kAllLanes, sum[h], o);
    if (thread % 32 == 0) left[thread / 32][h] = sum[h];
  }
}

// The words of wave `tag` of a row.
__device__ inline unsigned long long* wave_words(const AttendArgs& a, int row, uint32_t tag) {
  return a.scratch.words + (int64_t(row) * 2 + (tag & 1)) * kWords * kRowWarps * a.group;
}
// Wipes what this CTA is going to publish. Ends without a barrier.
__device__ inline void wipe_words(const AttendArgs& a, int row) {
  const int cta = blockIdx.x % kRowCtas, n = 2 * kWords * kCtaWarps * a.group;
  for (int i = threadIdx.x; i < n; i += kCtaThreads) {
    const int h = i % a.group, warp = i / a.group % kCtaWarps, kind = i / a.group / kCtaWarps;
    a.scratch
        .words[((int64_t(row) * 2 * kWords + kind) * kRowWarps + row_warp(warp, cta)) * a.group +
               h] = 0;
  }
}

// Merges the warps' states (fixed order), and in the last CTA of the row to come here the CTAs'
// (fixed order), into out.
template <class T, int D, int G>
__device__ inline void finish_row(const AttendArgs& a, RowWarp<T, D, G>& w, int n_read, uint4* ring,
                                  AttendMemory<T, D, G>& memory) {
  constexpr int kStride =
      D + 8;  // of a head in shared memory: spreads a warp's stores over the banks
  const int thread = threadIdx.x, cta = blockIdx.x % kRowCtas, g = a.group, fours = g * D / 4;
  const int warp_floats = w.ring_chunks(a) * 4;
  w.block_.store(reinterpret_cast<float*>(ring) + w.warp * warp_floats, kStride, g);
  if (w.block_.leads()) {
    memory.m[w.warp][w.block_.head()] = w.block_.m;
    memory.s[w.warp][w.block_.head()] = w.block_.s;
  }
  if (w.lane == 0) memory.counts[w.warp][0] = w.lookups, memory.counts[w.warp][1] = w.misses;
  __syncthreads();

  float* cta_states = a.scratch.cta_states + int64_t(w.row) * kRowCtas * a.scratch.cta_floats;
  float* mine = cta_states + cta * a.scratch.cta_floats;
  for (int e = thread; e < fours; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    float m = -INFINITY, s = 0;
#pragma unroll
    for (int i = 0; i < kCtaWarps; ++i) m = fmaxf(m, memory.m[i][h]);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kCtaWarps; ++i) {
      const float f = weight2(memory.m[i][h], m);
      const float4 part = *reinterpret_cast<const float4*>(reinterpret_cast<const float*>(ring) +
                                                           i * warp_floats + h * kStride + x);
      sum.x += f * part.x, sum.y += f * part.y, sum.z += f * part.z, sum.w += f * part.w;
      s += memory.s[i][h] * f;
    }
    __stcg(reinterpret_cast<float4*>(mine) + e, sum);
    if (x == 0) __stcg(reinterpret_cast<float2*>(mine + g * D) + h, make_float2(m, s));
  }
  if (thread < 2) {
    int sum = 0;
    for (int i = 0; i < kCtaWarps; ++i) sum += memory.counts[i][thread];
    __stcg(a.scratch.cta_counts + (int64_t(w.row) * kRowCtas + cta) * 2 + thread, sum);
  }
  __threadfence();
  __syncthreads();
  uint32_t* arrived = a.arrived + int64_t(w.row) * a.arrived_stride;
  if (thread == 0) {
    const bool last = atomicAdd(arrived, 1u) == kRowCtas - 1;
    if (last) *arrived = 0;  // for the next launch
    memory.decision = last;
  }
  __syncthreads();
  if (!memory.decision) return;
  __threadfence();

  const int d = a.step.layout.head_dim;
  for (int e = thread; e < fours; e += kCtaThreads) {
    const int h = 4 * e / D, x = 4 * e % D;
    if (x >= d) continue;
    float4 part[kRowCtas];
    float2 ms[kRowCtas];
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float* from = cta_states + c * a.scratch.cta_floats;
      ms[c] = __ldcg(reinterpret_cast<const float2*>(from + g * D) + h);
      part[c] = __ldcg(reinterpret_cast<const float4*>(from) + e);
    }
    float m = -INFINITY, s = 0;
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) m = fmaxf(m, ms[c].x);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int c = 0; c < kRowCtas; ++c) {
      const float f = weight2(ms[c].x, m);
      s += ms[c].y * f;
      sum.x += f * part[c].x, sum.y += f * part[c].y, sum.z += f * part[c].z,
          sum.w += f * part[c].w;
    }
    const float f = 1 / s;
    sum.x *= f, sum.y *= f, sum.z *= f, sum.w *= f;
    if (blends_mean(a.step.ranked) && !w.r.everything) {
      const float unread = __ldcg(a.scratch.unread + int64_t(w.row) * kMaxGroup + h),
                  read = 1 - unread;
      const float4 mean =
          __ldcg(reinterpret_cast<const float4*>(a.scratch.mean_value + int64_t(w.row) * D + x));
      sum.x = read * sum.x + unread * mean.x, sum.y = read * sum.y + unread * mean.y;
      sum.z = read * sum.z + unread * mean.z, sum.w = read * sum.w + unread * mean.w;
    }
    if (a.step.sinks != nullptr) {
      // All keys' share beside the sink. What was read, s, is `read` of them, which rounding may
      // make 0; a sink far above all scores must not make that a NaN.
      float read = 1;
      if (blends_mean(a.step.ranked) && !w.r.everything)
        read -= __ldcg(a.scratch.unread + int64_t(w.row) * kMaxGroup + h);
      const float sink = a.step.sinks[w.row % a.step.n_kv_heads * g + h];
      const float weight = fminf(exp2f(__fsub_rn(__fmul_rn(sink, kLog2e), m)), 3e38f);
      const float share = s / __fmaf_rn(read, weight, s);
      sum.x *= share, sum.y *= share, sum.z *= share, sum.w *= share;
    }
    *reinterpret_cast<float4*>(a.step.out + (int64_t(w.row) * g + h) * d + x) = sum;
    if (x == 0 && a.step.lse != nullptr) a.step.lse[int64_t(w.row) * g + h] = (m + log2f(s)) * kLn2;
  }
  if (thread / 32 == kCtaWarps - 1) {
    int2 counts = make_int2(0, 0);
    if (w.lane < kRowCtas)
      counts = __ldcg(reinterpret_cast<const int2*>(a.scratch.cta_counts) +
                      int64_t(w.row) * kRowCtas + w.lane);
#pragma unroll
    for (int o = kRowCtas / 2; o > 0; o /= 2) {
      counts.x += __shfl_xor_sync(kAllLanes, counts.x, o);
      counts.y += __shfl_xor_sync(kAllLanes, counts.y, o);
    }
    if (w.lane == 0) {
      const auto last =
          chooses_tokens(a.step.ranked) ? __ldcg(&a.scratch.ranks[w.row].last) : 0xffffffffull;
      if (a.step.results != nullptr)
        a.step.results[w.row] = {w.r.n_blocks,
                                 n_read,
                                 counts.x,
                                 counts.y,
                                 static_cast<int32_t>(last & 0xffffffffu),
                                 static_cast<int32_t>(last >> 32)};
      if (a.tests && w.sequence.expected != nullptr)
        w.sequence.expected[head_index(a.step, w.row)] = n_read;
    }
  }
}

// Where the wave that begins at `begin` ends.
__device__ inline int wave_end(const Ranked& ranked, const RowGeometry& r, int expected,
                               int begin) {
  const int m = ranked.microbatch;
  int end = min(max(begin, r.n_forced) + m, r.n_total);
  if (needs_bounds(ranked.stop)) return end;
  while (end < r.n_total) {
    const int next = min(end + m, r.n_total);
    if (next - begin > kRowWarps || next > expected) break;
    end = next;
  }
  return end;
}

// What attention reads of a row, and how far its order goes by now.
struct RowReads {
  RowGeometry geometry;
  RankState state;      // tests
  int known, expected;  // positions that are ranked; progressive rows: read in the last step
  int likely;  // positions that are sure (or likely) to be read: these are fetched together
};
__device__ inline RowReads row_reads(const AttendArgs& a, const StepSequence& sequence, int row) {
  const Ranked& ranked = a.step.ranked;
  RowReads reads{row_geometry(ranked, sequence.n_tokens, a.step.layout.block_size), {}, 0, 0, 0};
  RowGeometry& r = reads.geometry;
  if (chooses_order(ranked) && !r.everything)
    r.n_total = r.n_forced + __ldcg(&a.scratch.ranks[row].ranked);
  reads.known = r.n_total;
  if (a.streamed) return reads;
  if (a.tests) {
    reads.state.ranked = __ldcg(&a.scratch.ranks[row].ranked);
    reads.state.last = __ldcg(&a.scratch.ranks[row].last);
    if (sequence.expected != nullptr)
      reads.expected = *static_cast<volatile int32_t*>(sequence.expected + head_index(a.step, row));
    reads.known = min(r.n_total, r.n_forced + reads.state.ranked);
  }
  // All blocks, those of a row that reads everything, need no such help. A warp's lanes know 32
  // positions at a time.
  reads.likely = r.everything
                     ? 0
                     : min(min(reads.known, a.tests ? reads.expected : r.n_total), 32 * kRowWarps);
  return reads;
}

// CTAs beside the row groups bring what rows are likely to read while these rows wait for a group:
// so the link has work while groups compute. By the rows' turns; a row group of theirs waits until
// they are through with its row. counts: a warp's.
__device__ inline void fetch_ahead(const AttendArgs& a, int loader, int (*counts)[2]) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32,
            n_rows = a.step.n * a.step.n_kv_heads;
  const Pool& pool = a.step.pool;
  const uint32_t now = *pool.now;
  for (int row = a.n_groups + loader; row < n_rows; row += a.n_loaders) {
    const StepSequence& sequence = a.step.sequences[row / a.step.n_kv_heads];
    const RowReads reads = row_reads(a, sequence, row);
    const int64_t entry0 = head_index(a.step, row) * sequence.max_blocks;
    int32_t* order = a.order + int64_t(row) * a.step.max_blocks;
    int n_brought = 0;
    for (int base = 0; base < reads.likely; base += kCtaThreads) {
      const int p = base + lane * kCtaWarps + warp;
      int block = reads.geometry.n_blocks - 1, to = -1;  // the last block never is in a slot
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

// False: given up waiting for the row's other CTAs, or for those that fetch ahead
// (DecodeStep::fault).
template <class T, int D, int G>
__device__ inline bool attend_row(const AttendArgs& a, int row, uint4* ring,
                                  AttendMemory<T, D, G>& memory) {
  const Ranked& ranked = a.step.ranked;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) memory.sequence[warp] = a.step.sequences[row / a.step.n_kv_heads];
  __syncwarp();
  const StepSequence& sequence = memory.sequence[warp];
  RankState state{};
  int known = 0, expected = 0, fetched = 0;
  {
    const RowReads reads = row_reads(a, sequence, row);
    state = reads.state, known = reads.known, expected = reads.expected, fetched = reads.likely;
    if (threadIdx.x % 32 == 0) memory.geometry[warp] = reads.geometry;
  }
  __syncwarp();
  const RowGeometry& r = memory.geometry[warp];
  const int cta = blockIdx.x % kRowCtas, n_total = r.n_total;
  const bool host = a.streamed, tests = a.tests && !host, bounds = needs_bounds(ranked.stop);
  RowWarp<T, D, G> w(a, sequence, r, memory, ring + warp * RowWarp<T, D, G>::ring_chunks(a), row);
  uint32_t* counters = a.scratch.counters + int64_t(row) * kCounterStride;
  int begin = 0, end = n_total, ahead = n_total;
  if (host) {
    begin = a.begin;
    known = end = ahead = min(a.end, n_total);
  } else if (tests) {
    end = wave_end(ranked, r, expected, 0);
    wipe_words(a, row);
  }
  if (a.n_loaders > 0 && row >= a.n_groups) {
    const bool late = threadIdx.x == 0 && !await(counters + kAhead, 1, a.step.fault);
    if (__syncthreads_or(late)) return false;
    if (cta == 0 && warp == 0) w.misses = static_cast<int>(__ldcg(counters + kAhead)) - 1;
  }
  w.look_up(known);
  w.claim(max(min(end, known), fetched));
  if (fetched > 0) w.fetch(fetched);
  w.fill(known, min(end, known), min(end, known));
  w.block_.split_q(memory.block, a.scale);
  __syncthreads();
  if (tests && threadIdx.x == 0) arrive(counters + kWiped);
  w.block_.begin(memory.block);
  if (host && a.load_states) w.load();

  HeadStats run = empty_stats();
  uint32_t tag = 0, rankings = 0;
  while (!a.merge) {
    ++tag;
    if (tests) {
      ahead = end < n_total ? wave_end(ranked, r, expected, end) : n_total;
      if (known < ahead) {
        // The row needs more ranked blocks than there are. Its first CTA ranks all that this wave
        // needs before one barrier. No CTA may still have to read the numbers of the ranking
        // before: each reads the first ones before it wipes its words, and later ones before it
        // publishes a wave's words, which the first CTA has seen.
        bool late =
            rankings == 0 && threadIdx.x == 0 && !await(counters + kWiped, kRowCtas, a.step.fault);
        if (__syncthreads_or(late)) return wait_async(0), false;
        RankState* const ranks = a.scratch.ranks + row;
        if (cta == 0) {
          while (state.ranked < ahead - r.n_forced)
            state = rank_chunk<kCtaThreads>(
                a.scratch.scores + int64_t(row) * a.step.max_blocks, r.first, r.n_candidates, state,
                a.order + int64_t(row) * a.step.max_blocks + r.n_forced, memory.rank);
          if (threadIdx.x == 0) {
            __stcg(&ranks->ranked, state.ranked);
            __stcg(&ranks->last, state.last);
          }
        }
        __threadfence();
        __syncthreads();
        ++rankings;
        if (threadIdx.x == 0) {
          arrive(counters + kRanking);
          late = !await(counters + kRanking, rankings * kRowCtas, a.step.fault);
        }
        if (__syncthreads_or(late)) return wait_async(0), false;
        state.ranked = __ldcg(&ranks->ranked);
        state.last = __ldcg(&ranks->last);
        known = min(n_total, r.n_forced + state.ranked);
      }
      w.look_up(known);
      w.claim(max(ahead, fetched));
    }
    const bool last = end >= n_total;
    const bool decides = tests && (!last || max(begin, r.n_forced) + ranked.microbatch < end);
    const Wave wave = {begin, end, host || end - begin > kRowWarps};
    const bool hold =
        decides && !wave.wide;  // at most one block a warp, merged when it is known to count
    unsigned long long* words = wave_words(a, row, host ? 0 : tag);
    HeadStats forced = empty_stats(), ranked_part = empty_stats();
    int held = -1;
    for (;;) {
      w.fill(known, ahead, end);
      const int p = w.own(w.used);
      if (p >= end) break;
      w.scores();
      if (hold) {
        held = p;
        w.publish(words, kMass, w.block_.mass(), tag);
      } else if (wave.wide && (decides || host)) {
        add_mass(p < r.n_forced ? forced : ranked_part, w.block_.mass());
      }
      w.values();
      if (!hold) w.keep_result(p);
    }
    if (!decides && !host) break;
    if (hold && held < 0) w.publish(words, kMass, -INFINITY, tag);
    if (wave.wide) w.publish_wide(words, forced, ranked_part, host ? 0 : tag);
    if (bounds && end > r.n_forced && r.n_candidates > 0) {
      sum_left(a, r, row, end, memory.left);
      __syncthreads();
      w.publish_left(words, host ? 0 : tag);
    }
    if (host) {
      w.save();
      return true;
    }
    if (tag == 1) {
      const bool late = threadIdx.x == 0 && !await(counters + kWiped, kRowCtas, a.step.fault);
      if (__syncthreads_or(late)) return wait_async(0), false;
    }
    const int stop =
        decide<true>(ranked, r, wave, true, words, tag, a.scratch.top + row * kMaxGroup, a.group,
                     a.step.layout.block_size, run, memory.stop, memory.decision, a.step.fault);
    if (stop == kGivenUp) return wait_async(0), false;
    if (hold && held >= 0) {
      if (stop < 0 || held < stop) w.keep_result(held);
      else w.drop_result();
    }
    if (stop >= 0) end = stop;
    if (stop >= 0 || last) break;
    begin = end;
    end = ahead;
  }

  wait_async(0);  // what was requested in vain
  w.count_waste();
  __syncthreads();
  finish_row<T, D, G>(a, w, end, ring, memory);
  return true;
}

template <class T, int D, int G>
__global__ __launch_bounds__(kCtaThreads) void attend_kernel(const __grid_constant__ AttendArgs a) {
  extern __shared__ __align__(128) uint4 ring[];
  __shared__ AttendMemory<T, D, G> memory;
  wait_for_earlier();
  const int n_rows = a.step.n * a.step.n_kv_heads, group = blockIdx.x / kRowCtas;
  if (group >= a.n_groups)
    return fetch_ahead(a, static_cast<int>(blockIdx.x) - a.n_groups * kRowCtas, memory.counts);
  for (int row = group; row < n_rows; row += a.n_groups) {
    if (a.streamed && !a.merge && a.done[row]) continue;
    if (!attend_row<T, D, G>(a, row, ring, memory)) return;
    __syncthreads();  // before the next row uses the shared memory
  }
}

// How many blocks of a ring each warp gets, or half of one, and the bytes of all rings.
struct RingSize {
  int n_stages = 1;
  bool halves = false;
  size_t bytes = 0;
};
// Of the rings of a CTA's warps together.
template <class Warp>
int64_t ring_bytes(const KvLayout& layout, int n_stages, bool halves) {
  return int64_t{16} * kCtaWarps * Warp::ring_chunks(layout.block_size, n_stages, halves);
}
// The largest ring that fits. cudaErrorNotSupported: not even half a block does.
template <class T, int D, int G>
Status ring_of(const KvLayout& layout, const DeviceLimits& limits, RingSize& ring) {
  using Warp = RowWarp<T, D, G>;
  cudaFuncAttributes attributes;
  if (Status status =
          cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(attend_kernel<T, D, G>));
      status != cudaSuccess)
    return status;
  const int64_t room = limits.smem_per_block - static_cast<int64_t>(attributes.sharedSizeBytes);
  ring = {};
  while (ring.n_stages < 3 && ring_bytes<Warp>(layout, ring.n_stages + 1, false) <= room)
    ++ring.n_stages;
  ring.halves = Warp::kMayHalve && ring_bytes<Warp>(layout, ring.n_stages, false) > room;
  const int64_t bytes = ring_bytes<Warp>(layout, ring.n_stages, ring.halves);
  ring.bytes = static_cast<size_t>(bytes);
  return bytes > room ? cudaErrorNotSupported : cudaSuccess;
}

// CTAs that can run together with this ring.
inline Status ctas_together(const void* kernel, const RingSize& ring, const DeviceLimits& limits,
                            int& ctas) {
  int per_sm = 0;
  const Status status =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kCtaThreads, ring.bytes);
  ctas = per_sm * limits.n_sm;
  return status;
}

// Grid: as many row groups as can run together (they wait for each other), at most one a row. Rows
// of a selection mostly wait for the host and for each other, and seldom have more than a block a
// warp under way: where there are more of them than fit beside full rings, shorter ones let more of
// them wait at once, and some CTAs fetch for those whose turn is still to come.
template <class T, int D, int G>
Status launch_attend(AttendArgs a, const DeviceLimits& limits, cudaStream_t stream) {
  const auto kernel = attend_kernel<T, D, G>;
  const void* function = reinterpret_cast<const void*>(kernel);
  RingSize ring;
  if (Status status = ring_of<T, D, G>(a.step.layout, limits, ring); status != cudaSuccess)
    return status;
  if (Status status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(ring.bytes));
      status != cudaSuccess)
    return status;
  // Else the device may keep shared memory back that the count of CTAs below takes for granted.
  if (Status status = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
      status != cudaSuccess)
    return status;
  const int rows = a.step.n * a.step.n_kv_heads;
  const bool selects = !a.step.ranked.everything && !a.streamed;
  int together = 0;
  if (Status status = ctas_together(function, ring, limits, together); status != cudaSuccess)
    return status;
  for (RingSize less = ring; less.n_stages > 1 && together < rows * kRowCtas && selects;) {
    --less.n_stages;
    less.bytes = static_cast<size_t>(
        ring_bytes<RowWarp<T, D, G>>(a.step.layout, less.n_stages, less.halves));
    int more = 0;
    if (Status status = ctas_together(function, less, limits, more); status != cudaSuccess)
      return status;
    if (more > together) ring = less, together = more;
  }
  a.n_stages = ring.n_stages;
  a.halves = ring.halves;
  a.n_groups = together / kRowCtas;
  if (a.n_groups < 1) return cudaErrorNotSupported;
  if (a.streamed || rows <= a.n_groups) {
    a.n_groups = rows;  // host-driven rows do not wait for each other
  } else if (selects && a.step.pool.n_slots > 0) {
    // One for each group at least: half as many do not fill a PCIe 5 link (H200), and rows would
    // wait for them. A group is given up for them where it is one of many.
    int groups = a.n_groups, spare = together - groups * kRowCtas;
    if (spare < groups && groups >= 8) --groups, spare += kRowCtas;
    if (spare >= groups && rows - groups >= groups) {
      a.n_groups = groups;
      a.n_loaders = spare < rows - groups ? spare : rows - groups;
    }
  }
  cudaLaunchAttribute attribute[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(a.n_groups * kRowCtas + a.n_loaders);
  config.blockDim = dim3(kCtaThreads);
  config.dynamicSmemBytes = ring.bytes;
  config.stream = stream;
  config.attrs = attribute;
  // CTAs of a row wait for each other and for those that fetch ahead, so all must come to run. A
  // cooperative launch promises it; a dependent one may not be cooperative, but no more CTAs are
  // launched than fit, what runs before ends by itself, and what comes after begins when all of
  // these have ended. That leaves kernels of other streams: see DecodeStep::fault.
  if (a.step.overlap) {
    attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  } else if ((a.tests || a.n_loaders > 0) && !a.streamed) {
    attribute[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attribute[config.numAttrs++].val.cooperative = 1;
  }
  if (Status status = cudaLaunchKernelEx(&config, kernel, a); status != cudaSuccess) return status;
  return cudaGetLastError();
}

}  // namespace riffle::cuda
