// Decode attention of one layer by the rules of papers/rules.h, all on the device: score, choose,
// attend. Host code alone; the kernels are in the files that paper_parts.h names.
#include "kernels/cuda/attend/papers/paper_parts.h"

namespace riffle::cuda {
namespace {

// Scores, records a mark, chooses, records a mark.
template <class Score, class Choose>
Status choose_blocks(const DecodeStep& step, cudaStream_t stream, Score&& score, Choose&& choose) {
  if (Status status = score(); status != cudaSuccess) return status;
  if (Status status = mark(step.marks[0], stream); status != cudaSuccess) return status;
  if (Status status = choose(); status != cudaSuccess) return status;
  return mark(step.marks[1], stream);
}

// Tells whether the test sums up bounds. Only digests give bounds.
bool bounds(const RankRule& rank) {
  return rank.progressive() && (rank.test.stop == Stop::Bound || rank.test.stop == Stop::Veto);
}

// Attends to the tokens of scratch.masks.
Status attend_tokens(const DecodeStep& step, const PaperScratch& scratch,
                     const DeviceLimits& limits, cudaStream_t stream) {
  AttendArgs args = attend_arguments(step, scratch);
  args.step.masks = scratch.masks;
  args.tokens = true;
  return attend(args, limits, stream);
}

}  // namespace

size_t paper_scratch_bytes(const DecodeStep& step, bool tokens) {
  return static_cast<size_t>(paper_scratch(step, tokens, false).bytes);
}

Status paper_decode_supported(const KvLayout& layout, int group, const DeviceLimits& limits) {
  if (group > kMaxGroup || layout.head_dim > kMaxNarrowDim) return cudaErrorNotSupported;
  if (Status status = decode_supported(layout, group, limits); status != cudaSuccess) return status;
  return layout.type == KvType::F16   ? progressive_fits_f16(layout, limits)
         : layout.type == KvType::F32 ? progressive_fits_f32(layout, group, limits)
                                      : progressive_fits_q8(layout, limits);
}

Status attend_ranked(const DecodeStep& step, const RankRule& rank, const DeviceLimits& limits,
                     cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = paper_decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  if (rank.codes && bounds(rank)) return cudaErrorNotSupported;
  const PaperScratch scratch = paper_scratch(step, false, false);
  const auto score = [&] {
    return rank.codes ? estimate_rows(step, scratch, limits.n_sm, stream)
                      : score_rows(step, rank, scratch, limits.n_sm, stream);
  };
  const auto choose = [&] {
    return rank_orders(step, rank, scratch, scratch.order, nullptr, 0, stream);
  };
  if (Status status = choose_blocks(step, stream, score, choose); status != cudaSuccess)
    return status;
  ProgressiveArgs args{};
  static_cast<AttendArgs&>(args) = attend_arguments(step, scratch);
  if (!rank.progressive()) return attend(args, limits, stream);
  args.paper = scratch;
  args.rank = rank;
  return attend_progressively(args, limits, stream);
}

Status attend_top_p(const DecodeStep& step, const TopPRule& rule, const DeviceLimits& limits,
                    cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = paper_decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  if (bounds(rule.base)) return cudaErrorNotSupported;
  const PaperScratch scratch = paper_scratch(step, true, false);
  // Scores every token of the base's blocks, if the base ranks any.
  const auto score = [&] {
    if (ranks_base(rule)) {
      if (Status status = score_rows(step, rule.base, scratch, limits.n_sm, stream);
          status != cudaSuccess)
        return status;
      const int want = rule.base.progressive() ? static_cast<int>(step.max_blocks) : 0;
      if (Status status =
              rank_orders(step, rule.base, scratch, scratch.order, nullptr, want, stream);
          status != cudaSuccess)
        return status;
    }
    return score_tokens(step, rule, scratch, limits.n_sm, stream);
  };
  const auto choose = [&] { return choose_tokens(step, rule, scratch, limits.n_sm, stream); };
  if (Status status = choose_blocks(step, stream, score, choose); status != cudaSuccess)
    return status;
  return attend_tokens(step, scratch, limits, stream);
}

Status attend_voted(const DecodeStep& step, const VoteRule& rule, const DeviceLimits& limits,
                    cudaStream_t stream) {
  const int g = step.n_heads / step.n_kv_heads;
  if (Status status = paper_decode_supported(step.layout, g, limits); status != cudaSuccess)
    return status;
  const PaperScratch scratch = paper_scratch(step, true, false);
  const auto score = [&] { return vote_tokens(step, rule, scratch, limits.n_sm, stream); };
  const auto choose = [&] { return choose_voted(step, rule, scratch, limits.n_sm, stream); };
  if (Status status = choose_blocks(step, stream, score, choose); status != cudaSuccess)
    return status;
  return attend_tokens(step, scratch, limits, stream);
}

}  // namespace riffle::cuda
