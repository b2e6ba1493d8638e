// The attention kernel of steps that test when a row has read enough (psa), and of steps that the
// host drives. Rows are attended to as in attend.cuh, in waves: one microbatch of any size, or
// several with at most kRowWarps positions together, as many as the row is expected to read. Warps
// publish their blocks' masses. Then every CTA evaluates the tests inside the wave (stop.cuh), and
// warps that hold a block beyond the stop drop it. So a row reads exactly the same blocks as with
// one test after each microbatch. Resident blocks of the next wave are requested before the test;
// other blocks never are.
//
// Words (PaperScratch::words) are published in one of two buffers, by parity of the wave, tagged
// with its number. A warp writes wave w + 2 into the buffer of w: it has then seen the test of
// w + 1, so every warp had published w + 1, and a CTA's warps publish w + 1 only after all its
// threads have read all words of w. Words of earlier launches are wiped at the start; no CTA reads
// any before all have wiped theirs (counter kWiped).
#pragma once
#include "kernels/cuda/attend/attend.cuh"
#include "kernels/cuda/attend/papers/stop.cuh"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {

// Counters of a row, next to Counter (decode_parts.h): CTAs that have wiped their words, arrivals
// at barriers after rankings. 3 and 4 are those of top_p.cu and vote.cu.
enum ProgressiveCounter : int { kWiped = 0, kRanking = 2 };

template <class T, int D, int G>
struct ProgressiveMemory : AttendMemory<T, D, G> {
  union {
    RankMemory rank;
    StopMemory stop;
  };
  double left[kCtaWarps][kMaxGroup];
};

// Sources of a host-driven step: blocks of positions [begin, end).
struct GivenSources {
  const ProgressiveArgs& a;
  int begin;
  __device__ explicit GivenSources(const ProgressiveArgs& args)
      : a(args), begin(args.streamed ? args.begin : 0) {}
  __device__ bool gives() const { return a.streamed; }
  __device__ const std::byte* given(int row, int p) const {
    return a.sources[int64_t(row) * a.max_positions + (p - a.begin)];
  }
};

template <class T, int D, int G>
struct ProgressiveWarp : RowWarp<T, D, G, GivenSources> {
  using Base = RowWarp<T, D, G, GivenSources>;
  using Base::block_, Base::lane, Base::number, Base::row, Base::warp;
  const ProgressiveArgs& p;
  ProgressiveMemory<T, D, G>& shared;

  __device__ ProgressiveWarp(const ProgressiveArgs& args, const StepSequence& s,
                             const RowGeometry& geometry, ProgressiveMemory<T, D, G>& m,
                             uint4* stages, int row_)
      : Base(args, s, geometry, m, stages, Item{row_, 0, 0}, GivenSources(args)),
        p(args),
        shared(m) {}

  // Publishes each head's mass for the test, in the words of its wave.
  __device__ void publish(unsigned long long* words, int kind, float mass, uint32_t tag) const {
    if (block_.leads() && block_.head() < p.group)
      store_word(words + (kind * kRowWarps + number) * p.group + block_.head(),
                 tagged(__float_as_uint(mass), tag));
  }
  __device__ void publish_wide(unsigned long long* words, const HeadStats& forced,
                               const HeadStats& part, uint32_t tag) const {
    publish(words, kMass, log_sum(part), tag);
    publish(words, kSmallest, part.smallest, tag);
    publish(words, kLargest, part.largest, tag);
    publish(words, kForced, log_sum(forced), tag);
  }
  // Publishes ProgressiveMemory::left, summed over the CTA's warps: warp 0 the low halves, warp 1
  // the high ones.
  __device__ void publish_left(unsigned long long* words, uint32_t tag) const {
    if (warp >= 2 || lane >= p.group) return;
    double sum = shared.left[0][lane];
    for (int i = 1; i < kCtaWarps; ++i) sum += shared.left[i][lane];
    const int half = warp == 0 ? __double2loint(sum) : __double2hiint(sum);
    store_word(words + (kLeft * kRowWarps + number) * p.group + lane,
               tagged(static_cast<uint32_t>(half), tag));
  }

  // Lane states between launches of a host-driven step: [value][32].
  __device__ float* saved() const {
    return p.paper.lane_states + (int64_t(row) * kRowWarps + number) * 32 * p.paper.lane_floats +
           lane;
  }
  __device__ void load() {
    const float* at = saved();
    block_.load(at);
    block_.m = at[32 * (p.paper.lane_floats - 4)];
    block_.s = at[32 * (p.paper.lane_floats - 3)];
  }
  __device__ void save() const {
    float* at = saved();
    block_.save(at);
    at[32 * (p.paper.lane_floats - 4)] = block_.m;
    at[32 * (p.paper.lane_floats - 3)] = block_.s;
  }
};

