#include "measure/commands/eval/distribution.h"

#include <catch2/catch.hpp>
#include <limits>
#include <random>

namespace riffle::eval {
namespace {

double exact_divergence(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_sum = [](const std::vector<float>& x) {
    long double sum = 0;
    const float top = *std::max_element(x.begin(), x.end());
    for (const float v : x) sum += std::exp(static_cast<long double>(v) - top);
    return top + std::log(sum);
  };
  const long double lp = log_sum(p), lq = log_sum(q);
  long double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const long double log_p = p[i] - lp;
    if (std::isfinite(log_p)) sum += std::exp(log_p) * (log_p - q[i] + lq);
  }
  return static_cast<double>(sum);
}

// Returns logits of which `peaks` stand out by `height`.
std::vector<float> some_logits(int n, int peaks, float height, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(random);
  for (int i = 0; i < peaks; ++i) x[random() % x.size()] += height;
  return x;
}

TEST_CASE("eval: a distribution kept in little room gives the same divergence", "[eval]") {
  for (const int n : {3, 8192, 152064})
    for (const int peaks : {0, 1, 40})
      for (const float height : {8.f, 16.f, 40.f}) {
        INFO(n << " tokens, " << peaks << " peaks of " << height);
        const std::vector<float> p = some_logits(n, peaks, height, 1);
        const Distribution kept(p.data(), n);
        CHECK(kept.bytes() <= 2 * static_cast<size_t>(n) + 8 * 22026);
        CHECK(kept.divergence(p.data()) < 1e-6);
        std::vector<float> near = p, far = some_logits(n, peaks, height, 2);
        std::mt19937 random(3);
        for (float& v : near) v += std::normal_distribution<float>(0, 0.1f)(random);
        for (const std::vector<float>& q : {near, far}) {
          const double want = exact_divergence(p, q);
          CHECK(want > -1e-12);
          CHECK(std::abs(kept.divergence(q.data()) - want) <= 1e-6 + 1e-6 * want);
        }
      }
}

TEST_CASE("eval: distributions at their edges", "[eval]") {
  // All equal: every token of a large vocabulary is unlikely.
  const std::vector<float> flat(152064, 3.f);
  CHECK(Distribution(flat.data(), 152064).divergence(flat.data()) < 1e-7);
  // Tokens of probability 0 do not count.
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> p = {1, -inf, 2, 0}, q = {2, 1, 1, 0};
  CHECK(Distribution(p.data(), 4).divergence(q.data()) ==
        Approx(exact_divergence(p, q)).epsilon(1e-6));
  CHECK(best_token(flat.data(), 152064) == 0);
  CHECK(best_token(p.data(), 4) == 2);
  for (const float bad : {inf, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> x = {1, bad, 2};
    CHECK_THROWS_WITH(Distribution(x.data(), 3), Catch::Contains("not finite"));
  }
}

}  // namespace
}  // namespace riffle::eval
