// The quantised types of weights on every instruction set: values equal to the gguf package's, bit
// for bit, and products within float error of those values multiplied in float64, with bits that do
// not depend on how the work is split.
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/kernels/cpu/linear_matrix.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::cpu;

namespace {

constexpr WType kBlockTypes[] = {
    WType::Q8_0, WType::Q4_0,   WType::Q4_1,   WType::Q5_0, WType::Q5_1, WType::Q4_K, WType::Q5_K,
    WType::Q6_K, WType::IQ4_NL, WType::IQ4_XS, WType::Q3_K, WType::Q2_K, WType::MXFP4};

// Where a block has f16 numbers, its scale and, if there is one, its minimum (-1: none). MXFP4 has
// none: its scale is an exponent in byte 0.
struct Halves {
  int scale, min;
};
Halves halves_of(WType type) {
  switch (type) {
    case WType::Q6_K: return {208, -1};
    case WType::Q3_K: return {108, -1};
    case WType::Q2_K: return {80, 82};
    case WType::MXFP4: return {-1, -1};
    case WType::Q4_1:
    case WType::Q5_1:
    case WType::Q4_K:
    case WType::Q5_K: return {0, 2};
    default: return {0, -1};
  }
}

// Values by the plain C++ kernels, which the first test below compares with the gguf package.
void take_values(Matrix* w) {
  std::vector<float> row(w->cols);
  w->value.clear();
  for (int64_t r = 0; r < w->rows; ++r) {
    kernels(Isa::Scalar)->linear.dequant_row(w->type, w->data(), w->cols, r, row.data());
    w->value.insert(w->value.end(), row.begin(), row.end());
  }
  measure(w);
}

Matrix random_blocks(WType type, int64_t rows, int64_t cols, Random& g, double scale = 0.05) {
  const DTypeInfo& info = dtype_info(type);
  Matrix w{type, rows, cols, std::vector<uint8_t>(2 + rows * row_bytes(type, cols), 0xff), {}, {}};
  const Halves at = halves_of(type);
  const auto put = [](uint8_t* p, uint16_t h) { p[0] = h & 255, p[1] = h >> 8; };
  for (uint8_t* b = w.bytes.data() + 1; b + info.block_bytes < w.bytes.data() + w.bytes.size();
       b += info.block_bytes) {
    for (int i = 0; i < info.block_bytes; ++i) b[i] = static_cast<uint8_t>(g());
    if (type == WType::MXFP4) {
      b[0] = static_cast<uint8_t>(120 + g() % 3 + std::ilogb(scale));
      continue;
    }
    const double d = scale / 100 * (1 + uniform(g) * 0.9) * (g() % 8 ? 1 : -1);
    put(b + at.scale, g() % 9 ? some_f16(d) : 0);  // some blocks are all zero
    if (at.min >= 0) put(b + at.min, g() % 9 ? some_f16(d * 7 * uniform(g)) : 0);
  }
  take_values(&w);
  return w;
}

std::vector<int64_t> widths(WType type) {
  if (dtype_info(type).block_values == 256) return {256, 512, 768, 1280, 4352};
  return {32, 64, 96, 128, 160, 512, 608, 1408, 2080};
}

}  // namespace

