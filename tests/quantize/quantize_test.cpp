// Quantising: the canonical types against the gguf package's bytes, the K types by their error, all
// against what no row or thread may change.
#include "quantize/quantize.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "util/error.h"
#include "util/thread_pool.h"

using namespace riffle;

namespace {

constexpr DType kTypes[] = {DType::F32,  DType::F16,  DType::BF16, DType::Q8_0,
                            DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1,
                            DType::Q4_K, DType::Q5_K, DType::Q6_K};

std::vector<uint8_t> quantised(DType type, const std::vector<float>& x, int64_t cols) {
  const int64_t rows = static_cast<int64_t>(x.size()) / cols;
  std::vector<uint8_t> out(rows * row_bytes(type, cols) + 1, 0x5a);
  quantise_rows(type, x.data(), rows, cols, out.data());
  CHECK(out.back() == 0x5a);
  out.pop_back();
  return out;
}
std::vector<float> values(DType type, const std::vector<uint8_t>& bytes, int64_t cols) {
  const int64_t rows = static_cast<int64_t>(bytes.size()) / row_bytes(type, cols);
  std::vector<float> out(rows * cols);
  const auto& scalar = cpu::kernels(cpu::Isa::Scalar)->linear;
  for (int64_t r = 0; r < rows; ++r)
    scalar.dequant_row(type, bytes.data(), cols, r, out.data() + r * cols);
  return out;
}

// Normal, or with the long tails of a product of normals.
std::vector<float> random_weights(int64_t n, uint64_t seed, bool tails) {
  std::mt19937_64 g(seed);
  const auto normal = [&] {  // Box-Muller, the same on every library
    const double u = (static_cast<double>(g() >> 11) + 1) * 0x1p-53,
                 v = static_cast<double>(g() >> 11) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
  };
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(0.02 * normal() * (tails ? normal() : 1));
  return x;
}
double relative_rms(const std::vector<float>& x, const std::vector<float>& y) {
  REQUIRE(x.size() == y.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (static_cast<double>(y[i]) - x[i]) * (static_cast<double>(y[i]) - x[i]);
    size += static_cast<double>(x[i]) * x[i];
  }
  return std::sqrt(error / size);
}

std::string refusal(DType type, const std::vector<float>& x, int64_t cols) {
  std::vector<uint8_t> out(x.size() * 4);
  try {
    quantise_rows(type, x.data(), static_cast<int64_t>(x.size()) / cols, cols, out.data(),
                  "blk.0.attn_q.weight");
  } catch (const Error& e) {
    CHECK(e.status() == RIFFLE_BAD_MODEL);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the canonical types have the bytes of the gguf package", "[quantize]") {
  std::ifstream file("tests/golden/quantised_rows.bin", std::ios::binary);
  const std::vector<uint8_t> all{std::istreambuf_iterator<char>(file), {}};
  size_t at = 0;
  const auto take = [&](void* to, size_t n) {
    REQUIRE(n <= all.size() - at);
    std::memcpy(to, all.data() + at, n);
    at += n;
  };
  char magic[8];
  uint32_t rows, cols;
  take(magic, 8), take(&rows, 4), take(&cols, 4);
  REQUIRE(std::memcmp(magic, "QROWS001", 8) == 0);
  std::vector<float> x(size_t{rows} * cols);
  take(x.data(), x.size() * 4);
  for (DType type : {DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1}) {
    INFO(dtype_info(type).name);
    uint32_t id, bytes;
    take(&id, 4), take(&bytes, 4);
    std::vector<uint8_t> want(bytes);
    take(want.data(), bytes);
    const std::vector<uint8_t> got = quantised(type, x, cols);
    REQUIRE(got.size() == want.size());
    int64_t unequal = 0;
    for (size_t i = 0; i < got.size(); ++i) unequal += got[i] != want[i];
    CHECK(unequal == 0);
  }
  CHECK(at == all.size());
}

TEST_CASE("quantised weights are as close as their type allows", "[quantize]") {
  struct Bound {
    DType type;
    double normal, tails;  // relative RMS; K types: what llama.cpp's quantisers reach on the same
                           // kind of values
  };
  for (const Bound& b : {Bound{DType::F16, 3e-4, 3e-4}, Bound{DType::BF16, 2.4e-3, 2.4e-3},
                         Bound{DType::Q8_0, 0.0055, 0.0076}, Bound{DType::Q4_0, 0.088, 0.116},
                         Bound{DType::Q4_1, 0.080, 0.101}, Bound{DType::Q5_0, 0.044, 0.059},
                         Bound{DType::Q5_1, 0.039, 0.049}, Bound{DType::Q4_K, 0.0722, 0.0929},
                         Bound{DType::Q5_K, 0.0385, 0.0510}, Bound{DType::Q6_K, 0.0179, 0.0237}})
    for (bool tails : {false, true}) {
      const std::vector<float> x = random_weights(64 * 1024, 7, tails);
      const double rms = relative_rms(x, values(b.type, quantised(b.type, x, 1024), 1024));
      INFO(dtype_info(b.type).name << (tails ? " tails " : " normal ") << rms);
      CHECK(rms <= (tails ? b.tails : b.normal));
    }
}

TEST_CASE("every value of every kind of block stays near its own", "[quantize]") {
  std::vector<std::vector<float>> blocks;
  blocks.push_back(std::vector<float>(256, 0.0f));
  blocks.push_back(std::vector<float>(256, -0.75f));
  blocks.push_back(std::vector<float>(256, 0.75f));
  for (double scale : {1e-7, 1e-3, 1.0, 1e3}) {
    std::vector<float> x = random_weights(256, 3, false), one(256, 0), positive = x, negative = x;
    one[77] = static_cast<float>(scale);
    for (float& v : x) v *= static_cast<float>(scale);
    for (float& v : positive) v = std::fabs(v) * static_cast<float>(scale);
    for (float& v : negative) v = -std::fabs(v) * static_cast<float>(scale);
    for (auto* v : {&x, &one, &positive, &negative}) blocks.push_back(*v);
  }
  std::vector<float> steps = random_weights(256, 4, false);  // groups of very different sizes
  for (int i = 0; i < 256; ++i) steps[i] *= std::ldexp(1.0f, -(i / 16));
  blocks.push_back(steps);
  for (DType type : kTypes)
    for (size_t i = 0; i < blocks.size(); ++i) {
      const std::vector<float>& x = blocks[i];
      const std::vector<float> y = values(type, quantised(type, x, 256), 256);
      float largest = 0;
      for (float v : x) largest = std::max(largest, std::fabs(v));
      // Codes of b bits over [-largest, largest] are 2 largest / (2^b - 1) apart at most; 6-bit
      // scales cost a little more.
      const int bits = type == DType::Q4_0 || type == DType::Q4_1 || type == DType::Q4_K   ? 4
                       : type == DType::Q5_0 || type == DType::Q5_1 || type == DType::Q5_K ? 5
                       : type == DType::Q6_K                                               ? 6
                                                                                           : 8;
      double worst = 0;
      for (int j = 0; j < 256; ++j)
        worst = std::fmax(worst, std::fabs(static_cast<double>(y[j]) - x[j]));
      INFO(dtype_info(type).name << " block " << i << " largest " << largest << " error " << worst);
      // f16 scales are multiples of 2^-24: tiny weights are lost to that grid, times the largest
      // code.
      CHECK(worst <= 1.25 * largest * 2 / ((1 << bits) - 1) + (largest < 1e-3 ? 0x1p-24 * 64 : 0));
      if (largest == 0) CHECK(worst == 0);
    }
}

TEST_CASE("f16 and bf16 take the nearest value, ties to even", "[quantize]") {
  std::vector<float> x = random_weights(4096, 9, true);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = std::ldexp(x[i], static_cast<int>(i % 40) - 25);
  x[1] = 1 + 0x1p-11f, x[2] = 1 + 3 * 0x1p-11f, x[4] = 0x1p-25f, x[5] = 3 * 0x1p-25f, x[7] = 65519,
  x[8] = -0.0f;
  x[10] = 1 + 0x1p-8f, x[11] = 1 + 3 * 0x1p-8f;
  for (DType type : {DType::F16, DType::BF16}) {
    const std::vector<uint8_t> bytes = quantised(type, x, 4096);
    int wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t h;
      std::memcpy(&h, &bytes[2 * i], 2);
      const auto error = [&](int code) {
        const uint16_t c = static_cast<uint16_t>(code);
        std::vector<uint8_t> b(2);
        std::memcpy(b.data(), &c, 2);
        return std::fabs(static_cast<double>(values(type, b, 1)[0]) - x[i]);
      };
      wrong += std::signbit(x[i]) != (h >> 15);
      for (int other : {h - 1, h + 1})
        if ((other & 0x7fff) != 0x7fff && (other ^ h) < 0x8000)
          wrong += !(error(h) < error(other) || (error(h) == error(other) && h % 2 == 0));
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("quantising does not depend on rows taken together or on threads", "[quantize]") {
  const int64_t cols = 512, rows = 37;
  const std::vector<float> x = random_weights(rows * cols, 11, true);
  for (DType type : kTypes) {
    INFO(dtype_info(type).name);
    const std::vector<uint8_t> all = quantised(type, x, cols);
    const int64_t bytes = row_bytes(type, cols);
    bool same = true;
    for (int64_t r = 0; r < rows; r += 5) {
      const std::vector<float> one(x.begin() + r * cols, x.begin() + (r + 1) * cols);
      same &= std::memcmp(quantised(type, one, cols).data(), &all[r * bytes], bytes) == 0;
    }
    CHECK(same);
    for (int n : {1, 2, 3}) {
      ThreadPool threads(n);
      std::vector<uint8_t> got(all.size());
      quantise_rows(threads, type, x.data(), rows, cols, got.data());
      CHECK((got == all));
    }
    quantise_rows(type, nullptr, 0, cols, nullptr);
  }
}

TEST_CASE("values that a type cannot hold are refused by name", "[quantize]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kNan = std::numeric_limits<float>::quiet_NaN();
  for (DType type : kTypes) {
    INFO(dtype_info(type).name);
    for (float bad : {kInf, -kInf, kNan}) {
      std::vector<float> x = random_weights(3 * 512, 1, false);
      x[512 + 300] = bad;
      const std::string text = refusal(type, x, 512);
      INFO(text);
      CHECK(text.find("blk.0.attn_q.weight") != std::string::npos);
      CHECK(text.find("row 1, column 300") != std::string::npos);
      CHECK(text.find(dtype_info(type).name) != std::string::npos);
    }
    if (type != DType::F32 && type != DType::BF16) {
      std::vector<float> x = random_weights(512, 1, false);
      x[3] = 3e38f;
      CHECK(refusal(type, x, 512).find("too large") != std::string::npos);
    }
    if (is_quantised(type)) {
      const std::vector<float> x(40);
      std::vector<uint8_t> out(400);
      CHECK_THROWS_AS(quantise_rows(type, x.data(), 1, 40, out.data()), Error);
    }
  }
  CHECK(refusal(DType::BF16, {std::numeric_limits<float>::max()}, 1).find("too large") !=
        std::string::npos);
}
