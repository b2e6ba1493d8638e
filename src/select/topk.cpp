// A fixed budget: the forced blocks and the best-scored others (InfLLM, Quest, ArkVale by choice of digest).
#include "select/selector.h"

namespace riffle {
namespace {

class TopK : public Selector {
 public:
  explicit TopK(const riffle_selection& s) : s_(s) {}

  const char* name() const override { return "topk"; }
  SelectionRule rule() const override {
    SelectionRule r;
    r.sink_blocks = s_.sink_blocks;
    r.window_blocks = s_.window_blocks;
    r.digest = s_.digest;
    r.gqa = s_.gqa;
    r.budget = s_.budget;
    return r;
  }
  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.window_blocks);
    score_candidates(row, s_.gqa, s_.digest == RIFFLE_DIGEST_MEAN, plan);
    plan.rank(plan.scores.data(), budget_blocks(row, s_.budget) - plan.n_forced());
  }

 private:
  riffle_selection s_;
};

}  // namespace

std::unique_ptr<Selector> make_topk(const riffle_selection& settings) { return std::make_unique<TopK>(settings); }

}  // namespace riffle
