// The share selector, riffle's own: reads the blocks to which some query head gives at least a
// share of its attention weight, estimated from 2-bit keys, and a few samples of the others.
//
// Origin. Twilight (arXiv 2502.02770, 4.2) keeps 4-bit keys next to the blocks. Codes of all keys
// rank the important blocks almost exactly; a digest of 16 to 64 keys does not. PSA and Twilight
// aim at a share of all attention weight. That spends most reads on heads whose weight is spread
// over everything. In such a head no single block changes the answer; a block that stands out does.
// So a block is read for its own share of a head's weight, and a head without such a block reads
// only the forced blocks (measured: tools/bench/results/real-models.md). All of this is our choice.
//
// Unread blocks still count. Each head's unread blocks are laid end to end, each as long as its
// estimated weight, and one block is read at the middle of each of a few equal stretches. A block
// that is read stands for its stretch: it counts stretch / weight times (importance sampling;
// vAttention, arXiv 2510.05688, samples tokens).
//
// The codes of all blocks are read. Reading only the quarter of blocks with the best digests was
// tried: in text whose lines are much alike, digests of any kind miss the block that holds the
// answer.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "select/block_masses.h"
#include "select/coded_selector.h"
#include "select/int2_keys.h"

namespace riffle {
namespace {

// Up to kShareBlocks blocks the share is the user's. Beyond that it falls as 1 / blocks: weight
// spreads over more blocks, so a fixed share would leave more of it unread.
constexpr int kShareBlocks = 1024;
// The samples of a row, dealt out to its heads.
constexpr int kSamples = 16;
constexpr float kNone = -std::numeric_limits<float>::infinity();

class Share : public CodedSelector<Int2Keys> {
 public:
  Share(const Selection& s, int64_t everything_below)
      : CodedSelector(true),
        s_(s),
        log_share_(std::log(s.share)),
        everything_below_(everything_below) {
    rule_.forced = {s_.sink_blocks, s_.recent_blocks};
    rule_.log_share = log_share_;
    rule_.share_blocks = kShareBlocks;
    rule_.everything_below = everything_below_;
  }

  const char* name() const override { return "share"; }
  const SelectionRule* rule() const override { return &rule_; }
  const char* host_only() const override { return nullptr; }
  bool reads_codes() const override { return true; }
  int64_t everything_below() const override { return everything_below_; }
  bool has_parts() const override { return true; }
  int prepare(const Row& row, RowPlan& plan) const override {
    if (reads_everything(row)) return 0;
    return prepare_masses(row, s_.sink_blocks, s_.recent_blocks, plan);
  }
  void part(const Row& row, RowPlan& plan, int i, Buffer& scratch) const override {
    int first, last;
    estimate_masses(row, plan, i, scratch, &first, &last);
  }

  void begin(const Row& row, RowPlan& plan) const override {
    if (reads_everything(row)) return plan.everything(row);
    plan.forced(row, s_.sink_blocks, s_.recent_blocks);
    const int n = plan.n_candidates(), first = plan.first_candidate();
    if (n == 0) return plan.rank(nullptr, 0);
    const auto& select = row.kernels->select;
    const BlockMasses masses = masses_of(row, plan);
    plan.index_bytes += masses_bytes_read(row);

    const double share = share_of(row.n_blocks);
    const auto least = [&](double whole) { return static_cast<float>(whole * share); };

    // Finds each head's total weight, and marks each candidate that holds the share of some head's
    // weight.
    plan.state.assign(2 * row.g, 0.0);
    double *wholes = plan.state.data(), *read = wholes + row.g;  // numbers of each head
    plan.marks.assign((n + 63) / 64, 0);
    for (int h = 0; h < row.g; ++h) {
      float* tops = masses.tops + h * masses.stride;
      float* weights = masses.sums + h * masses.stride;
      float top = 0;
      select.exp_weights(tops, masses.n_blocks, tops, &top);  // tops become e^(top - the largest)
      wholes[h] = weigh(weights, tops, masses.n_blocks);
      select.mark(weights + first, n, least(wholes[h]), plan.marks.data());
    }

    // For these few candidates: the largest share of a head's weight, and the part of each head's
    // weight that is read.
    plan.ids.clear();
    plan.scores.clear();
    for (size_t word = 0; word < plan.marks.size(); ++word)
      for (uint64_t rest = plan.marks[word]; rest != 0; rest &= rest - 1) {
        const int b = first + static_cast<int>(word) * 64 + std::countr_zero(rest);
        float best = kNone;
        for (int h = 0; h < row.g; ++h) {
          const float weight = masses.sums[h * masses.stride + b];
          read[h] += weight;
          if (weight < least(wholes[h])) continue;
          best = std::max(best, weight * static_cast<float>(1 / wholes[h]));
        }
        plan.ids.push_back(b);
        plan.scores.push_back(best);
      }
    const auto kept = static_cast<int>(plan.ids.size());
    plan.rank_these(plan.ids.data(), plan.scores.data(), kept);
    if (kept == n) return;
    plan.unread.resize(row.g);
    for (int h = 0; h < row.g; ++h) {
      float* weights = masses.sums + h * masses.stride;
      for (int b = 0; b < first; ++b) read[h] += weights[b];
      for (int b = first + n; b < row.n_blocks; ++b) read[h] += weights[b];
      // Floats are summed in double, so the difference is exact to about 1e-15 of the whole, and
      // may fall below 0 by that much.
      plan.unread[h] = static_cast<float>(std::max(0.0, wholes[h] - read[h]) / wholes[h]);
      for (const int b : plan.ids) weights[b] = 0;
    }
    sample(row, plan, masses, static_cast<float>(share));
  }

