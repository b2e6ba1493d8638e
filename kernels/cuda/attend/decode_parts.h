// The parts of a decode step (score, rank, attend) and the scratch memory between them: for the
// files of decode attention, and for code that times or tests the parts one by one. Plain C++.
#pragma once
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/head_dims.h"

namespace riffle::cuda {

inline constexpr int kCtaWarps = 4, kCtaThreads = 32 * kCtaWarps, kRowCtas = kRowWarps / kCtaWarps;
inline constexpr int kMaxBlock = 64;  // tokens

// A row's g query heads are attended to in this many parts, each by kRowCtas CTAs of its own.
constexpr int row_parts(int g) { return (g + kMaxGroup - 1) / kMaxGroup; }
// Returns the heads of each part; the last part may have fewer.
constexpr int part_heads(int g) { return (g + row_parts(g) - 1) / row_parts(g); }

// If a model has few KV heads, the positions of a long order are dealt out to slices of kRowWarps
// warps each, so that a single sequence keeps a large GPU busy. A sequence then has up to this many
// items, the parts of all slices of all rows; kRowCtas CTAs attend to each.
inline constexpr int kRowsTogether = 8;
// Returns the most slices of a row, a power of two. With latent attention a layer has one row, and
// two CTAs fit a multiprocessor.
constexpr int most_slices(int n_kv_heads, int g, int head_dim) {
  const int together = head_dim == kLatentDim ? 2 * kRowsTogether : kRowsTogether;
  int slices = 1;
  while (2 * slices * n_kv_heads * row_parts(g) <= together && slices < kMaxSlices) slices *= 2;
  return slices;
}
// The most slices of a row of attend_latent, whose CTAs have all heads of the row.
constexpr int most_latent_slices(int n_kv_heads) { return most_slices(n_kv_heads, 1, 0); }
// Returns the number of slices of a row that reads n positions: the largest power of two up to
// `most` that leaves each warp `least` positions or more. It does not depend on the step's other
// rows, so results do not either.
RIFFLE_HOST_DEVICE constexpr int slices_of(int most, int n, int least = 2) {
  int slices = 1;
  while (2 * slices <= most && n >= least * 2 * slices * kRowWarps) slices *= 2;
  return slices;
}

struct RankState {
  int32_t ranked;           // candidates in the row's order so far
  int32_t sampled;          // samples, which come after the ranked candidates
  unsigned long long last;  // key of the last ranked candidate
};

// ---- scratch

// whole: log2 of a head's whole mass. per_weight: 1 / the stretch of weight that a sample stands
// for.
struct HeadShare {
  float whole, per_weight;
};
// A head has kSamples / g samples, rounded up, so a row may have up to kMaxSamples. share.cpp has
// the same kSamples.
inline constexpr int kSamples = 16, kMaxSamples = 32;
constexpr int samples_each(int g) { return (kSamples + g - 1) / g; }
static_assert(samples_each(11) * 11 <= kMaxSamples && samples_each(15) * 15 <= kMaxSamples);

struct DecodeScratch {
  uint32_t* counters;   // [rows][kCounterStride], cleared by the first kernel of a selection: see
                        // Counter
  RankState* ranks;     // [rows]: candidates to be read; if single tokens are chosen, `last` has
                        // their number, and from bit 32 on RowResult::cached
  float* head_scores;   // [rows][g][max_blocks]: log2 masses of all full blocks
  int32_t* order;       // [rows][max_blocks]: forced blocks, then the chosen ones
  float* cta_states;    // [rows][slices][parts][kRowCtas][cta_floats]
  int32_t* cta_counts;  // [rows][slices][parts][kRowCtas][2]: lookups, misses
  float* slice_states;  // [rows][slices][slice_floats]; empty if no row may have two slices
  // Only for the rule share; null for other rules.
  float* tail_scores;     // [rows][head_stride][kMaxBlock]: of the tail's tokens, base 2
  HeadShare* heads;       // [rows][head_stride]
  int32_t* samples;       // [rows][kMaxSamples]: each head's samples, -1: none
  float* sample_weights;  // [rows][kMaxSamples]: log2 of the times that a row's sample counts
  int64_t cta_floats, slice_floats, bytes;
  int head_stride;  // at least g
};
// A row's counters, which share a cache line. kAhead: 1 plus the number of blocks that fetch_ahead
// has brought, once it is done with the row. kFirstPart, for each slice: CTAs of the first part
// that have fetched the blocks that are likely to be read. kFinished: the first of
// AttendArgs::arrived. The other counters belong to selections.
enum Counter : int { kAhead = 8, kFirstPart = 9, kFinished = kFirstPart + kMaxSlices };
inline constexpr int kCounterStride = 64;
static_assert(kFinished + kRowArrivals <= kCounterStride);

inline int padded_group(int g) { return g <= 1 ? 1 : g <= 2 ? 2 : g <= 4 ? 4 : 8; }

// Returns the floats of a state: values and {m, s} of some heads, in whole 16-byte chunks.
constexpr int64_t state_floats(int64_t heads, int64_t dim) {
  return heads * dim + (2 * heads + 3) / 4 * 4;
}

// Deals out a step's scratch memory, part by part.
struct ScratchParts {
  std::byte* base;
  int64_t at = 0;