TEST_CASE("dequantisation gives the bits of the gguf package", "[linear][quants]") {
  std::ifstream file("tests/golden/quant_blocks.bin", std::ios::binary);
  const std::vector<uint8_t> all{std::istreambuf_iterator<char>(file), {}};
  size_t at = 0;
  const auto take = [&](size_t n) {
    REQUIRE(n <= all.size() - at);
    at += n;
    return all.data() + at - n;
  };
  const auto number = [&] {
    uint32_t v;
    std::memcpy(&v, take(4), 4);
    return v;
  };
  REQUIRE(std::memcmp(take(8), "QBLOCKS1", 8) == 0);
  size_t known = 0;
  for (uint32_t types = number(); types > 0; --types) {
    // ggml's type ids.
    constexpr std::pair<uint32_t, WType> kIds[] = {
        {2, WType::Q4_0},  {3, WType::Q4_1},  {6, WType::Q5_0},    {7, WType::Q5_1},
        {8, WType::Q8_0},  {10, WType::Q2_K}, {11, WType::Q3_K},   {12, WType::Q4_K},
        {13, WType::Q5_K}, {14, WType::Q6_K}, {20, WType::IQ4_NL}, {23, WType::IQ4_XS},
        {39, WType::MXFP4}};
    const uint32_t id = number(), values = number(), bytes = number(), n = number();
    const uint8_t* blocks = take(size_t{bytes} * n);
    const uint8_t* want = take(size_t{values} * n * 4);
    for (const auto& [type_id, type] : kIds) {
      if (type_id != id) continue;
      ++known;
      REQUIRE(dtype_info(type).block_values == static_cast<int>(values));
      REQUIRE(dtype_info(type).block_bytes == static_cast<int>(bytes));
      std::vector<uint8_t> moved(1 + size_t{bytes} * n);  // at an odd address
      std::memcpy(moved.data() + 1, blocks, size_t{bytes} * n);
      for (const Kernels* k : available()) {
        INFO(k->name << " " << dtype_info(type).name);
        std::vector<float> got(values * n + 1, -7);
        k->linear.dequant_row(type, moved.data() + 1, values * n, 0, got.data());
        CHECK(std::memcmp(got.data(), want, size_t{values} * n * 4) == 0);
        CHECK(got.back() == -7);
        for (uint32_t r = 0; r < n; ++r)
          k->linear.dequant_row(type, moved.data() + 1, values, r, got.data() + r * values);
        CHECK(std::memcmp(got.data(), want, size_t{values} * n * 4) == 0);
      }
    }
  }
  CHECK(at == all.size());
  CHECK(known == std::size(kBlockTypes));
}

TEST_CASE("gemv of quantised weights agrees with float64 and does not depend on splits",
          "[linear][quants]") {
  for (const bool f32 : {false, true})
    for (const Kernels* k : available())
      for (WType type : kBlockTypes)
        for (int64_t c : widths(type)) {
          Random g(1000 * c + static_cast<int>(type));
          const int64_t rows = c > 1000 ? 13 : 23, most = 9;
          const Matrix w = random_blocks(type, rows, c, g);
          const std::vector<float> x = random_values(most * c, g);
          const LinearKernels t = f32 ? with_f32_kv(k->linear) : k->linear;
          INFO(k->name << (f32 ? " f32 " : " ") << dtype_info(type).name << " cols " << c);
          const std::vector<float> all = run_gemv(t, w, x, most, 0, rows);
          CHECK(count_wrong(w, x, c, most, all, gemv_tolerance(k->isa, type, c, f32)) == 0);
          int64_t unequal = 0;
          for (int64_t n = 1; n <= most; ++n)
            for (int64_t first : {int64_t{0}, most - n}) {
              const std::vector<float> some(x.begin() + first * c, x.begin() + (first + n) * c);
              unequal += count_unequal_part(t, w, some, n, first, all);
            }
          CHECK(unequal == 0);
        }
}

TEST_CASE("gemv of quantised weights over more rows than a cache holds", "[linear][quants]") {
  for (const Kernels* k : available())
    for (WType type : kBlockTypes) {
      Random g(64);
      const Matrix w = random_blocks(type, 901, 1024, g);
      const std::vector<float> x = random_values(7 * w.cols, g);
      INFO(k->name << " " << dtype_info(type).name);
      const std::vector<float> y = run_gemv(k->linear, w, x, 7, 0, w.rows);
      int64_t unequal = 0;
      for (int64_t i = 0; i < 7; i += 2) {
        const std::vector<float> one(x.begin() + i * w.cols, x.begin() + (i + 1) * w.cols);
        const std::vector<float> alone = run_gemv(k->linear, w, one, 1, 0, w.rows);
        CHECK(count_wrong(w, one, w.cols, 1, alone, gemv_tolerance(k->isa, type, w.cols, false)) ==
              0);
        unequal += std::memcmp(alone.data(), &y[i * (w.rows + 3)], sizeof(float) * w.rows) != 0;
      }
      CHECK(unequal == 0);
    }
}

