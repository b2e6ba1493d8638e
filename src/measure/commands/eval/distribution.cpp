#include "measure/commands/eval/distribution.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace riffle::eval {
namespace {

constexpr uint16_t kNone = 0xffff;
constexpr double kLikely = -10;  // log p; at most 22,026 tokens are above
constexpr double kLeast = -30;   // log p; tokens below sum to less than 1e-7 in any vocabulary
constexpr double kStep = (kLikely - kLeast) / (kNone - 1);

}  // namespace

int32_t best_token(const float* logits, int n_vocab) {
  return static_cast<int32_t>(std::max_element(logits, logits + n_vocab) - logits);
}

// Single precision is enough here: each term has a relative error of 1e-7. With vocabularies of
// 150,000 tokens this is eval's main work besides the model.
double log_sum_exp(const float* logits, int n_vocab) {
  const float top = logits[best_token(logits, n_vocab)];
  double sums[4] = {};  // several sums at once hide the latency of an addition
  for (int i = 0; i < n_vocab; ++i) sums[i % 4] += static_cast<double>(std::exp(logits[i] - top));
  const double value = static_cast<double>(top) + std::log(sums[0] + sums[1] + sums[2] + sums[3]);
  if (!std::isfinite(value)) throw std::runtime_error("logits are not finite");
  return value;
}

Distribution::Distribution(const float* logits, int n_vocab)
    : log_sum_(log_sum_exp(logits, n_vocab)), rest_(static_cast<size_t>(n_vocab), kNone) {
  for (int32_t i = 0; i < n_vocab; ++i) {
    const double log_p = static_cast<double>(logits[i]) - log_sum_;
    if (log_p >= kLikely) {
      likely_.push_back({i, logits[i]});
    } else if (log_p >= kLeast) {
      rest_[static_cast<size_t>(i)] = static_cast<uint16_t>((kLikely - log_p) / kStep + 0.5);
    }
  }
  likely_.shrink_to_fit();
}

double Distribution::divergence(const float* logits) const {
  const double other = log_sum_exp(logits, static_cast<int>(rest_.size()));
  double sum = 0;
  const auto add = [&](double log_p, float logit) {
    sum += static_cast<double>(std::exp(static_cast<float>(log_p))) *
           (log_p - static_cast<double>(logit) + other);
  };
  for (const Likely& l : likely_) add(static_cast<double>(l.logit) - log_sum_, logits[l.token]);
  for (size_t i = 0; i < rest_.size(); ++i)
    if (rest_[i] != kNone) add(kLikely - rest_[i] * kStep, logits[i]);
  return std::max(sum, 0.0);  // below 0 only by rounding
}

}  // namespace riffle::eval