  template <class T>
  void take(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(base + at);
    at += (count * int64_t(sizeof(T)) + 255) / 256 * 256;
  }
};

// shares: includes the parts that shares need.
inline void take_scratch(const DecodeStep& step, bool shares, ScratchParts& parts,
                         DecodeScratch& s) {
  const int g = step.n_heads / step.n_kv_heads;
  const int64_t rows = int64_t(step.n) * step.n_kv_heads,
                slices = most_slices(step.n_kv_heads, g, step.layout.head_dim),
                items = rows * slices * row_parts(g);
  const int64_t dim = padded_dim(step.layout.head_dim);
  s.cta_floats = state_floats(part_heads(g), dim);
  s.slice_floats = state_floats(g, dim);
  s.head_stride = kMaxGroup * row_parts(g);
  parts.take(s.counters, rows * kCounterStride);
  parts.take(s.ranks, rows);
  parts.take(s.head_scores, rows * g * step.max_blocks);
  parts.take(s.order, rows * step.max_blocks);
  int64_t state_sum = items * s.cta_floats, ctas = items * kRowCtas;
  if (dim == kLatentDim) {  // attend_latent has other items
    const int64_t latent = rows * most_latent_slices(step.n_kv_heads);
    state_sum = std::max(state_sum, latent * s.slice_floats);
    ctas = std::max(ctas, latent * kRowCtas);
  }
  parts.take(s.cta_states, kRowCtas * state_sum);
  parts.take(s.cta_counts, ctas * 2);
  parts.take(s.slice_states, slices > 1 ? rows * slices * s.slice_floats : 0);
  if (shares) {
    parts.take(s.tail_scores, rows * s.head_stride * kMaxBlock);
    parts.take(s.heads, rows * s.head_stride);
    parts.take(s.samples, rows * kMaxSamples);
    parts.take(s.sample_weights, rows * kMaxSamples);
  }
  s.bytes = parts.at;
}
inline DecodeScratch decode_scratch(const DecodeStep& step) {
  DecodeScratch s{};
  ScratchParts parts{static_cast<std::byte*>(step.scratch)};
  take_scratch(step, true, parts, s);
  return s;
}

// ---- between files

// estimate.cu and choose_share.cu: the mass that each full block holds for each head; then the
// rows' orders, and how many of their candidates are to be read (ranks[row].ranked). estimate_rows
// also clears the row counters, so it goes first.
Status estimate_rows(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                     cudaStream_t stream);
Status choose_orders(const DecodeStep& step, const ShareRule& share, const DecodeScratch& scratch,
                     cudaStream_t stream);

// attend.cu: arguments of one launch of the attention kernel.
struct AttendArgs {
  DecodeStep step;
  DecodeScratch scratch;
  int32_t* order;    // [rows][max_blocks]
  int heads;         // g
  int parts, group;  // parts of a row; the most heads of a part
  int slices;        // the most slices of a row
  int least;         // positions that a slice leaves to each warp at least
  int n_stages;      // blocks of the ring that each warp has in shared memory
  bool halves;  // there is room for half a block only: its keys, then its values in their place
  bool tokens;  // single tokens are chosen: scratch.ranks has their number
  int n_groups, n_loaders;  // row groups; CTAs that fetch for rows whose turn is to come, if any
  float scale;              // log2(e) / sqrt(d)
  // [rows][kRowArrivals], rows arrived_stride apart. Counters of a row: finished parts; finished
  // slices of each part; finished CTAs of each part of each slice. All are 0 before and after a
  // launch.
  uint32_t* arrived;
  int64_t arrived_stride;
};
// Returns the number of items of one slice of all rows.
RIFFLE_HOST_DEVICE inline int items_of_slice(const AttendArgs& a) {
  return a.step.n * a.step.n_kv_heads * a.parts;
}
// Arguments of a step's attention; the counters of the scratch tell which CTAs have finished.
AttendArgs attend_arguments(const DecodeStep& step, const DecodeScratch& scratch);
Status attend_f16(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
Status attend_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
Status attend_q8(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
// Launches the kernel for the type of the blocks.
inline Status attend(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  switch (args.step.layout.type) {
    case KvType::F16: return attend_f16(args, limits, stream);
    case KvType::F32: return attend_f32(args, limits, stream);
    case KvType::Q8: return attend_q8(args, limits, stream);
  }
  return cudaErrorInvalidValue;
}
// Tells whether blocks of this layout fit a device of these limits: cudaSuccess or
// cudaErrorNotSupported.
Status attend_fits_f16(const KvLayout& layout, const DeviceLimits& limits);
Status attend_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits);
Status attend_fits_q8(const KvLayout& layout, const DeviceLimits& limits);

// Records the event after the work launched so far. Does nothing if it is null.
inline Status mark(cudaEvent_t event, cudaStream_t stream) {
  return event ? cudaEventRecord(event, stream) : cudaSuccess;
}

}  // namespace riffle::cuda
