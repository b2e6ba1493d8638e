// Products with a matrix for each head, and experts that are chosen by groups.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "backend/cpu/cpu_products.h"
#include "kernels/common/half.h"
#include "kernels/common/routing.h"

using namespace riffle;

namespace {

std::vector<float> random_values(std::mt19937& random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

}  // namespace

TEST_CASE("products by head equal float64 sums, in prompts and steps", "[backend][latent]") {
  std::mt19937 random(7);
  ThreadPool threads(2);
  for (const cpu::Isa isa : {cpu::Isa::Scalar, cpu::best_isa()})
    for (const Phase phase : {Phase::Decode, Phase::Prefill})
      for (const int64_t n : {1, 3, 130, 257}) {
        if (phase == Phase::Decode && n > 3) continue;
        CpuProducts products(cpu::kernels(isa), true, &threads);
        const int64_t heads = 3, rows = 40, cols = 24, copied = 8, x_head = cols + copied + 5,
                      y_head = rows + copied + 2, ldx = heads * x_head + 3,
                      ldy = heads * y_head + 1;
        const std::vector<float> w = random_values(random, heads * rows * cols),
                                 x = random_values(random, n * ldx);
        std::vector<uint16_t> halves;
        for (const float value : w) halves.push_back(cpu::f32_to_f16(value));
        std::vector<Tensor> weights;
        for (int64_t h = 0; h < heads; ++h)
          weights.push_back({DType::F16, rows, cols, halves.data() + h * rows * cols});
        std::vector<float> y(n * ldy, 7.f);
        products.multiply_heads(
            {&weights, x.data(), ldx, x_head, y.data(), ldy, y_head, n, copied, phase});
        double worst = 0;
        int64_t others = 0;
        for (int64_t i = 0; i < n; ++i)
          for (int64_t h = 0; h < heads; ++h) {
            const float *in = &x[i * ldx + h * x_head], *out = &y[i * ldy + h * y_head];
            for (int64_t r = 0; r < rows; ++r) {
              double sum = 0;
              for (int64_t c = 0; c < cols; ++c)
                sum += static_cast<double>(cpu::f16_to_f32(halves[(h * rows + r) * cols + c])) *
                       static_cast<double>(in[c]);
              worst = std::max(worst, std::fabs(sum - static_cast<double>(out[r])));
            }
            for (int64_t c = 0; c < copied; ++c) others += out[rows + c] != in[cols + c];
            for (int64_t c = rows + copied; c < y_head; ++c) others += out[c] != 7.f;
          }
        INFO("n " << n << ", phase " << static_cast<int>(phase));
        CHECK(worst <= 1e-3);
        CHECK(others == 0);
        // The copied values alone: nothing else changes.
        std::vector<float> expected(y.size(), 7.f);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t h = 0; h < heads; ++h)
            std::copy_n(&x[i * ldx + h * x_head + cols], copied,
                        &expected[i * ldy + h * y_head + rows]);
        y.assign(y.size(), 7.f);
        products.multiply_heads(
            {&weights, x.data(), ldx, x_head, y.data(), ldy, y_head, n, copied, phase, true});
        CHECK(y == expected);
      }
}

TEST_CASE("experts are chosen of the groups whose two best experts have the largest sum",
          "[backend][latent]") {
  // Groups of 3. Sums of the two best: 0.9 + 0.1, 0.6 + 0.5, 0.8 + 0.7, 0.2 + 0.2.
  const std::vector<float> ranks = {0.9f, 0.1f, 0,    0.5f, 0.6f, 0.4f,
                                    0.7f, 0.3f, 0.8f, 0.2f, 0.2f, 0.1f};
  Routing routing;
  routing.sigmoid = true;
  routing.n_groups = 4;
  const auto rank = [&](int e) { return ranks[e]; };
  for (const auto& [used, groups] : {std::pair{1, 0b100}, {2, 0b110}, {3, 0b111}, {4, 0b1111}}) {
    routing.used_groups = used;
    CHECK(choose_groups(rank, 12, routing) == static_cast<uint64_t>(groups));
  }
  // Scores whose sigmoids are the ranks. The best expert of all is in a group that is not used.
  std::vector<float> scores;
  for (const float r : ranks) scores.push_back(std::log((r + 1e-6f) / (1 - r)));
  routing.used_groups = 2;
  Routed routed[4];
  route_by_sigmoid(scores.data(), nullptr, 12, 4, false, routing, routed);
  const int expected[] = {8, 6, 4, 3};
  for (int i = 0; i < 4; ++i) CHECK(routed[i].expert == expected[i]);
}
