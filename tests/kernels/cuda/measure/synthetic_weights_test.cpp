// Weights made on the device, against their definition (kernels/common/measure/synthetic.h) and
// against weights that were made in memory and uploaded.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "backend/cuda/weights.h"
#include "kernels/common/half.h"
#include "kernels/common/measure/synthetic.h"
#include "kernels/cuda/measure/measure.h"
#include "measure/synthetic_model.h"
#include "tests/kernels/cuda/linear.h"

namespace cpu = riffle::cpu;
using namespace riffle::cuda;
using namespace riffle::test;

TEST_CASE("fill_synthetic writes what kernels/common/measure/synthetic.h says", "[cuda]") {
  if (skip()) return;
  const int64_t rows = 77, cols = 4096;
  for (WType type :
       {WType::F32, WType::F16, WType::BF16, WType::Q8_0}) {  // the others: quant_test.cpp
    const size_t count = rows * cols;
    DeviceArray<uint8_t> data(count * bytes_of(type));
    DeviceArray<uint16_t> scales(count / 32);
    data.poison(), scales.poison();
    check_cuda(fill_synthetic({type, rows, cols, data.get(), scales.get()}, 99, 0.02f, nullptr));
    const auto bytes = data.download();
    const auto scale_bits = scales.download();
    bool right = true;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
      const float w = riffle::synthetic::weight(99, i, 0.02f);
      if (type == WType::Q8_0) {
        right &=
            static_cast<int8_t>(bytes[i]) == riffle::synthetic::quant(99, i) && bytes[i] != 0x80;
        right &= scale_bits[i / 32] == cpu::f32_to_f16(riffle::synthetic::q8_scale(0.02f));
      } else {
        const float want = type == WType::F32   ? w
                           : type == WType::F16 ? cpu::f16_to_f32(cpu::f32_to_f16(w))
                                                : value_of_bf16(bf16_of(w));
        right &= element_of(bytes.data(), type, i) == want;
      }
      sum += w, squares += static_cast<double>(w) * w;
    }
    INFO(name_of(type));
    CHECK(right);
    CHECK(std::fabs(sum / count) <= 1e-4);
    CHECK(std::fabs(squares / count / (0.02 * 0.02 / 3) - 1) <= 0.01);
  }
}

TEST_CASE("weights uploaded from memory and weights made on the device are those of the definition",
          "[cuda]") {
  if (skip()) return;
  riffle::ThreadPool threads(3);
  for (WType type : {WType::Q8_0, WType::Q4_0, WType::Q4_1, WType::Q5_0, WType::Q5_1, WType::Q4_K,
                     WType::Q5_K, WType::Q6_K}) {
    const auto made = riffle::synthetic_model("tiny", type),
               file = riffle::synthetic_model("tiny", type);
    riffle::materialize(*file);
    DeviceHeap heap(0);
    const Stream stream;
    const DeviceWeights uploaded(*file, heap, stream, &threads, 0),
        filled(*made, heap, stream, &threads, 0);
    INFO(name_of(type));
    CHECK(heap.used() == 2 * device_bytes(*file));
    const auto compare = [&](const riffle::Tensor& with_data, const riffle::Tensor& without) {
      const int64_t count = with_data.rows * with_data.cols;
      std::vector<float> want(count);
      cpu::dequant_blocks(type, static_cast<const uint8_t*>(with_data.data), count, want.data());
      DeviceArray<float> a(count), b(count);
      a.poison(), b.poison();
      check_cuda(
          dequantize(uploaded.matrix(with_data), 0, with_data.rows, a.get(), WType::F32, nullptr));
      check_cuda(dequantize(filled.matrix(without), 0, without.rows, b.get(), WType::F32, nullptr));
      CHECK(same_bits(a.download(), want));
      CHECK(same_bits(b.download(), want));
    };
    for (size_t layer = 0; layer < file->weights.layers.size(); layer++) {
      const auto &l = file->weights.layers[layer], &m = made->weights.layers[layer];
      compare(l.wq, m.wq), compare(l.wk, m.wk), compare(l.w1, m.w1), compare(l.w2, m.w2);
    }
    compare(file->weights.output, made->weights.output);
  }
}
