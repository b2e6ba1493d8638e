// The selectors of published papers on a GPU.
#pragma once
#include "backend/cuda/step_selection.h"
#include "kernels/cuda/attend/papers/attend.h"
#include "select/papers/rules.h"

namespace riffle::cuda {

class PaperSelection : public StepSelection {
 public:
  int most_group() const override { return kMaxGroup; }
  int most_dim() const override { return kMaxNarrowDim; }
};

// psa and topk, and twilight over topk with top_p 1, which drops no token.
class RankedSelection : public PaperSelection {
 public:
  explicit RankedSelection(const ReadsRanked& rule);

  const RankRule& rank() const { return rank_; }
  KeyCodes codes() const override { return rank_.codes ? KeyCodes::Int2 : KeyCodes::None; }
  bool mean_keys() const override { return rank_.progressive() && rank_.test.stop == Stop::Veto; }
  size_t scratch_bytes(const DecodeStep& step) const override;
  Status attend(const DecodeStep& step, const DeviceLimits& limits,
                cudaStream_t stream) const override;
  int64_t index_bytes(const BlockLayout& layout, int n_blocks, int64_t n_tokens) const override;

 private:
  RankRule rank_;
};

}  // namespace riffle::cuda
