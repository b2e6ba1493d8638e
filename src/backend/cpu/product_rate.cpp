// Measures the rate of a large product, for riffle_product_rate.
#include <chrono>
#include <vector>

#include "backend/cpu/cpu_device.h"

namespace riffle {

// Uses the largest matrix of a layer. The output matrix does not count, because a prompt multiplies
// one row by it.
double CpuDevice::product_rate() {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kRows = 512;
  constexpr double kEnoughSeconds = 0.5;
  const auto size = [](const Tensor* t) { return t ? t->rows * t->cols : 0; };
  const Tensor* largest = nullptr;
  for (const LayerWeights& l : model_.weights.layers)
    for (const Tensor* t : {&l.wq, &l.wo, &l.w3, &l.w2})
      if (size(t) > size(largest)) largest = t;
  if (!largest) return 0;
  std::vector<float> x(kRows * largest->cols), y(kRows * largest->rows);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(static_cast<int>(i * 2654435761U >> 16 & 1023) - 512) / 512;
  const LinearOut out{largest, y.data(), largest->rows};
  double best = 0, spent = 0;
  for (int i = 0; i < 2 || spent < kEnoughSeconds; ++i) {
    const Clock::time_point start = Clock::now();
    products_.multiply({&out, 1}, x.data(), kRows, Phase::Prefill);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    spent += seconds;
    if (i > 0 && (best == 0 || seconds < best)) best = seconds;  // the first one warms up
  }
  return 2.0 * static_cast<double>(kRows * largest->rows) * static_cast<double>(largest->cols) /
         best;
}

}  // namespace riffle
