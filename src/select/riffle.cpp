// riffle's own selector: reads the blocks to which some query head gives more than a share of its attention weight, as
// told by INT4 keys, in one pass.
//
// Where it comes from. Twilight (arXiv 2502.02770, 4.2) keeps 4-bit keys beside the blocks, which rank what matters all but
// exactly, where a digest of 16 to 64 keys does not. PSA's and Twilight's targets (a share of all attention weight) spend
// most of what they read on heads whose weight is spread over everything, where no single block changes the answer; what
// does is a block that stands out. So a block is read for its own share of a head's weight, and a head that looks at
// nothing in particular reads the forced blocks alone (measured: tools/bench/RESULTS.md). All of this is our choice.
//
// What is not read is not left out: the keys tell what share of a head's weight it holds, and the mean of all values stands
// for it (SparQ, arXiv 2312.04985, section 3, reallocates weight so). Shares are taken, not masses: an error that all
// estimates of a head have in common cancels.
//
// The codes of all blocks are looked at. To look only at those of the best digests (a quarter of them) was tried: in text
// whose lines are much alike, digests of any kind leave out the block that holds the answer.
#include <algorithm>
#include <cmath>
#include <limits>

#include "select/block_masses.h"
#include "select/int4_keys.h"
#include "select/selector.h"

namespace riffle {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

class Riffle : public Selector {
 public:
  explicit Riffle(const riffle_selection& s) : s_(s), log_share_(std::log(s.share)) {}

  const char* name() const override { return "riffle"; }
  SelectionRule rule() const override {
    SelectionRule r;
    r.sink_blocks = s_.sink_blocks;
    r.window_blocks = s_.window_blocks;
    r.budget = 1;
    r.by_share = true;
    r.log_share = log_share_;
    return r;
  }
  std::unique_ptr<SelectorState> make_state(const StateShape& shape) const override {
    return std::make_unique<Int4Keys>(shape);
  }
  bool fits(const SelectorState* state) const override { return dynamic_cast<const Int4Keys*>(state) != nullptr; }
  uint64_t state_bytes(const StateShape& shape, int64_t n_tokens) const override {
    return Int4Keys::bytes_for(shape, n_tokens);
  }

  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.window_blocks);
    const int n = plan.n_candidates(), first = plan.first_candidate();
    if (n == 0) return plan.rank(nullptr, 0);
    const BlockMasses masses = estimate_masses(row, plan);
    const int64_t n_blocks = masses.n_blocks;

    // A block's largest share of a head's weight.
    plan.scores.assign(n, kNone);
    int kept = 0;
    std::vector<double>& wholes = plan.state;  // of each head
    wholes.resize(row.g);
    for (int h = 0; h < row.g; ++h) {
      float* tops = masses.tops + h * n_blocks;
      float* weights = masses.sums + h * n_blocks;
      float top = 0;
      row.kernels->select.exp_weights(tops, n_blocks, tops, &top);  // tops become e^(top - the largest)
      // Several sums under way hide the latency of an addition.
      double parts[8] = {};
      for (int64_t b = 0; b < n_blocks; ++b) parts[b % 8] += weights[b] *= tops[b];
      double all = 0;
      for (const double part : parts) all += part;
      wholes[h] = all;
      const float least = static_cast<float>(all * s_.share), inverse = static_cast<float>(1 / all);
      for (int i = 0; i < n; ++i) {
        if (!(weights[first + i] >= least)) continue;
        kept += plan.scores[i] == kNone;
        plan.scores[i] = std::max(plan.scores[i], weights[first + i] * inverse);
      }
    }
    plan.rank(plan.scores.data(), kept);
    if (kept == n) return;
    plan.unread.assign(row.g, 0.0f);
    for (int h = 0; h < row.g; ++h) {
      const float* weights = masses.sums + h * n_blocks + first;
      double unread = 0;
      for (int i = 0; i < n; ++i) unread += plan.scores[i] == kNone ? weights[i] : 0.0f;
      plan.unread[h] = static_cast<float>(unread / wholes[h]);
    }
    plan.mean_value.resize(row.d);
    static_cast<const Int4Keys*>(row.state)->mean_value(row.layer, row.head, row.n_full, plan.mean_value.data());
  }

 private:
  riffle_selection s_;
  float log_share_;
};

}  // namespace

std::unique_ptr<Selector> make_riffle(const riffle_selection& settings) { return std::make_unique<Riffle>(settings); }

}  // namespace riffle
