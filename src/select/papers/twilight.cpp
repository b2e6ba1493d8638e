// Twilight (arXiv 2502.02770; README.md): a base selector proposes blocks generously. The weights
// of their tokens are estimated from INT4 keys, and each head keeps the fewest tokens that hold
// top_p of the estimated weight. Attention then reads only these tokens and normalises over them.
#include <algorithm>
#include <bit>
#include <cmath>

#include "select/coded_selector.h"
#include "select/papers/int4_keys.h"
#include "select/papers/papers.h"
#include "select/papers/top_p.h"
#include "util/error.h"

namespace riffle {
namespace {

class Twilight : public CodedSelector<Int4Keys> {
 public:
  explicit Twilight(const Selection& s) : CodedSelector<Int4Keys>(true), s_(s) {
    if (s.base == BaseSelection::PSA && s.epsilon < 1) psa_ = make_psa(s);
    rule_.top_p = s.top_p;
    if (psa_) {
      rule_.base = dynamic_cast<const ReadsRanked&>(*psa_->rule());
      return;
    }
    rule_.base.forced = {s.sink_blocks, s.recent_blocks};
    if (s.base != BaseSelection::TOPK) return;
    rule_.base.digest = s.digest;
    rule_.base.gqa = s.gqa;
    rule_.base.budget = s.base_budget;
  }

  const char* name() const override { return "twilight"; }
  // A top_p of 1 drops no token, so the rule is that of the base alone.
  const SelectionRule* rule() const override {
    if (host_only()) return nullptr;
    if (psa_ || s_.top_p < 1) return &rule_;
    return s_.base == BaseSelection::TOPK ? static_cast<const SelectionRule*>(&rule_.base)
                                          : &everything_;
  }
  bool reads_codes() const override { return psa_ || s_.top_p < 1; }
  // A GPU runs psa's test only on estimated masses, not on bounds of masses.
  const char* host_only() const override {
    return psa_ && (s_.stop == StopRule::BOUND || s_.stop == StopRule::VETO)
               ? "with base psa and stop bound or veto has no GPU kernels (paper and last do)"
               : nullptr;
  }
  void begin(const Row& row, RowPlan& plan) const override {
    if (s_.top_p >= 1 && s_.base != BaseSelection::TOPK && !psa_) return plan.everything(row);
    const auto* keys = dynamic_cast<const Int4Keys*>(row.state);
    if (!keys || keys->blocks(row.source, row.head) < row.n_full)
      fail(RIFFLE_INTERNAL, "layer %d, KV head %d has INT4 codes of %d blocks, expected %d",
           row.layer, row.head, keys ? keys->blocks(row.source, row.head) : 0, row.n_full);
    plan.forced(row, s_.sink_blocks, s_.recent_blocks);
    Work w;
    if (psa_) {
      psa_->begin(row, plan);
      w = work(row, plan, *keys, row.n_blocks);
      base_psa(row, plan, *keys, w);
    } else if (s_.base == BaseSelection::TOPK) {
      score_candidates(row, s_, plan);
      const int keep =
          std::clamp(budget_blocks(row, s_.base_budget) - plan.n_forced(), 0, plan.n_candidates());
      w = work(row, plan, *keys, plan.n_forced() + keep);
      base_topk(row, plan, keep, w);
    } else {
      w = work(row, plan, *keys, row.n_blocks);
      for (; w.n < row.n_blocks; ++w.n) w.blocks[w.n] = w.n;
    }
    if (!psa_ && s_.top_p < 1) estimate(row, plan, *keys, 0, w.n, w);
    keep_top_p(row, plan, w);
    plan.masked(row, w.masks);
  }