TEST_CASE("gemm of quantised weights agrees with float64 and does not depend on splits",
          "[linear][quants]") {
  riffle::test::OneIn one(3);
  for (const bool f32 : {false, true})
    for (const Kernels* k : available())
      for (WType type : kBlockTypes)
        for (int64_t c : widths(type)) {
          if (one.skips()) continue;
          Random g(7000 * c + static_cast<int>(type));
          const int64_t rows = c > 1000 ? 70 : 133, m = c > 1000 ? 19 : 37;
          const Matrix w = random_blocks(type, rows, c, g);
          const std::vector<float> a = random_values(m * c, g);
          INFO(k->name << (f32 ? " f32 " : " ") << dtype_info(type).name << " k " << c);
          const LinearKernels t = f32 ? with_f32_kv(k->linear) : k->linear;
          const std::vector<float> all = run_gemm(t, w, a, c, m, {0, m}, {0, rows});
          CHECK(count_wrong(w, a, c, m, all, gemm_tolerance(k->isa, type, c, f32)) == 0);
          const int64_t rt = t.gemm_of(type).row_tile, ct = t.gemm_of(type).col_tile;
          const int64_t cut_m = rt < m ? rt : m, cut_r = ct < rows ? ct : rows;
          CHECK(count_unequal(all, run_gemm(t, w, a, c, m, {0, cut_m, m}, {0, cut_r, rows})) == 0);
          int64_t unequal = 0;
          for (int64_t n : {1, 3, 17})
            for (int64_t first : {0, 2}) {
              const std::vector<float> some(a.begin() + first * c, a.begin() + (first + n) * c);
              const std::vector<float> y = run_gemm(t, w, some, c, n, {0, n}, {0, rows});
              for (int64_t i = 0; i < n; ++i)
                unequal += std::memcmp(&y[i * (rows + 3)], &all[(first + i) * (rows + 3)],
                                       sizeof(float) * rows) != 0;
            }
          CHECK(unequal == 0);
        }
}

TEST_CASE("quantised weights with activations of all sizes and signs", "[linear][quants]") {
  for (const Kernels* k : available())
    for (WType type : kBlockTypes) {
      Random g(5);
      const Matrix w = random_blocks(type, 40, 768, g, 0.004);
      INFO(k->name << " " << dtype_info(type).name);
      for (double scale : {1e-14, 1e-6, 1e6, 1e14}) {
        std::vector<float> x = random_values(6 * 768, g, scale);
        for (int64_t j = 0; j < 32; ++j)
          x[j] *= 1e6f, x[768 + j] *= 1e-6f;  // groups of very different sizes
        CHECK(count_wrong(w, x, 768, 6, run_gemv(k->linear, w, x, 6, 0, 40),
                          gemv_tolerance(k->isa, type, 768, false)) == 0);
        CHECK(count_wrong(w, x, 768, 6, run_gemm(k->linear, w, x, 768, 6, {0, 6}, {0, 40}),
                          rough_gemm_tolerance(k->isa, type, 768)) == 0);
      }
      for (float v : {1.00195313f, 1.9999999f, -1.3333334f, 4194303.0f}) {  // rounding of one sign
        const std::vector<float> x(3 * 768, v);
        CHECK(count_wrong(w, x, 768, 3, run_gemv(k->linear, w, x, 3, 0, 40), 6e-6) == 0);
        CHECK(count_wrong(w, x, 768, 3, run_gemm(k->linear, w, x, 768, 3, {0, 3}, {0, 40}), 3e-5) ==
              0);
      }
      // The largest integers there are: all codes set, of the activations too.
      Matrix full = w;
      const DTypeInfo& info = dtype_info(type);
      for (size_t b = 1; b + info.block_bytes < full.bytes.size(); b += info.block_bytes) {
        std::memset(&full.bytes[b], type == WType::Q8_0 ? 0x80 : 0xff, info.block_bytes);
        const Halves at = halves_of(type);
        // A table's largest magnitude is its first value.
        if (has_table(type))
          std::memset(&full.bytes[b], type == WType::MXFP4 ? 0x77 : 0, info.block_bytes);
        if (at.scale >= 0) full.bytes[b + at.scale] = 0, full.bytes[b + at.scale + 1] = 0x1c;
        if (at.min >= 0) full.bytes[b + at.min] = 0, full.bytes[b + at.min + 1] = 0x18;
      }
      take_values(&full);
      for (float v : {1.9999999f, -1.9999999f}) {
        const std::vector<float> x(768, v);
        CHECK(count_wrong(full, x, 768, 1, run_gemv(k->linear, full, x, 1, 0, 40),
                          gemv_tolerance(k->isa, type, 768, false)) == 0);
        CHECK(count_wrong(full, x, 768, 1, run_gemm(k->linear, full, x, 768, 1, {0, 1}, {0, 40}),
                          3e-5) == 0);
      }
    }
}

