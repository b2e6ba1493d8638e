// The kernels of per-layer embeddings: rows of a table, and the part that depends on tokens alone.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/cuda/layer/layer.h"
#include "tests/kernels/cuda/linear.h"

using namespace riffle::cuda;
using namespace riffle::test;

TEST_CASE("weight_rows gathers rows of every type, exactly", "[cuda]") {
  if (skip()) return;
  Rng g(71);
  for (const WType type : kTypes)
    for (const int64_t cols : {int64_t(256), int64_t(96), int64_t(2048), int64_t(37)}) {
      if (!whole_blocks(type, cols)) continue;
      INFO(name_of(type) << " " << cols);
      const Weights w(g, type, 19, cols);
      const std::vector<int32_t> rows = {18, 0, 7, 7, 3};
      const DeviceArray<int32_t> rows_device(rows);
      const size_t count = rows.size() * cols;
      DeviceArray<float> out(count);
      DeviceArray<uint16_t> out16(count);
      out.poison();
      check_cuda(weight_rows(w.matrix(), rows_device.get(), 5, out.get(), WType::F32, nullptr));
      check_cuda(weight_rows(w.matrix(), rows_device.get(), 5, out16.get(), WType::BF16, nullptr));
      const auto got = out.download();
      const auto got16 = out16.download();
      bool same = true, same16 = true;
      for (size_t i = 0; i < rows.size(); i++)
        for (int64_t c = 0; c < cols; c++) {
          const float want = w.values[rows[i] * cols + c];
          same &= got[i * cols + c] == want;
          same16 &= got16[i * cols + c] == bf16_of(want);
        }
      CHECK(same);
      CHECK(same16);
    }
  CHECK(weight_rows({WType::F32, 1, 1}, nullptr, 1, nullptr, WType::Q8_0, nullptr) ==
        cudaErrorInvalidValue);
}

TEST_CASE("layer_embedding against float64", "[cuda]") {
  if (skip()) return;
  Rng g(72);
  const float eps = 1e-6f;
  for (const int64_t n : {1, 3, 40})
    for (const int n_layers : {1, 5})
      for (const int width : {16, 48, 256, 300}) {
        INFO(n << " tokens, " << n_layers << " layers of " << width);
        const size_t count = n * n_layers * width;
        const auto p = random_floats(g, count, 3), t = random_floats(g, count),
                   weight = random_floats(g, width);
        const DeviceArray<float> projected(p), tokens(t), weights(weight);
        DeviceArray<float> out(count);
        out.poison();
        check_cuda(layer_embedding(projected.get(), tokens.get(), weights.get(), n, n_layers, width,
                                   eps, out.get(), nullptr));
        const auto got = out.download();
        double worst = 0;
        for (int64_t i = 0; i < n; i++)
          for (int l = 0; l < n_layers; l++) {
            const size_t from = (i * n_layers + l) * width, to = (l * n + i) * width;
            double squares = 0;
            for (int c = 0; c < width; c++) squares += double(p[from + c]) * p[from + c];
            const double scale = 1 / std::sqrt(squares / width + eps);
            for (int c = 0; c < width; c++) {
              const double want =
                  (p[from + c] * scale * weight[c] + t[from + c] * std::sqrt(double(width))) *
                  std::sqrt(0.5);
              const double error = std::fabs(got[to + c] - want);
              worst = error == error ? std::max(worst, error) : INFINITY;
            }
          }
        CHECK(worst <= 1e-5);
        if (n_layers > 1) continue;
        check_cuda(layer_embedding(projected.get(), tokens.get(), weights.get(), n, 1, width, eps,
                                   projected.get(), nullptr));
        CHECK(same_bits(projected.download(), got));
      }
}
