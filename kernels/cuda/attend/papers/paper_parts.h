// The parts of a decode step by the rules of papers/rules.h, and the scratch memory between them:
// for the files of decode attention, and for code that times or tests the parts one by one. Plain
// C++.
#pragma once
#include "kernels/cuda/attend/decode_parts.h"
#include "kernels/cuda/attend/papers/attend.h"

namespace riffle::cuda {

// ---- scratch

// The stopping test's numbers for some blocks and one head: their joint mass as a base-2 online
// softmax (largest, sum), and the smallest and largest of their masses (log2).
struct HeadStats {
  float m, s, smallest, largest;
};

// head_scores has further uses. SoftSum, Union: each head's scores of the candidates. top_p after a
// ranking with a test: log masses by position.
struct PaperScratch : DecodeScratch {
  float* top;     // [rows][kMaxGroup]: largest bound of each head; top_p: its threshold
  float* scores;  // [rows][max_blocks], candidates in token order
  // [rows][g][max_blocks]: Bound, Veto: log of a candidate's bound, minus log block_size; top_p
  // after a ranking with a test: a block's largest score, by position.
  float* bounds;
  // [rows][g][2][max_blocks]: Union: indices that are sorted; top_p: float, the CTAs' parts of a
  // head's largest score; vote: each head's factor or threshold.
  int32_t* sorted;
  // [rows][2][kWords][kRowWarps][g]: masses that warps publish, see stop.cuh.
  unsigned long long* words;
  HeadStats* run;  // [rows][kMaxGroup]: host-driven steps: the test's numbers so far
  // [rows][g][max_blocks * block_size], if single tokens are chosen. top_p: scores by position in
  // the base's order, then weights. vote: logits by token, then votes in the place of head 0.
  float* token_scores;
  uint64_t* masks;                  // [rows][max_blocks], by block
  unsigned long long* weight_sums;  // [rows][g][kWeightBins]; top_p: sums by the leading bits
  // [rows][kRowWarps][lane_floats][32]: host-driven steps; the last 4: m, s, unused.
  float* lane_states;
  int64_t lane_floats;
};
inline constexpr int kWeightBins = 2048;
inline constexpr int kWords = 5;

// tokens: single tokens are chosen. with_lanes: every lane's state is kept between launches, as
// host-driven steps need it.
inline PaperScratch paper_scratch(const DecodeStep& step, bool tokens, bool with_lanes) {
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, g = step.n_heads / step.n_kv_heads;
  const int64_t per_head = rows * g * step.max_blocks;
  PaperScratch s{};
  // The most values a lane holds: 8 heads of MmaBlock, or of CoreBlock (attend_mma.cuh,
  // attend_block.cuh).
  s.lane_floats =
      (padded_dim(step.layout.head_dim) > 128 || step.layout.type != KvType::F32 ? 64 : 32) + 4;
  ScratchParts parts{static_cast<std::byte*>(step.scratch)};
  take_scratch(step, false, parts, s);
  parts.take(s.top, rows * kMaxGroup);
  parts.take(s.scores, rows * step.max_blocks);
  parts.take(s.bounds, per_head);
  parts.take(s.sorted, 2 * per_head);
  parts.take(s.words, rows * 2 * kWords * kRowWarps * g);
  parts.take(s.run, rows * kMaxGroup);
  if (tokens) {
    parts.take(s.token_scores, per_head * step.layout.block_size);
    parts.take(s.masks, rows * step.max_blocks);
    parts.take(s.weight_sums, rows * g * kWeightBins);
  }
  if (with_lanes) parts.take(s.lane_states, rows * kRowWarps * 32 * s.lane_floats);
  s.bytes = parts.at;
  return s;
}

// ---- between files

// score.cu: the scores and bounds that the ranking and the test need, by the digests. It also
// clears the row counters, so it goes first.
Status score_rows(const DecodeStep& step, const RankRule& rank, const PaperScratch& scratch,
                  int n_sm, cudaStream_t stream);
// rank.cu: combines the heads' scores and ranks the first `want` positions of every row (0: the
// first chunk; without a test: all that the row may read). want < 0: continues the rows' ranking
// until -want positions are ranked.
Status rank_orders(const DecodeStep& step, const RankRule& rank, const PaperScratch& scratch,
                   int32_t* order, int32_t* counts, int want, cudaStream_t stream);

// top_p_scores.cu and top_p.cu, between the ranking (none if the base is everything) and attention.
// They make the masks of the tokens to attend to, the rows' orders of the blocks that hold any, and
// their numbers (ranks[row]).
bool ranks_base(const TopPRule& rule);
Status score_tokens(const DecodeStep& step, const TopPRule& rule, const PaperScratch& scratch,
                    int n_sm, cudaStream_t stream);
Status choose_tokens(const DecodeStep& step, const TopPRule& rule, const PaperScratch& scratch,
                     int n_sm, cudaStream_t stream);

// vote.cu, instead of scores and ranking: the same output as that of top_p.cu, by a vote of all
// heads on the keys themselves.
Status vote_tokens(const DecodeStep& step, const VoteRule& rule, const PaperScratch& scratch,
                   int n_sm, cudaStream_t stream);
Status choose_voted(const DecodeStep& step, const VoteRule& rule, const PaperScratch& scratch,
                    int n_sm, cudaStream_t stream);

// progressive.cuh: arguments of one launch of the attention kernel with tests, or of a host-driven
// step.
struct ProgressiveArgs : AttendArgs {
  PaperScratch paper;  // `scratch` is a part of it
  RankRule rank;
  // Host-driven: positions [begin, end) from sources, states kept in scratch.
  bool streamed, load_states, merge;
  const std::byte* const* sources;
  int64_t max_positions;
  int begin, end;
  const int32_t* done;
};
Status progressive_f16(const ProgressiveArgs& args, const DeviceLimits& limits,
                       cudaStream_t stream);
Status progressive_f32(const ProgressiveArgs& args, const DeviceLimits& limits,
                       cudaStream_t stream);
Status progressive_q8(const ProgressiveArgs& args, const DeviceLimits& limits, cudaStream_t stream);
inline Status attend_progressively(const ProgressiveArgs& args, const DeviceLimits& limits,
                                   cudaStream_t stream) {
  switch (args.step.layout.type) {
    case KvType::F16: return progressive_f16(args, limits, stream);
    case KvType::F32: return progressive_f32(args, limits, stream);
    case KvType::Q8: return progressive_q8(args, limits, stream);
  }
  return cudaErrorInvalidValue;
}
Status progressive_fits_f16(const KvLayout& layout, const DeviceLimits& limits);
Status progressive_fits_f32(const KvLayout& layout, int group, const DeviceLimits& limits);
Status progressive_fits_q8(const KvLayout& layout, const DeviceLimits& limits);

}  // namespace riffle::cuda