// Rounding to integers hides small errors of the products in the tests above. Here activations are
// integers of 8 bits, or of two bytes where a chunk stands out of its row, and nothing is rounded.
TEST_CASE("products of prompts are exact in the activations that they multiply",
          "[linear][quants]") {
  for (const Kernels* k : available())
    for (WType type : kBlockTypes) {
      Random g(9);
      const int64_t rows = 75, cols = 2304, m = 23;
      const Matrix w = random_blocks(type, rows, cols, g);
      std::vector<float> x(m * cols);
      for (int64_t chunk = 0; chunk < m * cols / 32; ++chunk) {
        const bool large = (chunk % 72 + 7 * (chunk / 72)) % 36 == 0;  // two in each row
        const int most = large ? 127 * 254 : 127;
        for (int64_t j = 0; j < 32; ++j)
          x[chunk * 32 + j] = static_cast<float>(static_cast<int>(g() % (2 * most + 1)) - most);
        x[chunk * 32 + g() % 32] = static_cast<float>(g() % 2 ? most : -most);
      }
      INFO(k->name << " " << dtype_info(type).name);
      CHECK(count_wrong(w, x, cols, m, run_gemm(k->linear, w, x, cols, m, {0, m}, {0, rows}),
                        k->isa == Isa::Amx ? gemm_tolerance(k->isa, type, cols, false)
                                           : Tolerance(kF32Tolerance)) == 0);
    }
}

TEST_CASE("zeros, infinities and NaN among quantised weights reach their own results only",
          "[linear][quants]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* k : available())
    for (WType type : kBlockTypes) {
      Random g(8);
      const int64_t rows = 20, cols = 768, n = 9;
      const Matrix good = random_blocks(type, rows, cols, g);
      for (float special : {0.0f, kInf, -kInf, kNan}) {
        std::vector<float> x = random_values(n * cols, g);
        if (special == 0) std::memset(&x[4 * cols], 0, cols * 4);
        else x[4 * cols + 37] = special;
        Matrix w = good;  // row 11: zero, or with one block of infinite scale, or NaN
        const DTypeInfo& info = dtype_info(type);
        uint8_t* row = w.bytes.data() + 1 + 11 * row_bytes(type, cols);
        const Halves at = halves_of(type);
        const uint16_t f16 = special == 0       ? 0
                             : special == kInf  ? 0x7c00
                             : special == -kInf ? 0xfc00
                                                : 0x7fff;
        for (int64_t b = 0; b < cols / info.block_values; ++b)
          if (at.scale <
              0) {  // an exponent has no zero or infinity: codes of zero, or an infinite product
            std::memset(row + b * info.block_bytes, special == 0 ? 0 : 0xff, info.block_bytes);
          } else if (special == 0 || b == 1) {
            std::memcpy(row + b * info.block_bytes + at.scale, &f16, 2);
            if (special == 0 && at.min >= 0) std::memset(row + b * info.block_bytes + at.min, 0, 2);
          }
        INFO(k->name << " " << info.name << " " << special);
        const double tolerance = rough_tolerance(k->isa, type, cols);
        const std::vector<float> results[] = {
            run_gemv(k->linear, w, x, n, 0, rows),
            run_gemm(k->linear, w, x, cols, n, {0, n}, {0, rows})};
        for (const std::vector<float>& y : results) {
          int64_t wrong = 0;
          for (int64_t i = 0; i < n; ++i)
            for (int64_t r = 0; r < rows; ++r) {
              const float v = y[i * (rows + 3) + r];
              double ref = 0;
              for (int64_t j = 0; j < cols; ++j) ref += good.value[r * cols + j] * x[i * cols + j];
              if (i != 4 && r != 11)
                wrong +=
                    !(std::fabs(v - ref) <= tolerance * good.norm[r] * norm_of(&x[i * cols], cols));
              else if (special == 0) wrong += !(v == 0);
              else if (r == 11 || good.value[r * cols + 37] != 0) wrong += std::isfinite(v);
            }
          CHECK(wrong == 0);
        }
      }
    }
}
