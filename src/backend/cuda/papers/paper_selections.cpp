#include "backend/cuda/papers/paper_selections.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/select/int2.h"
#include "kernels/cuda/select/int4.cuh"

namespace riffle::cuda {

static_assert(int(DigestKind::CuboidMean) == int(BlockDigest::CUBOID_MEAN) &&
              int(Gqa::Union) == int(HeadRule::UNION) && int(Stop::Veto) == int(StopRule::VETO) &&
              int(Stop::Bound) == int(StopRule::BOUND) &&
              int(VoteKind::Hard) == int(riffle::VoteRule::HARD));

namespace {

RankRule rank_rule(const ReadsRanked& rule) {
  RankRule rank;
  rank.digest = static_cast<DigestKind>(rule.digest);
  rank.gqa = static_cast<Gqa>(rule.gqa);
  rank.codes = rule.codes;
  rank.budget = rule.budget;
  rank.test = {static_cast<Stop>(rule.test.stop), rule.test.slack, rule.test.microbatch};
  return rank;
}

// A row's forced blocks, except the tail, and its candidates.
struct RowBlocks {
  int forced, candidates;
};
RowBlocks row_blocks(const RowRule& rows, int n_blocks) {
  const int full = n_blocks - 1, sinks = std::min(rows.sink_blocks, full),
            recent = std::min(rows.recent_blocks, full - sinks);
  return {sinks + recent, full - sinks - recent};
}

int64_t digest_bytes(const RankRule& rank, int head_dim, int candidates) {
  const bool mean_too = rank.progressive() && rank.test.stop == Stop::Veto;
  return int64_t(candidates) * head_dim *
         ((rank.digest == DigestKind::Mean ? 2 : 4) + (mean_too ? 2 : 0));
}

class TopPSelection : public PaperSelection {
 public:
  explicit TopPSelection(const ReadsTopP& rule) {
    rows_.sink_blocks = rule.base.forced.sink_blocks;
    rows_.recent_blocks = rule.base.forced.recent_blocks;
    rule_.base = rank_rule(rule.base);
    rule_.top_p = rule.top_p;
  }
  KeyCodes codes() const override { return KeyCodes::Int4; }
  size_t scratch_bytes(const DecodeStep& step) const override {
    return std::max(decode_scratch_bytes(step), paper_scratch_bytes(step, true));
  }
  Status attend(const DecodeStep& step, const DeviceLimits& limits,
                cudaStream_t stream) const override {
    return attend_top_p(step, rule_, limits, stream);
  }
  // Counts the INT4 keys of the base's blocks, and the digests by which the base ranked them.
  int64_t index_bytes(const BlockLayout& layout, int n_blocks, int64_t n_tokens) const override {
    const RowBlocks row = row_blocks(rows_, n_blocks);
    const RankRule& base = rule_.base;
    const double tokens = base.budget <= 1 ? base.budget * double(n_tokens) : base.budget;
    const double blocks = base.progressive()
                              ? n_blocks
                              : std::min(std::ceil(tokens / layout.block_size), double(n_blocks));
    const int64_t codes = std::max(static_cast<int>(blocks) - 1, row.forced) *
                          int4_block_bytes(layout.block_size, layout.head_dim);
    if (!base.progressive() && base.budget == 1) return codes;
    return codes + digest_bytes(base, layout.head_dim, row.candidates);
  }

 private:
  TopPRule rule_;
};

class VotedSelection : public PaperSelection {
 public:
  explicit VotedSelection(const ReadsVoted& rule) {
    rows_.sink_blocks = rows_.recent_blocks = 0;
    rule_.select = rule.select;
    rule_.init = rule.init;
    rule_.local = rule.local;
    rule_.kind = static_cast<VoteKind>(rule.vote);
    rule_.cache_threshold = rule.cache_threshold;
  }
  int64_t kept_bytes(int64_t n_query, int64_t max_blocks) const override {
    return vote_bytes(n_query, max_blocks);
  }
  size_t scratch_bytes(const DecodeStep& step) const override {
    return std::max(decode_scratch_bytes(step), paper_scratch_bytes(step, true));
  }
  Status attend(const DecodeStep& step, const DeviceLimits& limits,
                cudaStream_t stream) const override {
    return attend_voted(step, rule_, limits, stream);
  }
  // Counts the candidates' keys.
  int64_t index_bytes(const BlockLayout& layout, int, int64_t n_tokens) const override {
    const int64_t left = n_tokens - rule_.init - rule_.local;
    return left <= rule_.select ? 0 : left * layout.row_bytes();
  }

 private:
  VoteRule rule_;
};

std::unique_ptr<StepSelection> make_paper(const SelectionRule& rule) {
  if (const auto* ranked = dynamic_cast<const ReadsRanked*>(&rule))
    return std::make_unique<RankedSelection>(*ranked);
  if (const auto* top_p = dynamic_cast<const ReadsTopP*>(&rule))
    return std::make_unique<TopPSelection>(*top_p);
  if (const auto* voted = dynamic_cast<const ReadsVoted*>(&rule))
    return std::make_unique<VotedSelection>(*voted);
  return nullptr;
}

// PaperSelection supports at most kMaxGroup query heads per KV head and heads of at most
// kMaxNarrowDim values. Other layers run the core's selectors.
Status supported(const KvLayout& layout, int group, const DeviceLimits& limits) {
  return group > kMaxGroup || layout.head_dim > kMaxNarrowDim
             ? cudaSuccess
             : paper_decode_supported(layout, group, limits);
}

// Returns the most scratch that a rule needs: selectors of single tokens need scores of tokens.
size_t most_scratch(const DecodeStep& step, const SelectionRule* rule) {
  const bool tokens = dynamic_cast<const ReadsTopP*>(rule) || dynamic_cast<const ReadsVoted*>(rule);
  return paper_scratch_bytes(step, tokens);
}

}  // namespace

RankedSelection::RankedSelection(const ReadsRanked& rule) : rank_(rank_rule(rule)) {
  rows_.sink_blocks = rule.forced.sink_blocks;
  rows_.recent_blocks = rule.forced.recent_blocks;
}

size_t RankedSelection::scratch_bytes(const DecodeStep& step) const {
  return std::max(decode_scratch_bytes(step), paper_scratch_bytes(step, false));
}

Status RankedSelection::attend(const DecodeStep& step, const DeviceLimits& limits,
                               cudaStream_t stream) const {
  return attend_ranked(step, rank_, limits, stream);
}

int64_t RankedSelection::index_bytes(const BlockLayout& layout, int n_blocks,
                                     int64_t n_tokens) const {
  if (!rank_.codes)
    return digest_bytes(rank_, layout.head_dim, row_blocks(rows_, n_blocks).candidates);
  const int full = n_blocks - 1;  // the tail has no codes, so its keys are read
  return full * int2_block_bytes(layout.block_size, layout.head_dim) +
         (n_tokens - int64_t(full) * layout.block_size) * layout.row_bytes();
}

void add_papers(StepSelections& all) {
  all.add({.make = make_paper, .supported = supported, .scratch_bytes = most_scratch});
}

}  // namespace riffle::cuda
