// A fixed budget: the forced blocks and the best-scored others (InfLLM, Quest, ArkVale by choice of
// digest).
#include "select/int4_selector.h"

namespace riffle {
namespace {

class TopK : public RankingSelector {
 public:
  explicit TopK(const Selection& s) : RankingSelector(s) {}

  const char* name() const override { return "topk"; }
  SelectionRule rule() const override {
    SelectionRule r;
    r.sink_blocks = s_.sink_blocks;
    r.recent_blocks = s_.recent_blocks;
    r.digest = s_.digest;
    r.gqa = s_.gqa;
    r.budget = s_.budget;
    r.rank_codes = ranks_by_codes(s_);
    return r;
  }
  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.recent_blocks);
    score_candidates(row, s_, plan);
    plan.rank(plan.scores.data(), budget_blocks(row, s_.budget) - plan.n_forced());
  }
};

}  // namespace

std::unique_ptr<Selector> make_topk(const Selection& settings) {
  return std::make_unique<TopK>(settings);
}

}  // namespace riffle
