// Mixtures of experts: the router against its scalar twin, the experts' products against float64.
#include "kernels/cuda/experts/experts.h"

#include "kernels/common/routing.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::cuda;
using riffle::route_row;
using riffle::Routed;
using namespace riffle::test;

TEST_CASE("route chooses what the scalar twin chooses", "[cuda]") {
  if (skip()) return;
  Rng g(1);
  for (const auto& [n, used] : {std::pair{1, 1}, {7, 3}, {33, 33}, {128, 8}, {1000, 10}})
    for (const bool renormalised : {true, false}) {
      INFO(n << " experts, " << used << " used, renormalised " << renormalised);
      const int rows = 9;
      std::vector<float> scores = random_floats(g, rows * n, 3);
      for (int e = 0; e < n; e += 2) scores[2 * n + e] = 1;  // equal ones
      scores[3 * n + n / 2] = std::numeric_limits<float>::quiet_NaN();
      const DeviceArray<float> on_device(scores);
      DeviceArray<Routed> routed(std::vector<Routed>(rows * used));
      check_cuda(route(on_device.get(), rows, n, used, renormalised, routed.get(), nullptr));
      const std::vector<Routed> got = routed.download();
      for (int i = 0; i < rows; ++i) {
        std::vector<Routed> want(used);
        route_row(&scores[i * n], n, used, renormalised, want.data());
        for (int k = 0; k < used; ++k) {
          CHECK(got[i * used + k].expert == want[k].expert);
          if (i != 3) CHECK(std::fabs(got[i * used + k].weight - want[k].weight) <= 1e-6);
        }
      }
    }
}

TEST_CASE("experts of a step against float64, every type", "[cuda]") {
  if (skip()) return;
  Rng g(2);
  for (const WType type : kTypes) {
    INFO(name_of(type));
    const int n = 3, experts = 5, used = 2;
    const int64_t dim = type <= WType::BF16 ? 75 : 512, hidden = type <= WType::BF16 ? 21 : 256;
    const Weights w1(g, type, experts * hidden, dim), w3(g, type, experts * hidden, dim),
        w2(g, type, experts * dim, hidden);
    const std::vector<float> x = random_floats(g, n * dim), before = random_floats(g, n * dim);
    const std::vector<Routed> routed = {{4, 0.75f},  {0, 0.25f}, {2, 0.5f},
                                        {4, 0.125f}, {1, 1.0f},  {3, 0.5f}};
    const DeviceArray<float> xd(x);
    const DeviceArray<Routed> rd(routed);
    DeviceArray<float> between(std::vector<float>(n * used * hidden)), y(before);
    ExpertsStep step;
    step.x = xd.get(), step.n = n, step.n_used = used, step.routed = rd.get();
    step.w1 = w1.matrix(), step.w3 = w3.matrix(), step.w2 = w2.matrix();
    step.hidden = hidden, step.between = between.get(), step.y = y.get();
    check_cuda(experts_up(step, nullptr));
    check_cuda(experts_down(step, nullptr));
    const std::vector<float> got = y.download(), middle = between.download();
    int wrong = 0;
    for (int entry = 0; entry < n * used; ++entry)
      for (int64_t r = 0; r < hidden; ++r) {
        const int64_t row = routed[entry].expert * hidden + r;
        double a = 0, b = 0;
        const float* in = &x[entry / used * dim];
        const double gate = reference(w1, row, in, nullptr, 0, &a),
                     up = reference(w3, row, in, nullptr, 0, &b), want = silu(gate) * up;
        wrong += !(std::fabs(middle[entry * hidden + r] - want) <=
                   2e-5 * (a * std::fabs(up) + b * std::fabs(gate) + a * b * 1e-3));
      }
    CHECK(wrong == 0);
    for (int i = 0; i < n; ++i)
      for (int64_t r = 0; r < dim; ++r) {
        double want = before[i * dim + r], size = std::fabs(want), part = 0;
        for (int k = 0; k < used; ++k) {
          const Routed& to = routed[i * used + k];
          want += to.weight * reference(w2, to.expert * dim + r, &middle[(i * used + k) * hidden],
                                        nullptr, 0, &part);
          size += to.weight * part;
        }
        wrong += !(std::fabs(got[i * dim + r] - want) <= 1e-5 * size);
      }
    CHECK(wrong == 0);
    // A row alone gives the same bits.
    DeviceArray<float> alone(std::vector<float>(before.begin() + dim, before.begin() + 2 * dim));
    step.x += dim, step.routed += used, step.n = 1, step.y = alone.get();
    check_cuda(experts_up(step, nullptr));
    check_cuda(experts_down(step, nullptr));
    const std::vector<float> one = alone.download();
    CHECK(std::memcmp(one.data(), &got[dim], dim * sizeof(float)) == 0);
  }
}