// Bounds the mass of this CTA's share (candidates i with i / kCtaThreads % kRowCtas == cta) of the
// blocks that are not attended to, for each head: the sum of e^(bound - top) over those ranked
// after position `end` - 1. left: [kCtaWarps][kMaxGroup]; no barrier.
__device__ inline void sum_left(const ProgressiveArgs& a, const RowGeometry& r, int row, int end,
                                double (*left)[kMaxGroup]) {
  const float* scores = a.paper.scores + int64_t(row) * a.step.max_blocks;
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
        const float bound = a.paper.bounds[(int64_t(row) * a.group + h) * a.step.max_blocks + i];
        sum[h] += exp(double(bound) - double(a.paper.top[row * kMaxGroup + h]));
      }
  }
#pragma unroll
  for (int h = 0; h < kMaxGroup; ++h) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum[h] += __shfl_xor_sync(kAllLanes, sum[h], o);
    if (thread % 32 == 0) left[thread / 32][h] = sum[h];
  }
}

// Returns the words of wave `tag` of a row.
__device__ inline unsigned long long* wave_words(const ProgressiveArgs& a, int row, uint32_t tag) {
  return a.paper.words + (int64_t(row) * 2 + (tag & 1)) * kWords * kRowWarps * a.group;
}
// Wipes the words that this CTA is going to publish. Ends without a barrier.
__device__ inline void wipe_words(const ProgressiveArgs& a, int row) {
  const int cta = blockIdx.x % kRowCtas, n = 2 * kWords * kCtaWarps * a.group;
  for (int i = threadIdx.x; i < n; i += kCtaThreads) {
    const int h = i % a.group, warp = i / a.group % kCtaWarps, kind = i / a.group / kCtaWarps;
    a.paper.words[((int64_t(row) * 2 * kWords + kind) * kRowWarps + row_warp(warp, cta)) * a.group +
                  h] = 0;
  }
}

// Returns the end of the wave that begins at `begin`.
__device__ inline int wave_end(const StopTest& test, const RowGeometry& r, int expected,
                               int begin) {
  const int m = test.microbatch;
  int end = min(max(begin, r.n_forced) + m, r.n_total);
  if (needs_bounds(test.stop)) return end;
  while (end < r.n_total) {
    const int next = min(end + m, r.n_total);
    if (next - begin > kRowWarps || next > expected) break;
    end = next;
  }
  return end;
}

// The blocks that attention reads of a row, and the length of its order so far.
struct ProgressiveReads : RowReads {
  RankState state;      // with tests
  int known, expected;  // ranked positions; with tests: positions read in the last step
};
__device__ inline ProgressiveReads progressive_reads(const ProgressiveArgs& a,
                                                     const StepSequence& sequence, int row) {
  ProgressiveReads reads{
      {ranked_geometry(a.step.rule, a.rank, sequence.n_tokens, a.step.layout.block_size), 0},
      {},
      0,
      0};
  const RowGeometry& r = reads.geometry;
  reads.known = r.n_total;
  if (a.streamed) return reads;
  reads.state.ranked = __ldcg(&a.scratch.ranks[row].ranked);
  reads.state.last = __ldcg(&a.scratch.ranks[row].last);
  if (sequence.expected != nullptr)
    reads.expected = *static_cast<volatile int32_t*>(sequence.expected + row_index(a.step, row));
  reads.known = min(r.n_total, r.n_forced + reads.state.ranked);
  // A row that reads everything needs no such help. The lanes of a warp hold 32 positions at a
  // time.
  if (!r.everything) reads.likely = min(min(reads.known, reads.expected), 32 * kRowWarps);
  return reads;
}

// Progress of a row.
struct Progress {
  int begin, end, ahead;  // the wave: positions [begin, end); requested up to `ahead`
  int known, expected, likely;
  RankState state;
  uint32_t tag = 0, rankings = 0;  // tag of the wave; barriers that a ranking took
};

