// Reads a fixed budget: the forced blocks and the other blocks with the best scores (InfLLM, Quest
// or ArkVale, by choice of digest).
#include "select/papers/papers.h"

namespace riffle {
namespace {

class TopK : public RankingSelector {
 public:
  explicit TopK(const Selection& s) : RankingSelector(s) { rule_.budget = s.budget; }

  const char* name() const override { return "topk"; }
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