 private:
  // A row's scratch, in plan.work.
  struct Work {
    int n = 0;                  // number of blocks of the base, the tail included
    int32_t* blocks = nullptr;  // [n], in the order in which the base took them
    float* scores = nullptr;    // [g][ldo]: scores of the i-th block begin at i * block_size
    int64_t ldo = 0;
    float* scratch = nullptr;  // top_scratch for a head's tokens, or for the blocks
    void* query = nullptr;
    uint64_t* marks = nullptr;  // a bit for each score
    uint64_t* masks = nullptr;  // masks of all blocks of the row
    float* l = nullptr;         // psa: [microbatch][g], then [g]
  };

  // Returns the number of blocks in a microbatch of base psa; 0 for other bases.
  int base_batch(const Row& row) const { return psa_ ? std::min(s_.microbatch, row.n_blocks) : 0; }

  Work work(const Row& row, RowPlan& plan, const Int4Keys& keys, int most_blocks) const {
    Work w;
    const int64_t tokens = int64_t(most_blocks) * row.block_size,
                  n_l = int64_t(row.g) * (base_batch(row) + 1);
    // Heads lie an odd number of cache lines apart: at a power of two they would share cache sets.
    w.ldo = ((tokens + 15) / 16 | 1) * 16;
    size_t used = 0;
    const auto take = [&used](int64_t bytes) {
      const size_t at = used;
      used += (bytes + 63) / 64 * 64;
      return at;
    };
    const size_t scores = take(row.g * w.ldo * 4),
                 scratch = take(top_scratch(std::max<int64_t>(tokens, row.n_blocks)) * 4),
                 query = take(keys.query_bytes(row.g)), marks = take((tokens + 63) / 64 * 8),
                 masks = take(int64_t(row.n_blocks) * 8), blocks = take(int64_t(most_blocks) * 4),
                 l = take(n_l * 4);
    if (used > plan.work.size()) plan.work.reserve(used + used / 4);  // does not grow every block
    auto* base = plan.work.as<std::byte>();
    w.scores = reinterpret_cast<float*>(base + scores);
    w.scratch = reinterpret_cast<float*>(base + scratch);
    w.query = base + query;
    w.marks = reinterpret_cast<uint64_t*>(base + marks);
    w.masks = reinterpret_cast<uint64_t*>(base + masks);
    w.blocks = reinterpret_cast<int32_t*>(base + blocks);
    w.l = reinterpret_cast<float*>(base + l);
    keys.prepare_query(row.q, row.g, w.query);
    return w;
  }

  // Takes the forced blocks and the `keep` best candidates (ties: the lower block), in token order,
  // so that codes of neighbours are read as one run.
  void base_topk(const Row& row, const RowPlan& plan, int keep, Work& w) const {
    const int first = plan.first_candidate(), n = plan.n_candidates();
    float threshold = 0;
    int equals = 0;  // number of candidates to keep whose score is the threshold
    if (keep > 0) {
      const float* scores = plan.scores.data();
      threshold = kth_largest(row.kernels->select, scores, n, keep, w.scratch);
      equals = keep;
      for (int i = 0; i < n; ++i) equals -= scores[i] > threshold;
    }
    for (int b = 0; b < row.n_blocks; ++b) {
      const int i = b - first;
      bool taken = i < 0 || i >= n;
      if (!taken && keep > 0) {
        const float score = plan.scores[i];
        taken = score > threshold || (score == threshold && equals-- > 0);
      }
      if (taken) w.blocks[w.n++] = b;
    }
  }

  // Takes blocks by PSA's order and test (README.md) on estimated masses. No KV except the tail is
  // read.
  void base_psa(const Row& row, RowPlan& plan, const Int4Keys& keys, Work& w) const {
    const int size = plan.size(), g = row.g;
    float *l_blocks = w.l, *l = w.l + g * base_batch(row);
    std::fill_n(l, g, -INFINITY);
    const auto take = [&](int end) {
      const int begin = w.n;
      for (; w.n < end; ++w.n) w.blocks[w.n] = plan.at(w.n);
      estimate(row, plan, keys, begin, end, w);
      for (int i = begin; i < end; ++i)
        for (int h = 0; h < g; ++h) {
          const float mass = block_mass(row, w, i, h), top = std::max(mass, l[h]);
          l[h] = top + std::log(std::exp(mass - top) + std::exp(l[h] - top));
          if (begin >= plan.n_forced()) l_blocks[(i - begin) * g + h] = mass;
        }
    };
    take(plan.n_forced());
    while (w.n < size) {
      const int begin = w.n;
      take(std::min(size, begin + base_batch(row)));
      if (psa_->done(row, plan, w.n, l, l_blocks, w.n - begin)) break;
    }
  }

