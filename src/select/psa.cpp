// Progressive sparse attention (PSA, Algorithm 1; algorithms.md 2): blocks in order of criticality, a microbatch at a
// time, until the share of attention weight covered is estimated to exceed epsilon. All masses in the log domain.
//
// With l the log-sum-exp of what was attended and x an estimate of that of what was not, the covered share is
// sigmoid(l - x), so the test "share > epsilon" reads x < l + log((1 - epsilon) / epsilon).
#include <algorithm>
#include <cmath>
#include <limits>

#include "select/selector.h"

namespace riffle {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float log_add(float a, float b) {
  const float hi = std::max(a, b);
  if (hi == -kInf) return -kInf;
  return hi + std::log1p(std::exp(std::min(a, b) - hi));
}

class Psa : public Selector {
 public:
  explicit Psa(const riffle_selection& s) : s_(s), slack_(std::log((1 - s.epsilon) / s.epsilon)) {}

  int microbatch() const override { return s_.microbatch; }

  void begin(const Row& row, RowPlan& plan) const override {
    plan.forced(row, s_.sink_blocks, s_.window_blocks);
    const int n = plan.n_candidates(), g = row.g;
    plan.scores.resize(n);
    group_scores(row, s_.gqa, s_.digest == RIFFLE_DIGEST_MEAN, plan.first_candidate(), n, plan.scratch,
                 plan.scores.data());
    plan.rank(plan.scores.data(), n);
    // state: [g] smallest block mass seen; then for BOUND and VETO [g][n+1]: log-sum-exp of the bound of the masses of
    // the candidates ranked r and after.
    plan.state.assign(g, kInf);
    if (s_.stop == RIFFLE_STOP_BOUND || s_.stop == RIFFLE_STOP_VETO) add_suffixes(row, plan);
  }

  bool done(const Row& row, RowPlan& plan, int n_attended, const float* l, const float* l_blocks,
            int n_last) const override {
    const int g = row.g, n = plan.n_candidates(), ranked = n_attended - plan.n_forced();
    const int n_left = n - ranked;
    bool all = true;
    for (int h = 0; h < g; ++h) {
      float smallest = kInf, largest = -kInf;
      for (int i = 0; i < n_last; ++i) {
        smallest = std::min(smallest, l_blocks[i * g + h]);
        largest = std::max(largest, l_blocks[i * g + h]);
      }
      float& lmin = plan.state[h];
      lmin = std::min(lmin, smallest);
      if (n_left == 0) continue;
      const float limit = l[h] + slack_;
      const float log_left = std::log(static_cast<float>(n_left));
      switch (s_.stop) {
        case RIFFLE_STOP_PAPER: all &= lmin + log_left < limit; break;
        case RIFFLE_STOP_WINDOW: all &= largest + log_left < limit; break;
        case RIFFLE_STOP_BOUND: all &= suffix(plan, g, h, ranked) <= limit; break;
        case RIFFLE_STOP_VETO: all &= lmin + log_left < limit && suffix(plan, g, h, ranked) < limit; break;
      }
    }
    return all;  // a GQA row stops when all its heads pass
  }

 private:
  static float suffix(const RowPlan& plan, int g, int h, int ranked) {
    return plan.state[g + size_t(h) * (plan.n_candidates() + 1) + ranked];
  }

  // BOUND: log n_b + upper bound of the block's scores; VETO: log n_b + q.mean, Jensen's lower bound (algorithms.md 2.2).
  void add_suffixes(const Row& row, RowPlan& plan) const {
    const int n = plan.n_candidates(), g = row.g, d = row.d, first = plan.first_candidate();
    const auto& score = row.kernels->attention.digest_score;
    const uint16_t* digests = row.digests + int64_t(first) * row.digest_stride;
    const float log_size = std::log(static_cast<float>(row.block_size));
    plan.state.resize(g + size_t(g) * (n + 1));
    plan.scratch.resize(d + 2 * size_t(n));
    float* abs_q = plan.scratch.data();
    float* centre = abs_q + d;
    float* both = centre + n;
    if (n > 0) plan.at(plan.n_forced() + n - 1);  // the whole order
    for (int h = 0; h < g; ++h) {
      const float* q = row.q + h * d;
      if (s_.stop == RIFFLE_STOP_VETO) {
        score(digests + 2 * d, row.digest_stride, n, d, q, nullptr, both);
      } else {
        for (int j = 0; j < d; ++j) abs_q[j] = std::fabs(q[j]);
        score(digests, row.digest_stride, n, d, q, nullptr, centre);
        score(digests, row.digest_stride, n, d, q, abs_q, both);
        for (int i = 0; i < n; ++i) both[i] = centre[i] + row.bound_factor[first + i] * (both[i] - centre[i]);
      }
      float* out = plan.state.data() + g + size_t(h) * (n + 1);
      out[n] = -kInf;
      for (int r = n; r-- > 0;) out[r] = log_add(out[r + 1], log_size + both[plan.at(plan.n_forced() + r) - first]);
    }
  }

  riffle_selection s_;
  float slack_;  // log((1 - epsilon) / epsilon)
};

}  // namespace

std::unique_ptr<Selector> make_psa(const riffle_selection& settings) {
  // Everything is what covers all of it; the estimate could only stop too soon.
  if (settings.epsilon >= 1) return make_dense();
  return std::make_unique<Psa>(settings);
}

}  // namespace riffle
