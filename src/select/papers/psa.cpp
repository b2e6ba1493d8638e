// Progressive sparse attention (PSA, arXiv 2503.00392, Algorithm 1): reads blocks in order of
// criticality, a microbatch at a time, until the estimated share of the attention weight that is
// covered exceeds epsilon. All masses are logarithms.
//
// Let l be the log-sum-exp of the blocks that were read, and x an estimate of the log-sum-exp of
// the others. The covered share is sigmoid(l - x), so the test "share > epsilon" becomes
// x < l + log((1 - epsilon) / epsilon).
#include <algorithm>
#include <cmath>
#include <limits>

#include "select/papers/papers.h"

namespace riffle {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

class Psa : public RankingSelector {
 public:
  explicit Psa(const Selection& s)
      : RankingSelector(s), slack_(std::log((1 - s.epsilon) / s.epsilon)) {
    rule_.test = {s.stop, slack_, s.microbatch};
  }

  const char* name() const override { return "psa"; }
  // On a GPU only the kernel that scores digests computes the bounds that these two modes sum up.
  const char* host_only() const override {
    const bool bounds = s_.stop == StopRule::BOUND || s_.stop == StopRule::VETO;
    return rule_.codes && bounds
               ? "with rank codes and stop bound or veto has no GPU kernels (paper and last do)"
               : nullptr;
  }
  int microbatch() const override { return s_.microbatch; }

  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.recent_blocks);
    const int n = plan.n_candidates(), g = row.g;
    score_candidates(row, s_, plan);
    plan.rank(plan.scores.data(), n);
    plan.state.assign(size_t(g) * sizeof(Head) / sizeof(double), 0.0);
    for (int h = 0; h < g; ++h) head(plan, h) = Head{};
    if (s_.stop == StopRule::BOUND || s_.stop == StopRule::VETO) begin_bounds(row, plan);
  }

  bool done(const Row& row, RowPlan& plan, int n_attended, const float* l, const float* l_blocks,
            int n_last) const override {
    const int g = row.g, n = plan.n_candidates(), ranked = n_attended - plan.n_forced();
    const int n_left = n - ranked;
    bool all = true;
    for (int h = 0; h < g; ++h) {
      Head& state = head(plan, h);
      double largest = -kInf;
      for (int i = 0; i < n_last; ++i) {
        state.smallest = std::min(state.smallest, double(l_blocks[i * g + h]));
        largest = std::max(largest, double(l_blocks[i * g + h]));
      }
      for (int r = ranked - n_last; r < ranked && s_.stop == StopRule::VETO; ++r)
        state.left -= mass(plan, h, plan.at(plan.n_forced() + r) - plan.first_candidate());
      if (n_left == 0) continue;
      const double limit = l[h] + slack_, log_left = std::log(double(n_left));
      switch (s_.stop) {
        case StopRule::PAPER: all &= state.smallest + log_left < limit; break;
        case StopRule::LAST: all &= largest + log_left < limit; break;
        case StopRule::VETO:
          all &= state.smallest + log_left < limit && log_mass(state, state.left) < limit;
          break;
        case StopRule::BOUND: {
          const double left = suffix(plan, h)[ranked];
          all &= left > 0 && log_mass(state, left) <= limit;  // an underflow bounds nothing
          break;
        }
      }
    }
    return all;  // a GQA row stops when all its heads pass
  }

 private:
  // plan.state holds one Head for each query head, then for BOUND sums [g][n + 1]: element r sums
  // the candidates ranked r and later.
  struct Head {
    double smallest = kInf;  // log mass of the smallest block seen
    double scale = 0;        // masses below are divided by e^scale
    double left = 0;         // VETO: sum of the lower bounds of unread blocks
  };
  static Head& head(RowPlan& plan, int h) { return reinterpret_cast<Head*>(plan.state.data())[h]; }
  static double log_mass(const Head& state, double mass) {
    return state.scale + std::log(std::max(mass, 0.0));
  }
  // VETO: lower bounds of the candidates' masses, in plan.scores after the scores: [g][n], in token
  // order.
  static double mass(const RowPlan& plan, int h, int candidate) {
    const size_t n = plan.n_candidates();
    return plan.scores[n + h * n + candidate];
  }
  double* suffix(RowPlan& plan, int h) const {
    const size_t g = plan.state.size() / (sizeof(Head) / sizeof(double) + plan.n_candidates() + 1);
    return plan.state.data() + g * sizeof(Head) / sizeof(double) +
           size_t(h) * (plan.n_candidates() + 1);
  }

  // BOUND: n_b e^(upper bound of the block's scores). VETO: n_b e^(q.mean), Jensen's lower bound
  // (README.md, PSA).
  void begin_bounds(const Row& row, RowPlan& plan) const {
    const int n = plan.n_candidates(), g = row.g, d = row.d, first = plan.first_candidate();
    if (n == 0) return;
    const bool veto = s_.stop == StopRule::VETO;
    const auto& score = row.kernels->attention.digest_score;
    const uint16_t* digests = row.digests + int64_t(first) * row.digest_stride;
    plan.scratch.resize(d + size_t(n));
    float* abs_q = plan.scratch.data();
    float* centre = abs_q + d;
    plan.scores.resize(size_t(n) * (1 + g));
    if (!veto) plan.state.resize(plan.state.size() + size_t(g) * (n + 1));
    for (int h = 0; h < g; ++h) {
      const float* q = row.q + h * d;
      float* bound = plan.scores.data() + size_t(n) * (1 + h);
      if (h == 0 && veto) plan.index_bytes += int64_t(n) * d * 2;  // the mean keys
      if (veto) {
        score(digests + 2 * d, row.digest_stride, n, d, q, nullptr, bound);
      } else {
        for (int j = 0; j < d; ++j) abs_q[j] = std::fabs(q[j]);
        score(digests, row.digest_stride, n, d, q, nullptr, centre);
        score(digests, row.digest_stride, n, d, q, abs_q, bound);
        for (int i = 0; i < n; ++i)
          bound[i] = centre[i] + row.bound_factor[first + i] * (bound[i] - centre[i]);
      }
      const float top = *std::max_element(bound, bound + n);
      Head& state = head(plan, h);
      state.scale = top + std::log(double(row.block_size));
      if (veto) {
        // The unread mass is kept as total minus read. If the difference is lost in rounding, the
        // blocks read hold at least their own lower bounds, so there would be no veto anyway.
        for (int i = 0; i < n; ++i) state.left += bound[i] = std::exp(bound[i] - top);
      } else {
        double* sums = suffix(plan, h);
        sums[n] = 0;
        for (int r = n; r-- > 0;)
          sums[r] =
              sums[r + 1] + std::exp(double(bound[plan.at(plan.n_forced() + r) - first]) - top);
      }
    }
  }

  double slack_;  // log((1 - epsilon) / epsilon)
};

}  // namespace

std::unique_ptr<Selector> make_psa(const Selection& settings) {
  // Only reading everything covers all of the weight; the test could only stop too soon.
  if (settings.epsilon >= 1) return make_dense();
  return std::make_unique<Psa>(settings);
}

}  // namespace riffle
