// The parts of a decode step (score, rank, attend) and the scratch memory between them: for the
// files of decode attention, and for what times or tests the parts one by one. Plain C++.
#pragma once
#include <type_traits>

#include "kernels/cuda/attend/attend.h"

namespace riffle::cuda {

inline constexpr int kCtaWarps = 4, kCtaThreads = 32 * kCtaWarps, kRowCtas = kRowWarps / kCtaWarps;
inline constexpr int kMaxGroup = 8;
inline constexpr int kMaxBlock = 64;  // tokens

struct RankState {
  int32_t ranked;           // candidates in the row's order so far
  unsigned long long last;  // key of the last of them
};

// ---- scratch

// What the test knows of some blocks for one head: their joint mass as a base-2 online softmax
// (largest, sum), and the smallest and largest of their masses (log2).
struct HeadStats {
  float m, s, smallest, largest;
};

struct DecodeScratch {
  uint32_t* counters;  // [rows][kCounterStride], cleared by score_rows: see attend.cuh
  RankState* ranks;    // [rows]; by share: candidates to be read; top_p, vote: and as `last` the
                       // tokens, and from bit 32 on RowResult::cached
  float* top;          // [rows][kMaxGroup]: largest bound of each head; top_p: its threshold
  float* scores;       // [rows][max_blocks], candidates in token order
  float* head_scores;  // [rows][g][max_blocks]: SoftSum, Union; by share: log2 masses of all full
                       // blocks; top_p after psa's ranking: log masses by position
  float* bounds;       // [rows][g][max_blocks]: Bound, Veto: log of a candidate's bound, less log
                  // block_size; top_p after psa's ranking: a block's largest score, by position
  int32_t* order;  // [rows][max_blocks]: forced blocks, then what is ranked
  int32_t*
      sorted;  // [rows][g][2][max_blocks]: Union; top_p: float, the parts of a head's largest score
  unsigned long long*
      words;            // [rows][2][kWords][kRowWarps][g]: masses that warps publish, see stop.cuh
  HeadStats* run;       // [rows][kMaxGroup]: host-driven steps: the test's numbers so far
  float* cta_states;    // [rows][kRowCtas][cta_floats]
  int32_t* cta_counts;  // [rows][kRowCtas][2]: lookups, misses
  float* token_scores;  // [rows][g][max_blocks * block_size]; top_p: by position in the base's
                        // order, then weights; vote: by token, then votes in the place of head 0;
                        // only if chooses_tokens
  uint64_t* masks;      // [rows][max_blocks], by block; only if chooses_tokens
  unsigned long long*
      weight_sums;  // [rows][g][kWeightBins]; only top_p: sums of weights by their leading bits
  float* unread;    // [rows][kMaxGroup]: share of a head's weight in blocks that are not read; only
                    // by_share
  float* tail_scores;  // [rows][kMaxGroup][kMaxBlock]: of the tail's tokens, base 2; only by_share
  float* mean_value;   // [rows][padded dim]: what stands for those blocks' values; only by_share
  float* lane_states;  // [rows][kRowWarps][lane_floats][32]: host-driven steps only; the last 4: m,
                       // s, unused
  int64_t cta_floats, lane_floats, bytes;
};
inline constexpr int kWeightBins = 2048;
inline constexpr int kWords = 5;
inline constexpr int kCounterStride = 32;  // a cache line each

// Selections that end as a mask for each block and an order of the blocks that hold any token.
__host__ __device__ inline bool chooses_tokens(const Ranked& r) {
  return !r.everything && (r.top_p > 0 || r.vote.select > 0);
}
// ... or as an order of some blocks; ranks[row].ranked of the candidates are read.
__host__ __device__ inline bool chooses_order(const Ranked& r) {
  return chooses_tokens(r) || (!r.everything && r.by_share);
}

// A mean value stands for the blocks that are not read.
__host__ __device__ inline bool blends_mean(const Ranked& r) { return !r.everything && r.by_share; }

inline int padded_group(int g) { return g <= 1 ? 1 : g <= 2 ? 2 : g <= 4 ? 4 : 8; }
inline int padded_dim(int d) { return d <= 32 ? 32 : d <= 64 ? 64 : d <= 128 ? 128 : 256; }

// with_lanes: host-driven steps keep every lane's state between launches.
inline DecodeScratch decode_scratch(const DecodeStep& step, bool with_lanes) {
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, g = step.n_heads / step.n_kv_heads;
  const int64_t per_head = rows * g * step.max_blocks;
  const int64_t dim = padded_dim(step.layout.head_dim);
  DecodeScratch s{};
  s.cta_floats = g * dim + (2 * g + 3) / 4 * 4;  // whole 16-byte chunks
  // The most values a lane holds: 8 heads of MmaBlock, or of CoreBlock (attend_mma.cuh,
  // attend_block.cuh).
  s.lane_floats = (dim > 128 || step.layout.type != KvType::F32 ? 64 : 32) + 4;
  auto* base = static_cast<std::byte*>(step.scratch);
  int64_t at = 0;
  auto take = [&](auto*& pointer, int64_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
    at += (count * int64_t(sizeof *pointer) + 255) / 256 * 256;
  };
  take(s.counters, rows * kCounterStride);
  take(s.ranks, rows);
  take(s.top, rows * kMaxGroup);
  take(s.scores, rows * step.max_blocks);
  take(s.head_scores, per_head);
  take(s.bounds, per_head);
  take(s.order, rows * step.max_blocks);
  take(s.sorted, 2 * per_head);
  take(s.words, rows * 2 * kWords * kRowWarps * g);
  take(s.run, rows * kMaxGroup);
  take(s.cta_states, rows * kRowCtas * s.cta_floats);
  take(s.cta_counts, rows * kRowCtas * 2);
  if (chooses_tokens(step.ranked)) {
    take(s.token_scores, per_head * step.layout.block_size);
    take(s.masks, rows * step.max_blocks);
    take(s.weight_sums, rows * g * kWeightBins);
  }
  if (blends_mean(step.ranked)) {
    take(s.unread, rows * kMaxGroup);
    take(s.tail_scores, rows * kMaxGroup * kMaxBlock);
    take(s.mean_value, rows * dim);
  }
  if (with_lanes) take(s.lane_states, rows * kRowWarps * 32 * s.lane_floats);
  s.bytes = at;
  return s;
}

// ---- between files

// score.cu: what the ranking and the test need of the digests. Also clears the row counters, so it
// goes first.
Status score_rows(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                  cudaStream_t stream);
// rank.cu: combines the heads' scores and ranks the first `want` positions of every row (0: the
// first chunk; one shot: all that the row may read). want < 0: goes on from where the rows' ranking
// stands, until -want positions are ranked.
Status rank_orders(const DecodeStep& step, const DecodeScratch& scratch, int32_t* order,
                   int32_t* counts, int want, cudaStream_t stream);

// estimate.cu and choose_share.cu, in place of the two above for Ranked::by_share: what each full
// block holds of each head's weight; the rows' orders, and how many of their candidates are to be
// read (ranks[row].ranked).
Status estimate_rows(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                     cudaStream_t stream);
Status choose_orders(const DecodeStep& step, const DecodeScratch& scratch, cudaStream_t stream);

// top_p_scores.cu and top_p.cu, between the ranking (none where the base is everything) and
// attention: the tokens to attend to as masks, the rows' orders of the blocks that hold any, and
// their numbers (ranks[row]).
bool ranks_base(const Ranked& ranked);
Status score_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                    cudaStream_t stream);
Status choose_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                     cudaStream_t stream);