 private:
  bool reads_everything(const Row& row) const { return row.n_tokens < everything_below_; }
  double share_of(int n_blocks) const {
    return s_.share * std::min(1.0, double(kShareBlocks) / n_blocks);
  }

  // Samples the candidates whose weight is not 0. plan.state: whole weights of the heads;
  // plan.unread is set. A sample stands for no less of a head's weight than `share`.
  static void sample(const Row& row, RowPlan& plan, const BlockMasses& masses, float share) {
    const int each = (kSamples + row.g - 1) / row.g, first = plan.first_candidate(),
              end = first + plan.n_candidates();
    double* stretch = plan.state.data() + row.g;  // length of each head's stretches
    plan.ids.clear();
    for (int h = 0; h < row.g; ++h) {
      const float* weights = masses.sums + h * masses.stride;
      const double whole = plan.state[h];
      stretch[h] = double(std::max(plan.unread[h] / static_cast<float>(each), share)) * whole;
      if (!(plan.unread[h] >= share / 2)) continue;
      constexpr int kRun = 64;  // blocks that are passed over at once
      double at = 0, next = stretch[h] / 2;
      for (int b = first, run; b < end; b += run) {
        run = std::min(kRun, end - b);
        const double sum = total(weights + b, run);
        double within = at;
        for (int i = 0; i < run && at + sum > next; ++i)
          for (within += double(weights[b + i]); weights[b + i] > 0 && within > next;
               next += stretch[h])
            plan.ids.push_back(b + i);
        at += sum;
      }
    }
    std::sort(plan.ids.begin(), plan.ids.end());
    for (size_t i = 0, next; i < plan.ids.size(); i = next) {
      const int b = plan.ids[i];
      for (next = i; next < plan.ids.size() && plan.ids[next] == b;) ++next;
      // Expected number of times that the heads choose this block. A head with too little unread
      // weight to have samples counts too; otherwise the block would stand for too much of that
      // head's weight. A head whose weights are not numbers has no part in it.
      double expected = 0;
      for (int h = 0; h < row.g; ++h) {
        const double times = double(masses.sums[h * masses.stride + b]) / stretch[h];
        if (times > 0) expected += times;
      }
      plan.sample(b, static_cast<float>(std::log(double(next - i) / expected)));
    }
  }

  // Returns the sum of n weights. Several sums at once hide the latency of an addition.
  static double total(const float* weights, int n) {
    double s[4] = {};
    int i = 0;
    for (; i + 4 <= n; i += 4)
      for (int k = 0; k < 4; ++k) s[k] += double(weights[i + k]);
    for (; i < n; ++i) s[0] += double(weights[i]);
    return (s[0] + s[1]) + (s[2] + s[3]);
  }

  // Multiplies weights[b] by factors[b] and returns the sum of the products. Several sums at once
  // hide the latency of an addition.
  static double weigh(float* weights, const float* factors, int64_t n) {
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int64_t b = 0;
    for (; b + 4 <= n; b += 4) {
      s0 += weights[b] *= factors[b];
      s1 += weights[b + 1] *= factors[b + 1];
      s2 += weights[b + 2] *= factors[b + 2];
      s3 += weights[b + 3] *= factors[b + 3];
    }
    for (; b < n; ++b) s0 += weights[b] *= factors[b];
    return (s0 + s1) + (s2 + s3);
  }

  Selection s_;
  float log_share_;
  int64_t everything_below_;
  ReadsShare rule_;
};

}  // namespace

std::unique_ptr<Selector> make_share(const Selection& settings, int64_t everything_below) {
  return std::make_unique<Share>(settings, everything_below);
}

}  // namespace riffle
