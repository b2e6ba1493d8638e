// Thresholds of top-p sets against sorting, for every instruction set (src/select/README.md,
// property 6).
#include "select/papers/top_p.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/kernels/cpu/each_isa.h"

using namespace riffle;

namespace {

uint64_t fixed(float w) { return static_cast<uint64_t>(std::llrint(double(w) * 0x1p30)); }

// Returns the threshold by sorting: takes the largest weights until p of the sum is reached; the
// last weight taken is the threshold.
float by_sorting(std::vector<float> w, double p) {
  uint64_t all = 0, sum = 0;
  for (const float x : w) all += fixed(x);
  std::sort(w.begin(), w.end(), std::greater<>());
  const auto target =
      std::min<uint64_t>(all, std::max<uint64_t>(1, uint64_t(std::ceil(p * double(all)))));
  for (const float x : w)
    if ((sum += fixed(x)) >= target) return x;
  return 0;
}

// Returns weights like those of a softmax, of several shapes; the largest is 1.
std::vector<float> weights(const std::string& shape, int n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> w(n);
  for (int i = 0; i < n; ++i) {
    double s = 0;
    if (shape == "flat") s = 0.3 * normal(random);
    if (shape == "peaked") s = 4 * normal(random);
    if (shape == "spike") s = i == n / 3 ? 0 : -15 + 0.1 * normal(random);
    if (shape == "equal") s = 0;
    if (shape == "few values") s = -double(random() % 4);
    w[i] = float(std::exp(s));
  }
  const float top = *std::max_element(w.begin(), w.end());
  for (float& x : w) x /= top;
  return w;
}

float threshold(const cpu::SelectKernels& k, const std::vector<float>& w, double p) {
  std::vector<float> scratch(top_scratch(w.size()));
  uint64_t sum = 0;
  for (const float x : w) sum += fixed(x);
  return top_p_threshold(k, w.data(), w.size(), sum, p, scratch.data());
}

template <class F>
void for_each_isa(F test) {
  riffle::test::for_isas(riffle::test::Sets::AllButAmx,
                         [&](const cpu::Kernels& k) { test(k.select); });
}

}  // namespace

TEST_CASE(
    "Top-p: the sum reaches p, dropping the smallest kept does not, and sorting finds the same "
    "set") {
  for_each_isa([&](const cpu::SelectKernels& k) {
    for (const char* shape : {"flat", "peaked", "spike", "equal", "few values"})
      for (const int n : {1, 2, 3, 16, 17, 500, 5000}) {
        const std::vector<float> w = weights(shape, n, n);
        double all = 0;
        for (const float x : w) all += x;
        float last = 2;
        for (const double p : {1e-6, 0.1, 0.5, 0.85, 0.95, 0.999, 0.9999999}) {
          CAPTURE(shape, n, p);
          const float t = threshold(k, w, p);
          CHECK(t == by_sorting(w, p));
          double kept = 0, smallest = 0;
          for (const float x : w) {
            if (x >= t) kept += x;
            if (x == t) smallest += x;
          }
          const double slack = (n + 1) * 0x1p-30 + 1e-12;
          CHECK(kept >= p * all - slack);
          CHECK(kept - smallest < p * all + slack);
          CHECK(t <= last);  // nested in p
          last = t;
        }
        CHECK(threshold(k, w, 1) == 0);
      }
  });
}

TEST_CASE("Top-p does not depend on the order of the weights") {
  for_each_isa([&](const cpu::SelectKernels& k) {
    std::vector<float> w = weights("peaked", 3000, 1);
    std::mt19937 random(2);
    for (const double p : {0.3, 0.9, 0.99}) {
      const float t = threshold(k, w, p);
      for (int i = 0; i < 5; ++i) {
        std::shuffle(w.begin(), w.end(), random);
        CHECK(threshold(k, w, p) == t);
      }
    }
  });
}

TEST_CASE("Top-p keeps everything where nothing weighs anything") {
  for_each_isa([&](const cpu::SelectKernels& k) {
    CHECK(threshold(k, std::vector<float>(100, 0.f), 0.9) == 0);
  });
}

TEST_CASE("The k-th largest is what sorting finds") {
  for_each_isa([&](const cpu::SelectKernels& k) {
    for (const int n : {1, 2, 15, 16, 17, 100, 3000})
      for (const int kind : {0, 1, 2}) {
        std::mt19937 random(n);
        std::normal_distribution<float> normal;
        std::vector<float> x(n), scratch(top_scratch(n));
        for (float& v : x)
          v = kind == 0   ? normal(random)
              : kind == 1 ? -float(random() % 5)
                          : 1e30f * normal(random);
        if (n > 2 && kind == 2) x[1] = INFINITY, x[2] = -INFINITY;
        std::vector<float> sorted(x);
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        for (const int rank : {1, n / 4 + 1, n / 2 + 1, n}) {
          if (rank > n) continue;
          CAPTURE(n, kind, rank);
          CHECK(kth_largest(k, x.data(), n, rank, scratch.data()) == sorted[rank - 1]);
        }
      }
  });
}
