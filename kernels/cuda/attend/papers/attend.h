// Decode attention of one layer by the rules of papers/rules.h: all on the device, or in pieces
// that the host drives.
#pragma once
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/select/papers/rules.h"

namespace riffle::cuda {

// Returns the bytes of scratch that suffice for step.n, max_blocks and the rules below. tokens:
// also for rules that choose single tokens, which take 4 more bytes a token and query head.
size_t paper_scratch_bytes(const DecodeStep& step, bool tokens);
// Tells whether the kernels below fit the device, as decode_supported does for the core's. They
// take rows of at most kMaxGroup query heads.
Status paper_decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits);

// Does the same as attend_share with this rule. cudaErrorNotSupported: Stop::Bound or Veto with
// rank.codes, or with top_p.
Status attend_ranked(const DecodeStep& step, const RankRule& rank, const DeviceLimits& limits,
                     cudaStream_t stream);
Status attend_top_p(const DecodeStep& step, const TopPRule& rule, const DeviceLimits& limits,
                    cudaStream_t stream);
// step.rule has no sinks and no recent blocks.
Status attend_voted(const DecodeStep& step, const VoteRule& rule, const DeviceLimits& limits,
                    cudaStream_t stream);

// The same in pieces, driven by the host (pipelined PSA).
// - rank_rows begins a step: it scores, and ranks at least the first `first` positions of every row
//   into order (forced blocks first) and counts. The host reads both to look blocks up.
// - attend_positions attends to positions [begin, end) of rows that are not done, from the given
//   sources (the tail's is not used: it comes from the sequence). It updates the warps' states in
//   scratch and publishes masses.
// - verify_rows tests after [begin, end). It sets done[row] (also when the row has read all it may)
//   and results (lookups and misses 0). When no row is left it stores epoch into *flag (mapped
//   pinned host memory) after __threadfence_system().
// - finish_rows merges the warps' states into out and lse.
// Ranges: the forced blocks (sinks + recent + 1) first, then microbatches.
struct StreamedStep {
  DecodeStep step;  // pool and order unused; scratch: streamed_scratch_bytes, need not be cleared
  RankRule rank;    // by digests
  int32_t* order = nullptr;   // [rows][max_blocks]
  int32_t* counts = nullptr;  // [rows][2]: n_forced, n_total
  const std::byte* const* sources =
      nullptr;  // [rows][max_positions] device or pinned pointers, of positions [begin, end)
  int64_t max_positions = 0;
  int32_t* done = nullptr;      // [rows]
  int32_t* n_active = nullptr;  // [1]
};
size_t streamed_scratch_bytes(const DecodeStep& step);
Status rank_rows(const StreamedStep& step, int32_t first, const DeviceLimits& limits,
                 cudaStream_t stream);
// Extends the rows' orders so that positions below `want` are ranked.
Status rank_more(const StreamedStep& step, int32_t want, const DeviceLimits& limits,
                 cudaStream_t stream);
Status attend_positions(const StreamedStep& step, int32_t begin, int32_t end,
                        const DeviceLimits& limits, cudaStream_t stream);
Status verify_rows(const StreamedStep& step, int32_t begin, int32_t end, uint32_t* flag,
                   uint32_t epoch, cudaStream_t stream);
Status finish_rows(const StreamedStep& step, const DeviceLimits& limits, cudaStream_t stream);

}  // namespace riffle::cuda
