// A fixed budget: the forced blocks and the best-scored others (InfLLM, Quest, ArkVale by choice of digest).
#include <algorithm>
#include <cmath>

#include "select/selector.h"

namespace riffle {
namespace {

class TopK : public Selector {
 public:
  explicit TopK(const riffle_selection& s) : s_(s) {}

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
    const double tokens = s_.budget <= 1 ? double(s_.budget) * double(row.n_tokens) : double(s_.budget);
    const double blocks = std::min(std::ceil(tokens / row.block_size), double(row.n_blocks));
    const int n = plan.n_candidates();
    plan.scores.resize(n);
    group_scores(row, s_.gqa, s_.digest == RIFFLE_DIGEST_MEAN, plan.first_candidate(), n, plan.scratch,
                 plan.scores.data());
    plan.rank(plan.scores.data(), static_cast<int>(blocks) - plan.n_forced());
  }

 private:
  riffle_selection s_;
};

}  // namespace

std::unique_ptr<Selector> make_topk(const riffle_selection& settings) { return std::make_unique<TopK>(settings); }

}  // namespace riffle
