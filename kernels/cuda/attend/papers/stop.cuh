// The stopping test of progressive attention on the device: select/papers/psa.cpp Psa::done.
//
// A row's positions fall into groups: the forced blocks, then microbatches. The test may stop the
// row after each group except the first. Its numbers come from the blocks' own masses
// (log-sum-exps, base 2). Warp w of the row's kRowWarps contributes to a group the joint mass of
// its positions (p % kRowWarps == w). 8 lanes sum up a group in a fixed order, and groups are added
// in their order. So neither the number of groups attended to before the test (a wave) nor the side
// that tests matters: every CTA of a row, and the host's verify_rows, get the same answer.
#pragma once
#include "kernels/cuda/attend/attend_io.cuh"
#include "kernels/cuda/attend/decode.cuh"
#include "kernels/cuda/attend/papers/paper_parts.h"
#include "kernels/cuda/attend/patience.cuh"
#include "kernels/cuda/attend/softmax_state.cuh"

namespace riffle::cuda {

__device__ inline HeadStats empty_stats() { return {-INFINITY, 0, INFINITY, -INFINITY}; }

// Adds a block of this mass.
__device__ inline void add_mass(HeadStats& x, float mass) {
  const float m = fmaxf(x.m, mass);
  x.s = __fadd_rn(__fmul_rn(x.s, weight2(x.m, m)),
                  weight2(mass, m));  // only one block: exactly 1, so that its log is 0
  x.m = m;
  x.smallest = fminf(x.smallest, mass);
  x.largest = fmaxf(x.largest, mass);
}
__device__ inline float log_sum(const HeadStats& x) {
  return x.s == 0 ? -INFINITY : __fadd_rn(x.m, log2f(x.s));
}

__device__ inline bool needs_bounds(Stop stop) { return stop == Stop::Bound || stop == Stop::Veto; }

// Words that a warp publishes for each head, by wave. In narrow waves (at most one position a warp)
// kMass is the block's mass. In wide ones (at most the forced blocks and one microbatch) the first
// three are the joint, smallest and largest mass of the microbatch's blocks, and kForced is the
// forced blocks' joint mass. kLeft: warps 0 and 1 of a CTA publish the halves of its sum over the
// blocks that are not attended to.
enum Word : int { kMass = 0, kSmallest = 1, kLargest = 2, kForced = 3, kLeft = 4 };

struct Wave {
  int begin, end;  // positions, whole groups
  bool wide;
};

// Groups of a wave, with the positions of group i.
struct WaveGroups {
  int forced, first, microbatch, end, n;  // forced: 1 if group 0 is the forced blocks
  __device__ WaveGroups(const Wave& wave, const RowGeometry& r, int microbatch_)
      : forced(wave.begin < r.n_forced),
        first(max(wave.begin, r.n_forced)),
        microbatch(microbatch_),
        end(wave.end) {
    n = forced + (end > first ? (end - first + microbatch - 1) / microbatch : 0);
  }
  __device__ int group_begin(int i) const {
    return i < forced ? 0 : first + (i - forced) * microbatch;
  }
  __device__ int group_end(int i) const {
    return i < forced ? first : min(first + (i - forced + 1) * microbatch, end);
  }
};

struct StopMemory {
  float words[4 * kRowWarps * kMaxGroup];   // [Word][warp][g]
  HeadStats groups[kRowWarps * kMaxGroup];  // [group][g]
  uint32_t left[2 * kRowCtas * kMaxGroup];  // [half][cta][g]
  double log_left[kRowWarps];               // [group]: log of the number of candidates after it
};

// Reads the tagged words of a row's wave into shared memory. kPoll: waits for each of them to
// arrive. Returns false if the wait was given up.
template <bool kPoll>
__device__ inline bool read_words(const unsigned long long* words, uint32_t tag, int n,
                                  uint32_t* out, uint32_t* fault) {
  constexpr int kEach = 4;  // in flight together
  for (int i0 = threadIdx.x; i0 < n; i0 += kEach * kCtaThreads) {
    unsigned long long word[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i0 + j * kCtaThreads < n) word[j] = load_word(words + i0 + j * kCtaThreads);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (i0 + j * kCtaThreads < n) {
        if (kPoll && static_cast<uint32_t>(word[j] >> 32) != tag) {
          Patience patience;
          do {
            word[j] = load_word(words + i0 + j * kCtaThreads);
            if (patience.ends(fault)) return false;
          } while (static_cast<uint32_t>(word[j] >> 32) != tag);
        }
        out[i0 + j * kCtaThreads] = static_cast<uint32_t>(word[j]);
      }
  }
  return true;
}

inline constexpr int kGivenUp = -2;  // result of decide if it has waited too long

// Sums up each group's masses of each head from memory.words, 8 lanes a group and head, into
// memory.groups. No barrier.
__device__ inline void sum_groups(const WaveGroups& groups, const Wave& wave, int g,
                                  StopMemory& memory) {
  constexpr int kTeam = 8, kTeams = kCtaThreads / kTeam;
  const int thread = threadIdx.x, sub = thread % kTeam, n_items = groups.n * g,
            per_word = kRowWarps * g;
  for (int base = 0; base < n_items; base += kTeams) {
    const int item = base + thread / kTeam, i = item / g, h = item % g;
    const bool forced = i < groups.forced;
    const int begin = groups.group_begin(i), end = groups.group_end(i);
    float mass[kRowWarps / kTeam];
    HeadStats x = empty_stats();
#pragma unroll
    for (int j = 0; j < kRowWarps / kTeam; ++j) {
      const int w = sub + kTeam * j, at = w * g + h;
      const int p =
          wave.begin + ((w - wave.begin) & (kRowWarps - 1));  // narrow: its only possible one
      mass[j] = -INFINITY;
      if (item < n_items && (wave.wide || (p >= begin && p < end))) {
        mass[j] = memory.words[(wave.wide && forced ? kForced : kMass) * per_word + at];
        x.smallest =
            fminf(x.smallest, wave.wide ? memory.words[kSmallest * per_word + at] : mass[j]);
        x.largest = fmaxf(x.largest, wave.wide ? memory.words[kLargest * per_word + at] : mass[j]);
      }
      x.m = fmaxf(x.m, mass[j]);
    }
#pragma unroll
    for (int o = kTeam / 2; o > 0; o /= 2) {
      x.m = fmaxf(x.m, __shfl_xor_sync(kAllLanes, x.m, o));
      x.smallest = fminf(x.smallest, __shfl_xor_sync(kAllLanes, x.smallest, o));
      x.largest = fmaxf(x.largest, __shfl_xor_sync(kAllLanes, x.largest, o));
    }
#pragma unroll
    for (int j = 0; j < kRowWarps / kTeam; ++j) x.s = __fadd_rn(x.s, weight2(mass[j], x.m));
#pragma unroll
    for (int o = kTeam / 2; o > 0; o /= 2) x.s = __fadd_rn(x.s, __shfl_xor_sync(kAllLanes, x.s, o));
    if (sub == 0 && item < n_items) memory.groups[item] = x;
  }
}

// Bound of the mass of a head's unread blocks, for the stop modes that use one: the sum of their
// bounds, and its logarithm.
struct Left {
  double mass = 0, log_mass = 0;
};
__device__ inline Left left_of(int lane, int g, bool reads_any, float top, int block_size,
                               const StopMemory& memory) {
  Left left;
  if (reads_any)
    for (int c = 0; c < kRowCtas; ++c)
      left.mass += __hiloint2double(static_cast<int>(memory.left[(kRowCtas + c) * g + lane]),
                                    static_cast<int>(memory.left[c * g + lane]));
  left.log_mass = double(top) + log(double(block_size)) + log(left.mass);
  return left;
}

// Adds a group's masses to `run`, then makes the test on the head's numbers. Returns true if it
// passes.
__device__ inline bool passes(const StopTest& test, const HeadStats& x, bool forced,
                              double log_left, const Left& left, HeadStats& run) {
  const float m = fmaxf(run.m, x.m);
  run.s = __fadd_rn(__fmul_rn(run.s, weight2(run.m, m)), __fmul_rn(x.s, weight2(x.m, m)));
  run.m = m;
  if (forced) return true;
  run.smallest = fminf(run.smallest, x.smallest);
  const double limit = double(__fmul_rn(log_sum(run), kLn2)) + test.slack;
  const double smallest = double(__fmul_rn(run.smallest, kLn2)),
               largest = double(__fmul_rn(x.largest, kLn2));
  switch (test.stop) {
    case Stop::Paper: return smallest + log_left < limit;
    case Stop::Last: return largest + log_left < limit;
    case Stop::Veto: return smallest + log_left < limit && left.log_mass < limit;
    case Stop::Bound: break;
  }
  return left.mass > 0 && left.log_mass <= limit;  // an underflow bounds nothing
}

// Tests the groups of a wave. All kCtaThreads threads of a CTA call it. `memory` must not be in use
// at the start; ends with a barrier. words: [Word][kRowWarps][g] of this wave. run: lane h of warp
// 0 keeps that of head h. decision: in shared memory, outside `memory`. Returns the position at
// which the row stops, or -1, or kGivenUp.
template <bool kPoll>
__device__ inline int decide(const StopTest& test, const RowGeometry& r, const Wave& wave,
                             bool may_stop, const unsigned long long* words, uint32_t tag,
                             const float* top, int g, int block_size, HeadStats& run,
                             StopMemory& memory, int& decision, uint32_t* fault = nullptr) {
  const WaveGroups groups(wave, r, test.microbatch);
  const int thread = threadIdx.x, lane = thread % 32, per_word = kRowWarps * g;
  const bool bounds = needs_bounds(test.stop);
  if (thread < groups.n)
    memory.log_left[thread] = log(double(max(r.n_total - groups.group_end(thread), 1)));
  const int n_words = !wave.wide ? 1 : groups.forced ? 4 : 3;
  bool arrived = read_words<kPoll>(words, tag, per_word * n_words,
                                   reinterpret_cast<uint32_t*>(memory.words), fault);
  if (bounds && wave.end > r.n_forced)
    arrived &=
        read_words<kPoll>(words + kLeft * per_word, tag, 2 * kRowCtas * g, memory.left, fault);
  if (!kPoll) __syncthreads();
  else if (__syncthreads_or(!arrived)) return kGivenUp;
  sum_groups(groups, wave, g, memory);
  __syncthreads();

  if (thread < 32) {
    Left left;
    if (bounds && lane < g)
      left = left_of(lane, g, wave.end > r.n_forced, __ldg(top + lane), block_size, memory);
    int stop = -1;
    for (int i = 0; i < groups.n; ++i) {
      bool pass = true;
      if (lane < g)
        pass = passes(test, memory.groups[i * g + lane], i < groups.forced, memory.log_left[i],
                      left, run);
      pass = __all_sync(kAllLanes, pass);
      if (may_stop && pass && i >= groups.forced && groups.group_end(i) < r.n_total) {
        stop = groups.group_end(i);
        break;
      }
    }
    if (lane == 0) decision = stop;
  }
  __syncthreads();
  return decision;
}

}  // namespace riffle::cuda