// Continues the ranking of a row that needs more ranked blocks than there are. Its first CTA ranks
// all that this wave needs before one barrier. By then every CTA has read the numbers of the
// previous ranking: the first ones before it wipes its words, and later ones before it publishes a
// wave's words, which the first CTA has seen. Returns false if the wait was given up.
template <class T, int D, int G>
__device__ inline bool rank_further(const ProgressiveArgs& a, int row, const RowGeometry& r,
                                    uint32_t* counters, ProgressiveMemory<T, D, G>& memory,
                                    Progress& at) {
  bool late =
      at.rankings == 0 && threadIdx.x == 0 && !await(counters + kWiped, kRowCtas, a.step.fault);
  if (__syncthreads_or(late)) return false;
  RankState* const ranks = a.scratch.ranks + row;
  if (blockIdx.x % kRowCtas == 0) {
    while (at.state.ranked < at.ahead - r.n_forced)
      at.state = rank_chunk<kCtaThreads>(
          a.paper.scores + int64_t(row) * a.step.max_blocks, r.first, r.n_candidates, at.state,
          a.order + int64_t(row) * a.step.max_blocks + r.n_forced, memory.rank);
    if (threadIdx.x == 0) {
      __stcg(&ranks->ranked, at.state.ranked);
      __stcg(&ranks->last, at.state.last);
    }
  }
  __threadfence();
  __syncthreads();
  ++at.rankings;
  if (threadIdx.x == 0) {
    arrive(counters + kRanking);
    late = !await(counters + kRanking, at.rankings * kRowCtas, a.step.fault);
  }
  if (__syncthreads_or(late)) return false;
  at.state.ranked = __ldcg(&ranks->ranked);
  at.state.last = __ldcg(&ranks->last);
  at.known = min(r.n_total, r.n_forced + at.state.ranked);
  return true;
}

enum class Read : uint8_t { On, Ended, Saved, GivenUp };

// Reads a wave of a row and tests. Ended: the row has read all that it may, at.end positions.
// Saved: a host-driven step has kept its states.
template <class T, int D, int G>
__device__ inline Read read_wave(const ProgressiveArgs& a, ProgressiveWarp<T, D, G>& w,
                                 uint32_t* counters, ProgressiveMemory<T, D, G>& memory,
                                 Progress& at, HeadStats& run) {
  const RowGeometry& r = w.r;
  const StopTest& test = a.rank.test;
  const int row = w.row;
  const bool host = a.streamed, last = at.end >= r.n_total;
  const bool decides = !host && (!last || max(at.begin, r.n_forced) + test.microbatch < at.end);
  const Wave wave = {at.begin, at.end, host || at.end - at.begin > kRowWarps};
  // At most one block a warp, merged once it is known to count.
  const bool hold = decides && !wave.wide;
  const uint32_t tag = host ? 0 : at.tag;
  unsigned long long* words = wave_words(a, row, tag);
  HeadStats forced = empty_stats(), ranked_part = empty_stats();
  int held = -1;
  for (;;) {
    w.fill(at.known, at.ahead, at.end);
    const int p = w.own(w.used);
    if (p >= at.end) break;
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
  if (!decides && !host) return Read::Ended;
  if (hold && held < 0) w.publish(words, kMass, -INFINITY, tag);
  if (wave.wide) w.publish_wide(words, forced, ranked_part, tag);
  if (needs_bounds(test.stop) && at.end > r.n_forced && r.n_candidates > 0) {
    sum_left(a, r, row, at.end, memory.left);
    __syncthreads();
    w.publish_left(words, tag);
  }
  if (host) {
    w.save();
    return Read::Saved;
  }
  if (at.tag == 1) {
    const bool late = threadIdx.x == 0 && !await(counters + kWiped, kRowCtas, a.step.fault);
    if (__syncthreads_or(late)) return Read::GivenUp;
  }
  const int stop =
      decide<true>(test, r, wave, true, words, tag, a.paper.top + row * kMaxGroup, a.group,
                   a.step.layout.block_size, run, memory.stop, memory.decision, a.step.fault);
  if (stop == kGivenUp) return Read::GivenUp;
  if (hold && held >= 0) {
    if (stop < 0 || held < stop) w.keep_result(held);
    else w.drop_result();
  }
  if (stop >= 0) at.end = stop;
  if (stop >= 0 || last) return Read::Ended;
  at.begin = at.end;
  at.end = at.ahead;
  return Read::On;
}

// Reads waves of a row until it has read enough. Returns false if the wait for the row's other CTAs
// was given up, or if nothing is left to do in this launch of a host-driven step, which sets
// `saved`.
template <class T, int D, int G>
__device__ inline bool read_waves(const ProgressiveArgs& a, ProgressiveWarp<T, D, G>& w,
                                  uint32_t* counters, ProgressiveMemory<T, D, G>& memory,
                                  Progress& at, bool& saved) {
  const RowGeometry& r = w.r;
  HeadStats run = empty_stats();
  for (;;) {
    ++at.tag;
    if (!a.streamed) {
      at.ahead = at.end < r.n_total ? wave_end(a.rank.test, r, at.expected, at.end) : r.n_total;
      if (at.known < at.ahead && !rank_further(a, w.row, r, counters, memory, at)) return false;
      w.look_up(at.known);
      w.claim(max(at.ahead, at.likely));
    }
    const Read read = read_wave(a, w, counters, memory, at, run);
    if (read == Read::Ended) return true;
    saved = read == Read::Saved;
    if (read != Read::On) return false;
  }
}

// Returns false if the wait for the row's other CTAs, or for those that fetch ahead, was given up
// (DecodeStep::fault).
template <class T, int D, int G>
__device__ inline bool attend_row(const ProgressiveArgs& a, int row, uint4* ring,
                                  ProgressiveMemory<T, D, G>& memory) {
  using Warp = ProgressiveWarp<T, D, G>;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) memory.sequence[warp] = a.step.sequences[row / a.step.n_kv_heads];
  __syncwarp();
  const StepSequence& sequence = memory.sequence[warp];
  Progress at{};
  {
    const ProgressiveReads reads = progressive_reads(a, sequence, row);
    at.state = reads.state, at.known = reads.known, at.expected = reads.expected;
    at.likely = reads.likely;
    if (threadIdx.x % 32 == 0) memory.geometry[warp] = reads.geometry;
  }
  __syncwarp();
  const RowGeometry& r = memory.geometry[warp];
  const bool host = a.streamed;
  Warp w(a, sequence, r, memory, ring + warp * Warp::ring_chunks(a), row);
  uint32_t* counters = a.scratch.counters + int64_t(row) * kCounterStride;
  at.begin = 0, at.ahead = r.n_total;
  if (host) {
    at.begin = a.begin;
    at.known = at.end = at.ahead = min(a.end, r.n_total);
  } else {
    at.end = wave_end(a.rank.test, r, at.expected, 0);
    wipe_words(a, row);
  }
  if (!await_fetched(a, row, 0, w.misses)) return false;
  w.look_up(at.known);
  w.claim(max(min(at.end, at.known), at.likely));
  if (at.likely > 0) w.fetch(at.likely);
  w.fill(at.known, min(at.end, at.known), min(at.end, at.known));
  w.block_.split_q(memory.block, a.scale);
  __syncthreads();
  if (!host && threadIdx.x == 0) arrive(counters + kWiped);
  w.block_.begin(memory.block);
  if (host && a.load_states) w.load();
  bool saved = false;
  if (!a.merge && !read_waves(a, w, counters, memory, at, saved)) {
    if (!saved) wait_async(0);
    return saved;
  }
  wait_async(0);  // requests that are no longer needed
  w.count_waste();
  __syncthreads();
  if (finish_row<T, D, G>(a, w, at.end, ring, memory) && threadIdx.x == kCtaThreads - 32 && !host &&
      w.sequence.expected != nullptr)
    w.sequence.expected[row_index(a.step, row)] = at.end;
  return true;
}

