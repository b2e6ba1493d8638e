// The selectors of published papers: their makers, and what they share.
#pragma once
#include "select/coded_selector.h"
#include "select/int2_keys.h"
#include "select/papers/rules.h"

namespace riffle {

std::unique_ptr<Selector> make_topk(const Selection& settings);
std::unique_ptr<Selector> make_psa(const Selection& settings);
std::unique_ptr<Selector> make_twilight(const Selection& settings);
std::unique_ptr<Selector> make_tokenselect(const Selection& settings);
std::unique_ptr<Selector> make_lfps(const Selection& settings);

// Tells whether these settings rank blocks by 2-bit keys instead of digests.
inline bool ranks_by_codes(const Selection& s) {
  const bool has_rank = s.selector == SelectorKind::PSA || s.selector == SelectorKind::TOPK;
  return has_rank && s.rank == RankBy::CODES;
}
// score_candidates writes the scores of a plan's candidates to plan.scores; a block with a larger
// score is more critical. The heads of a group are combined (README.md, common ground). Scores come
// from digests, or are masses by 2-bit keys. Bytes read are added to plan.index_bytes. A selector
// that ranks by 2-bit keys calls prepare_scores and score_part as its prepare and part; they leave
// the masses in the plan.
int prepare_scores(const Row& row, const Selection& settings, RowPlan& plan);
void score_part(const Row& row, RowPlan& plan, int i, Buffer& scratch);
void score_candidates(const Row& row, const Selection& settings, RowPlan& plan);
// Returns the number of blocks of a budget: up to 1 the budget is a share of the tokens, above 1 a
// number of tokens.
int budget_blocks(const Row& row, float budget);

// psa and topk: blocks are ranked by digests or by 2-bit keys.
class RankingSelector : public CodedSelector<Int2Keys> {
 public:
  explicit RankingSelector(const Selection& s) : CodedSelector<Int2Keys>(ranks_by_codes(s)), s_(s) {
    rule_.forced = {s.sink_blocks, s.recent_blocks};
    rule_.digest = s.digest;
    rule_.gqa = s.gqa;
    rule_.codes = ranks_by_codes(s);
  }

  std::string described() const override {
    return std::string(name()) + (rule_.codes ? " with `selection.rank` codes" : "");
  }
  const SelectionRule* rule() const override { return host_only() ? nullptr : &rule_; }
  const char* host_only() const override { return nullptr; }
  bool reads_codes() const override { return rule_.codes; }
  int lookahead() const override { return s_.lookahead; }
  bool has_parts() const override { return rule_.codes; }
  int prepare(const Row& row, RowPlan& plan) const override {
    return prepare_scores(row, s_, plan);
  }
  void part(const Row& row, RowPlan& plan, int i, Buffer& scratch) const override {
    score_part(row, plan, i, scratch);
  }

 protected:
  Selection s_;
  ReadsRanked rule_;
};

}  // namespace riffle