// vote.cu, instead of scores and ranking: what top_p.cu comes to, by a vote of all heads on the
// keys themselves.
Status vote_tokens(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                   cudaStream_t stream);
Status choose_voted(const DecodeStep& step, const DecodeScratch& scratch, int n_sm,
                    cudaStream_t stream);

// attend.cu: what one launch of the attention kernel does.
struct AttendArgs {
  DecodeStep step;
  DecodeScratch scratch;
  int32_t* order;  // [rows][max_blocks]
  int group;       // g
  int n_stages;    // blocks of the ring that each warp has in shared memory
  bool halves;     // there is room for half a block only: its keys, then its values in their place
  int n_groups, n_loaders;  // of the grid: row groups, and CTAs that fetch for rows whose turn is
                            // to come (0: none do)
  float scale;              // log2(e) / sqrt(d)
  bool tests;               // progressive: tests between microbatches
  uint32_t* arrived;  // [rows] arrived_stride apart: CTAs of the row that have finished; 0 before
                      // and after
  int64_t arrived_stride;
  // Host-driven: positions [begin, end) from sources, states kept in scratch.
  bool streamed, load_states, merge;
  const std::byte* const* sources;
  int64_t max_positions;
  int begin, end;
  const int32_t* done;
};
Status attend_f16(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
Status attend_f32(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
Status attend_q8(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream);
// The one for the blocks' type.
inline Status attend(const AttendArgs& args, const DeviceLimits& limits, cudaStream_t stream) {
  switch (args.step.layout.type) {
    case KvType::F16: return attend_f16(args, limits, stream);
    case KvType::F32: return attend_f32(args, limits, stream);
    case KvType::Q8: return attend_q8(args, limits, stream);
  }
  return cudaErrorInvalidValue;
}
// Whether such blocks fit a device of these limits: cudaSuccess or cudaErrorNotSupported.
Status attend_fits_f16(const KvLayout& layout, const DeviceLimits& limits);
Status attend_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits);
Status attend_fits_q8(const KvLayout& layout, const DeviceLimits& limits);

}  // namespace riffle::cuda
