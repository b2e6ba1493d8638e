// Measures the rate of a large product, for riffle_product_rate.
#include <random>
#include <vector>

#include "backend/cuda/cuda_device.h"
#include "kernels/common/half.h"
#include "util/error.h"

namespace riffle::cuda {

// Operands are random: a GPU multiplies equal values faster. They are f16, so the rate says nothing
// of prompts with f32 KV.
double CudaDevice::product_rate() {
  if (options_.layout.type == cpu::KvType::F32) return 0;
  constexpr int64_t kSize = 8192, kValues = kSize * kSize;
  constexpr size_t kBytes = kValues * sizeof(uint16_t);
  const DeviceScope on = enter();
  DeviceHeap heap(0);
  Buffer a, b, out;
  try {
    for (Buffer* buffer : {&a, &b, &out}) *buffer = heap.take(kBytes, "measuring products");
  } catch (const Error& e) {
    if (e.status() != RIFFLE_OUT_OF_MEMORY) throw;
    return 0;
  }
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<uint16_t> row(size_t(64) * kSize);
  for (uint16_t& v : row) v = cpu::f32_to_f16(values(random));
  const size_t bytes = row.size() * sizeof(uint16_t);
  for (const Buffer* to : {&a, &b})
    for (size_t at = 0; at < kBytes; at += bytes)
      check(cudaMemcpyAsync(to->as<std::byte>() + at, row.data(), bytes, cudaMemcpyHostToDevice,
                            compute_),
            "measuring products");
  const float best = fewest_ms(compute_, "measuring products", [&] {
    cublas_.product(a.data(), b.data(), WType::F16, kSize, kSize, kSize, out.data(), kSize,
                    WType::F16, false);
  });
  return best > 0 ? 2.0 * static_cast<double>(kValues) * kSize / (best * 1e-3) : 0;
}

}  // namespace riffle::cuda
