// A fixed budget: the forced blocks and the best-scored others (InfLLM, Quest, ArkVale by choice of
// digest).
#include "select/int4_keys.h"
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
    r.recent_blocks = s_.window_blocks;
    r.digest = s_.digest;
    r.gqa = s_.gqa;
    r.budget = s_.budget;
    r.rank_codes = ranks_by_codes(s_);
    return r;
  }
  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    return ranks_by_codes(s_) ? std::make_unique<Int4Keys>(shape) : nullptr;
  }
  bool fits(const SelectorState* state) const override {
    return !ranks_by_codes(s_) || dynamic_cast<const Int4Keys*>(state) != nullptr;
  }
  uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const override {
    return ranks_by_codes(s_) ? Int4Keys::bytes_for(shape, n_tokens) : 0;
  }
  bool has_parts() const override { return ranks_by_codes(s_); }
  int prepare(const Row& row, RowPlan& plan) const override {
    return prepare_scores(row, s_, plan);
  }
  void part(const Row& row, RowPlan& plan, int i, Buffer& scratch) const override {
    score_part(row, plan, i, scratch);
  }
  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.window_blocks);
    score_candidates(row, s_, plan);
    plan.rank(plan.scores.data(), budget_blocks(row, s_.budget) - plan.n_forced());
  }

 private:
  riffle_selection s_;
};

}  // namespace

std::unique_ptr<Selector> make_topk(const riffle_selection& settings) {
  return std::make_unique<TopK>(settings);
}

}  // namespace riffle
