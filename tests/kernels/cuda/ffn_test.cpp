// Products of four matrices, the activation of FFNs without a gate, and queries that come with
// their gates.
#include <cmath>

#include "kernels/common/half.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::cuda;
using namespace riffle::test;

TEST_CASE("gemv of four outputs: each has the bits that it has alone", "[cuda]") {
  if (skip()) return;
  Rng g(21);
  const struct {
    int64_t rows[4], cols;
  } shapes[] = {{{129, 61, 3, 3}, 2560}, {{1024, 613, 48, 48}, 512}, {{1, 17, 16, 33}, 1408}};
  for (const WType type : kTypes)
    for (const auto& shape : shapes)
      for (const bool mixed : {false, true}) {  // the small ones are often F32
        if (!whole_blocks(type, shape.cols)) continue;
        std::vector<Weights> w;
        for (int o = 0; o < 4; o++)
          w.emplace_back(g, mixed && o >= 2 ? WType::F32 : type, shape.rows[o], shape.cols);
        const auto x = random_floats(g, shape.cols * kGemvMaxRows),
                   norm = random_floats(g, shape.cols), before = random_floats(g, 40);
        for (const int n : {1, 2, 6, 16}) {
          const Case c = {n, true, n == 2 ? Then::Add : Then::Store, n % 2 == 0};
          const auto all = check_gemv(w, c, x, norm, before);
          for (int o = 0; o < 4; o++) {
            std::vector<Weights> alone;
            alone.push_back(std::move(w[o]));
            const auto one = check_gemv(alone, c, x, norm, before);
            w[o] = std::move(alone[0]);
            INFO(name_of(type) << ", mixed " << mixed << ", n " << n << ", output " << o);
            CHECK(same_bits(one[0], all[o]));
          }
        }
      }
}

TEST_CASE("gemv squares what is positive, every type", "[cuda]") {
  if (skip()) return;
  Rng g(22);
  for (const WType type : kTypes)
    for (const int64_t cols : {96, 672, 2048, 2688}) {
      if (!whole_blocks(type, cols)) continue;
      std::vector<Weights> w;
      w.emplace_back(g, type, 131, cols);
      const auto x = random_floats(g, cols * kGemvMaxRows), norm = random_floats(g, cols),
                 before = random_floats(g, 40);
      std::vector<float> all;
      for (const int n : {16, 1, 3, 7}) {
        const auto y = check_gemv(w, {n, true, Then::ReluSquared, n == 3}, x, norm, before)[0];
        if (n == 16) all = y;
        INFO(name_of(type) << " of " << cols << " columns, n " << n);
        CHECK(same_bits(y, {all.begin(), all.begin() + static_cast<int64_t>(y.size())}));
      }
    }
  // Odd sizes go through another kernel.
  std::vector<Weights> odd;
  odd.emplace_back(g, WType::F16, 37, 1001);
  check_gemv(odd, {5, true, Then::ReluSquared}, random_floats(g, 1001 * 5), random_floats(g, 1001),
             random_floats(g, 40));
}