  // Returns the log-sum-exp of the i-th block's estimated scores.
  float block_mass(const Row& row, const Work& w, int i, int h) const {
    const int n = row.tokens_in(w.blocks[i]);
    float weights[64], top;
    const uint64_t sum = row.kernels->select.exp_weights(
        w.scores + h * w.ldo + int64_t(i) * row.block_size, n, weights, &top);
    return top + std::log(static_cast<float>(sum) * 0x1p-30f);
  }

  // Scores the blocks at [begin, end): the tail exactly, all others from their codes.
  void estimate(const Row& row, RowPlan& plan, const Int4Keys& keys, int begin, int end,
                Work& w) const {
    for (int i = begin, run; i < end; i += run) {
      float* out = w.scores + int64_t(i) * row.block_size;
      run = 1;
      if (w.blocks[i] == row.n_full) {
        key_scores(row, row.tail, row.tail_tokens(), out, w.ldo);
        // The unfilled part of the tail has no weight.
        for (int h = 0; h < row.g; ++h)
          std::fill(out + h * w.ldo + row.tail_tokens(), out + h * w.ldo + row.block_size,
                    -INFINITY);
        plan.index_bytes += row.tail_tokens() * row.row_bytes();
        continue;
      }
      while (i + run < end && w.blocks[i + run] == w.blocks[i] + run &&
             w.blocks[i + run] < row.n_full)
        ++run;
      const int next = i + run < end && w.blocks[i + run] < row.n_full ? w.blocks[i + run] : -1;
      keys.scores(row.source, row.head, w.blocks[i], run, w.query, row.g, out, w.ldo, next);
      plan.index_bytes += run * keys.block_bytes();
    }
  }

  // Finds each head's top-p set (4.2 of the paper) by its softmax over the base's tokens. The group
  // reads the union of these sets and all tokens of the forced blocks.
  void keep_top_p(const Row& row, const RowPlan& plan, Work& w) const {
    const cpu::SelectKernels& kernels = row.kernels->select;
    const int64_t n = int64_t(w.n) * row.block_size;
    const uint64_t full = first_tokens(row.block_size);
    std::fill_n(w.masks, row.n_blocks, 0);
    std::fill_n(w.marks, (n + 63) / 64, s_.top_p >= 1 ? ~uint64_t(0) : 0);
    for (int h = 0; h < row.g && s_.top_p < 1; ++h) {
      float* weights = w.scores + h * w.ldo;
      float top;
      // The weights are not divided by their sum: that would change no comparison.
      const uint64_t sum = kernels.exp_weights(weights, n, weights, &top);
      kernels.mark(weights, n, top_p_threshold(kernels, weights, n, sum, s_.top_p, w.scratch),
                   w.marks);
    }
    for (int i = 0; i < w.n; ++i) {
      const int64_t at = int64_t(i) * row.block_size;
      const int b = w.blocks[i];
      const bool forced =
          b < plan.first_candidate() || b >= plan.first_candidate() + plan.n_candidates();
      w.masks[b] = forced ? full : w.marks[at / 64] >> at % 64 & full;
    }
    w.masks[row.n_full] &= first_tokens(row.tail_tokens());
  }

  Selection s_;
  std::unique_ptr<Selector> psa_;
  ReadsTopP rule_;
  ReadsEverything everything_;
};

}  // namespace

std::unique_ptr<Selector> make_twilight(const Selection& settings) {
  return std::make_unique<Twilight>(settings);
}

}  // namespace riffle