template <class T, int D, int G>
__global__ __launch_bounds__(kCtaThreads) void progressive_kernel(
    const __grid_constant__ ProgressiveArgs a) {
  extern __shared__ __align__(128) uint4 ring[];
  // Bytes: shared memory has no constructors.
  __shared__ alignas(ProgressiveMemory<T, D, G>)
      std::byte storage[sizeof(ProgressiveMemory<T, D, G>)];
  auto& memory = reinterpret_cast<ProgressiveMemory<T, D, G>&>(storage);
  wait_for_earlier();
  const int n_rows = a.step.n * a.step.n_kv_heads, group = blockIdx.x / kRowCtas;
  if (group >= a.n_groups)
    return fetch_ahead(
        a, static_cast<int>(blockIdx.x) - a.n_groups * kRowCtas, memory.counts,
        [&](const StepSequence& s, int row) { return progressive_reads(a, s, row); });
  for (int row = group; row < n_rows; row += a.n_groups) {
    if (a.streamed && !a.merge && a.done[row]) continue;
    if (!attend_row<T, D, G>(a, row, ring, memory)) return;
    __syncthreads();  // before the next row uses the shared memory
  }
}

template <class T, int D, int G>
Status launch_progressive(ProgressiveArgs a, const DeviceLimits& limits, cudaStream_t stream) {
  a.slices = 1;  // waves and stop tests assume kRowWarps warps a row
  RowTraits traits;
  traits.selects = traits.together = !a.streamed;
  traits.apart = a.streamed;
  return launch_rows<ProgressiveWarp<T, D, G>>(progressive_kernel<T, D, G>, a, traits, limits,
                                               stream);
}

// Tells whether the kernel has room for blocks of this layout.
template <class T, int D, int G>
Status progressive_fits(const KvLayout& layout, const DeviceLimits& limits) {
  RingSize ring;
  return ring_of<ProgressiveWarp<T, D, G>>(
      reinterpret_cast<const void*>(progressive_kernel<T, D, G>), layout, limits, ring);
}

}  // namespace riffle::cuda