TEST_CASE("relu_squared against float64", "[cuda]") {
  if (skip()) return;
  Rng g(23);
  const int64_t width = 33, rows = 71, count = width * rows;
  for (const WType type : {WType::F32, WType::F16, WType::BF16})
    for (const bool biased : {false, true}) {
      auto x = random_floats(g, count, 300);
      const auto bias = random_floats(g, width, 100);
      std::vector<uint8_t> bytes(count * bytes_of(type));
      for (int64_t i = 0; i < count; i++) {
        const uint16_t h = type == WType::F16 ? riffle::cpu::f32_to_f16(x[i]) : bf16_of(x[i]);
        if (type == WType::F32) std::memcpy(&bytes[4 * i], &x[i], 4);
        else std::memcpy(&bytes[2 * i], &h, 2);
        x[i] = element_of(bytes.data(), type, i);
      }
      // In place where the sizes are the same: squares of f16 values go to bf16.
      const WType out = type == WType::F16 ? WType::BF16 : type;
      DeviceArray<uint8_t> values(bytes);
      const DeviceArray<float> bias_d(bias);
      check_cuda(relu_squared(values.get(), count, type, values.get(), out, nullptr,
                              biased ? bias_d.get() : nullptr, biased ? width : 0));
      const auto got = values.download();
      const double tolerance = out == WType::F32 ? 1e-6 : 4e-3;
      int wrong = 0, large = 0;
      for (int64_t i = 0; i < count; i++) {
        const double v = x[i] + (biased ? bias[i % width] : 0), want = v > 0 ? v * v : 0;
        large += want > 65504;
        const double size = std::fabs(x[i]) + (biased ? 100 : 0);  // the sum's rounding
        wrong += !(std::fabs(element_of(got.data(), out, i) - want) <=
                   tolerance * want + 2e-7 * size * size);
      }
      INFO(name_of(type) << ", biased " << biased);
      CHECK(wrong == 0);
      CHECK(large > 0);
    }
  // Infinity is the largest value in f16, and NaN stays visible.
  const std::vector<uint16_t> ends = {0x7c00, 0xfc00, 0x7e00, 0x8000, 0x3c00};
  const DeviceArray<uint16_t> ends_d(ends);
  DeviceArray<float> out(ends.size());
  check_cuda(relu_squared(ends_d.get(), 5, WType::F16, out.get(), WType::F32, nullptr));
  const auto five = out.download();
  CHECK((five[0] == 65504.0f * 65504 && five[1] == 0 && std::isnan(five[2])));
  CHECK((five[3] == 0 && five[4] == 1));
}

TEST_CASE("xielu against the CPU's function", "[cuda]") {
  if (skip()) return;
  Rng g(24);
  const int64_t width = 33, rows = 71, count = width * rows;
  const float values[4] = {0.8f, -0.5f, 0.5f, -1e-6f};
  const riffle::XieluFactors factors = riffle::xielu_factors(values);
  auto x = random_floats(g, count, 30);
  x[0] = 0, x[1] = -0.0f, x[2] = -1e-7f, x[3] = -200, x[4] = 1e-3f;
  const auto bias = random_floats(g, width, 10);
  for (const bool biased : {false, true}) {
    DeviceArray<float> in_place(x);
    DeviceArray<uint16_t> bf16(static_cast<size_t>(count));
    const DeviceArray<float> xd(x), bias_d(bias);
    const float* const b = biased ? bias_d.get() : nullptr;
    check_cuda(xielu(in_place.get(), count, WType::F32, in_place.get(), WType::F32, factors,
                     nullptr, b, width));
    check_cuda(
        xielu(xd.get(), count, WType::F32, bf16.get(), WType::BF16, factors, nullptr, b, width));
    const auto got = in_place.download();
    const auto got16 = bf16.download();
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) {
      const float v = x[i] + (biased ? bias[i % width] : 0), want = riffle::xielu(v, factors);
      // Terms of both signs are added.
      wrong += !(std::fabs(got[i] - want) <= 1e-6 * (std::fabs(v) + v * v) + 1e-12);
      wrong += !(std::fabs(value_of_bf16(got16[i]) - got[i]) <= 4e-3 * std::fabs(got[i]));
    }
    INFO("biased " << biased);
    CHECK(wrong == 0);
  }
}

TEST_CASE("split_heads separates queries from their gates", "[cuda]") {
  if (skip()) return;
  Rng g(24);
  for (const int d : {1, 6, 8, 128, 256})
    for (const int heads : {1, 3, 24})
      for (const int64_t n : {1, 5, 67}) {
        const int64_t count = n * heads * d;
        const auto both = random_floats(g, 2 * count);
        const DeviceArray<float> both_d(both);
        DeviceArray<float> q(static_cast<size_t>(count)), gate(static_cast<size_t>(count));
        q.poison(), gate.poison();
        check_cuda(split_heads(both_d.get(), n, heads, d, q.get(), gate.get(), nullptr));
        const auto got_q = q.download(), got_gate = gate.download();
        int wrong = 0;
        for (int64_t i = 0; i < count; i++) {
          const int64_t from = i / d * 2 * d + i % d;
          wrong += got_q[i] != both[from] || got_gate[i] != both[from + d];
        }
        INFO(n << " rows of " << heads << " heads of " << d);
        CHECK(wrong == 0);
      }
}
