// Linear kernels of every instruction set this machine has, against float64 sums over weights
// decoded here.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/cpu/linear_matrix.h"
#include "tests/rounds.h"

using namespace riffle::cpu;

namespace {

constexpr WType kTypes[] = {WType::F32, WType::F16, WType::BF16, WType::Q8_0};
const char* name_of(WType t) {
  const char* names[] = {"F32", "F16", "BF16", "Q8_0"};
  return names[static_cast<int>(t)];
}

Matrix random_matrix(WType type, int64_t rows, int64_t cols, Random& g, double scale = 0.05) {
  Matrix w{type, rows, cols, {0}, {}, {}};
  auto put16 = [&](uint16_t v) { w.bytes.push_back(v & 255), w.bytes.push_back(v >> 8); };
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < cols;) {
      if (type == WType::Q8_0) {
        const uint16_t d = some_f16(scale / 100 * (1 + uniform(g) * 0.9) * (g() % 8 ? 1 : -1));
        put16(g() % 9 ? d : 0);  // some blocks are all zero
        for (int i = 0; i < 32; ++i, ++j) {
          const int8_t q = static_cast<int8_t>(g() % 37 ? g() % 255 - 127 : -128);
          w.bytes.push_back(static_cast<uint8_t>(q));
          w.value.push_back(
              value_of_f16(static_cast<uint16_t>(w.bytes[w.bytes.size() - 3 - i] |
                                                 w.bytes[w.bytes.size() - 2 - i] << 8)) *
              q);
        }
      } else {
        const double v = g() % 50 ? uniform(g) * scale : 0;
        if (type == WType::F16) put16(some_f16(v)), w.value.push_back(value_of_f16(some_f16(v)));
        const float f = static_cast<float>(v);
        uint32_t bits;
        std::memcpy(&bits, &f, 4);
        if (type == WType::BF16) put16(bits >> 16), w.value.push_back(value_of_bf16(bits >> 16));
        if (type == WType::F32) put16(bits & 65535), put16(bits >> 16), w.value.push_back(f);
        ++j;
      }
    }
  w.bytes.resize(w.bytes.size() + 1, 0xff);
  measure(&w);
  return w;
}

const int64_t kQ8Cols[] = {32, 64, 96, 512, 544, 1408, 2048, 2080, 4192};
const int64_t kAnyCols[] = {1, 2, 7, 15, 16, 17, 31, 33, 63, 65, 100, 512, 1031, 1408, 2085};

}  // namespace

TEST_CASE("gemv agrees with float64 and does not depend on splits", "[linear]") {
  for (const Kernels* k : available())
    for (WType type : kTypes) {
      const auto cols = type == WType::Q8_0
                            ? std::vector<int64_t>(std::begin(kQ8Cols), std::end(kQ8Cols))
                            : std::vector<int64_t>(std::begin(kAnyCols), std::end(kAnyCols));
      for (int64_t c : cols) {
        Random g(1000 * c + static_cast<int>(type));
        const int64_t rows = c > 1000 ? 21 : 37;
        const Matrix w = random_matrix(type, rows, c, g);
        const std::vector<float> x = random_values(21 * c, g);
        INFO(k->name << " " << name_of(type) << " cols " << c);
        const std::vector<float> all = run_gemv(k->linear, w, x, 21, 0, rows);
        CHECK(count_wrong(w, x, c, 21, all, gemv_tolerance(k->isa, type, c, false)) == 0);
        // Any number of activations gives the bits of one at a time, any rows those of all rows.
        int64_t unequal = 0;
        for (int64_t n : {1, 2, 3, 4, 5, 7, 8}) {
          for (int64_t first : {int64_t{0}, 21 - n}) {
            const std::vector<float> some(x.begin() + first * c, x.begin() + (first + n) * c);
            unequal += count_unequal_part(k->linear, w, some, n, first, all);
          }
        }
        CHECK(unequal == 0);
      }
    }
}

TEST_CASE("gemv of 64 activations over many rows", "[linear]") {
  riffle::test::OneIn one(2);
  for (const Kernels* k : available())
    for (WType type : kTypes) {
      if (one.skips()) continue;
      Random g(64);
      const Matrix w =
          random_matrix(type, 700, 1408, g);  // more rows than stay in the cache at once
      const std::vector<float> x = random_values(64 * w.cols, g);
      INFO(k->name << " " << name_of(type));
      const std::vector<float> y = run_gemv(k->linear, w, x, 64, 0, w.rows);
      int64_t unequal = 0;
      for (int64_t i = 0; i < 64; i += 9) {
        const std::vector<float> one(x.begin() + i * w.cols, x.begin() + (i + 1) * w.cols);
        const std::vector<float> alone = run_gemv(k->linear, w, one, 1, 0, w.rows);
        CHECK(count_wrong(w, one, w.cols, 1, alone, gemv_tolerance(k->isa, type, w.cols, false)) ==
              0);
        unequal += std::memcmp(alone.data(), &y[i * (w.rows + 3)], sizeof(float) * w.rows) != 0;
      }
      CHECK(unequal == 0);
    }
}

TEST_CASE("gemm agrees with float64 and does not depend on splits", "[linear]") {
  riffle::test::OneIn one(3);
  for (const bool f32 : {false, true})
    for (const Kernels* k : available())
      for (WType type : kTypes) {
        const auto cols = type == WType::Q8_0
                              ? std::vector<int64_t>{32, 96, 512, 1408, 2080}
                              : std::vector<int64_t>{1, 2, 15, 31, 33, 100, 512, 1031, 1408, 2085};
        for (int64_t c : cols) {
          if (one.skips()) continue;
          Random g(7000 * c + static_cast<int>(type));
          const int64_t rows = c > 1000 ? 70 : 133, m = c > 1000 ? 41 : 77, lda = c + 5;
          const Matrix w = random_matrix(type, rows, c, g);
          std::vector<float> a = random_values(m * lda, g);
          for (int64_t i = 0; i < m; ++i)  // padding between rows must not reach results
            for (int64_t j = c; j < lda; ++j)
              a[i * lda + j] = std::numeric_limits<float>::quiet_NaN();
          INFO(k->name << (f32 ? " f32 " : " ") << name_of(type) << " k " << c);
          const LinearKernels t = f32 ? with_f32_kv(k->linear) : k->linear;
          const std::vector<float> all = run_gemm(t, w, a, lda, m, {0, m}, {0, rows});
          CHECK(count_wrong(w, a, lda, m, all, gemm_tolerance(k->isa, type, c, f32)) == 0);

          const int64_t rt = t.gemm_of(type).row_tile, ct = t.gemm_of(type).col_tile;
          const int64_t cut_m = rt * 2 < m ? rt * 2 : m, cut_r = ct < rows ? ct : rows;
          CHECK(count_unequal(all, run_gemm(t, w, a, lda, m, {0, cut_m, m}, {0, cut_r, rows})) ==
                0);
          // Fewer rows of a, and rows that begin elsewhere, so that each falls into another place
          // of a tile.
          int64_t unequal = 0;
          for (int64_t n :
               {int64_t{1}, int64_t{2}, int64_t{16}, int64_t{17}, int64_t{31}, int64_t{33}})
            for (int64_t first : {int64_t{0}, int64_t{3}}) {
              const std::vector<float> some(a.begin() + first * lda, a.begin() + (first + n) * lda);
              const std::vector<float> y = run_gemm(t, w, some, lda, n, {0, n}, {0, rows});
              for (int64_t i = 0; i < n; ++i)
                unequal += std::memcmp(&y[i * (rows + 3)], &all[(first + i) * (rows + 3)],
                                       sizeof(float) * rows) != 0;
            }
          CHECK(unequal == 0);
          // A single column range in the middle.
          const std::vector<float> part = run_gemm(t, w, a, lda, m, {0, m}, {cut_r, rows});
          for (int64_t i = 0; i < m; ++i) {
            unequal += std::memcmp(&part[i * (rows + 3) + cut_r], &all[i * (rows + 3) + cut_r],
                                   sizeof(float) * (rows - cut_r)) != 0;
            for (int64_t r = 0; r < cut_r; ++r) unequal += !std::isnan(part[i * (rows + 3) + r]);
          }
          CHECK(unequal == 0);
        }
      }
}

TEST_CASE("products of large and small magnitudes", "[linear]") {
  for (const Kernels* k : available())
    for (WType type : kTypes)
      for (double scale : {1e-14, 1e-6, 1e6, 1e14}) {
        Random g(5);
        const Matrix w = random_matrix(
            type, 40, 608, g, type == WType::Q8_0 || type == WType::F16 ? 0.004 : 1 / scale);
        std::vector<float> x = random_values(6 * 608, g, scale);
        for (int64_t j = 0; j < 32; ++j)
          x[j] *= 1e6f, x[608 + j] *= 1e-6f;  // blocks of very different sizes
        INFO(k->name << " " << name_of(type) << " scale " << scale);
        CHECK(count_wrong(w, x, 608, 6, run_gemv(k->linear, w, x, 6, 0, 40),
                          gemv_tolerance(k->isa, type, 608, false)) == 0);
        CHECK(count_wrong(w, x, 608, 6, run_gemm(k->linear, w, x, 608, 6, {0, 6}, {0, 40}),
                          rough_gemm_tolerance(k->isa, type, 608)) == 0);
      }
}

TEST_CASE("errors that all have one sign stay within the worst case", "[linear]") {
  for (const Kernels* k : available()) {
    Random g(6);
    Matrix w = random_matrix(WType::F32, 20, 512, g);
    for (float v :
         {1.00195313f, 1.00390625f, 1.0078124f, 1.9999999f, 1.3333334f}) {  // between bf16 numbers
      for (int64_t j = 0; j < 20 * 512; ++j)
        std::memcpy(&w.bytes[1 + 4 * j], &v, 4), w.value[j] = v;
      measure(&w);
      const std::vector<float> x(3 * 512, v);
      INFO(k->name << " " << v);
      CHECK(count_wrong(w, x, 512, 3, run_gemm(k->linear, w, x, 512, 3, {0, 3}, {0, 20}), 3e-5) ==
            0);
      CHECK(count_wrong(w, x, 512, 3, run_gemv(k->linear, w, x, 3, 0, 20), 6e-6) == 0);
    }
  }
}

TEST_CASE("zeros, infinities and NaN of one row or activation reach its results only", "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* k : available())
    for (WType type : kTypes) {
      Random g(8);
      const int64_t rows = 40, cols = 96, n = 9;
      const Matrix good = random_matrix(type, rows, cols, g);
      for (float special : {0.0f, kInf, -kInf, kNan}) {
        std::vector<float> x = random_values(n * cols, g);
        for (int64_t j = 0; j < cols; ++j) x[4 * cols + j] = special == 0 ? 0 : x[4 * cols + j];
        x[4 * cols + 37] = special;
        // Row 21 of the weights: zero, or with one weight (Q8_0: block) infinite or NaN.
        Matrix w = good;
        const int64_t row_bytes = static_cast<int64_t>(w.bytes.size() - 2) / rows;
        uint8_t* row = w.bytes.data() + 1 + 21 * row_bytes;
        if (special == 0) std::memset(row, 0, row_bytes);
        const uint16_t f16 = special == 0       ? 0
                             : special == kInf  ? 0x7c00
                             : special == -kInf ? 0xfc00
                                                : 0x7fff;
        const uint16_t bf16 = special == 0       ? 0
                              : special == kInf  ? 0x7f80
                              : special == -kInf ? 0xff80
                                                 : 0x7fff;
        const uint32_t f32 = std::isnan(special) ? 0x7fffffff : uint32_t{bf16} << 16;
        if (special != 0 && type == WType::Q8_0) std::memcpy(row + 34, &f16, 2), row[36] = 1;
        if (special != 0 && type == WType::F16) std::memcpy(row + 50, &f16, 2);
        if (special != 0 && type == WType::BF16) std::memcpy(row + 50, &bf16, 2);
        if (special != 0 && type == WType::F32) std::memcpy(row + 100, &f32, 4);
        INFO(k->name << " " << name_of(type) << " " << special);
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
              const bool touched = i == 4 || r == 21;
              if (!touched)
                wrong +=
                    !(std::fabs(v - ref) <= tolerance * good.norm[r] * norm_of(&x[i * cols], cols));
              else if (special == 0) wrong += !(v == 0);
              else if (std::isnan(special)) wrong += !std::isnan(v);
              else if (r == 21 ||
                       good.value[r * cols + 37] != 0)  // (infinity times zero: kernels may differ)
                wrong += std::isfinite(v);
            }
          CHECK(wrong == 0);
        }
      }
    }
}

TEST_CASE("dequant_row is exact for every f16, bf16 and int8", "[linear]") {
  for (const Kernels* k : available()) {
    INFO(k->name);
    std::vector<uint16_t> halves(65536);
    for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
    std::vector<float> out(65536);
    for (WType type : {WType::F16, WType::BF16}) {
      k->linear.dequant_row(type, halves.data(), 65536, 0, out.data());
      int wrong = 0;
      for (int i = 0; i < 65536; ++i) {
        const float want = static_cast<float>(type == WType::F16 ? value_of_f16(halves[i])
                                                                 : value_of_bf16(halves[i]));
        wrong += std::isnan(want) ? !std::isnan(out[i])
                                  : !(out[i] == want && std::signbit(out[i]) == std::signbit(want));
      }
      CHECK(wrong == 0);
    }
    for (WType type : kTypes)
      for (int64_t cols : {1, 5, 32, 96, 100, 512}) {
        if (type == WType::Q8_0 && cols % 32) continue;
        Random g(cols);
        const Matrix w = random_matrix(type, 5, cols, g);
        out.assign(cols + 1, -7);
        k->linear.dequant_row(type, w.data(), cols, 3, out.data());
        int wrong = 0;
        for (int64_t j = 0; j < cols; ++j)
          wrong += !(out[j] == static_cast<float>(w.value[3 * cols + j]));
        CHECK(wrong == 0);
        CHECK(out[cols] == -7);
      }
  }
}

TEST_CASE("rmsnorm and add", "[linear]") {
  for (const Kernels* k : available())
    for (int64_t dim : {1, 3, 8, 15, 16, 31, 64, 100, 512, 4099})
      for (double scale : {1e-3, 1.0, 1e9}) {
        Random g(dim);
        const int64_t n = 3;
        std::vector<float> x = random_values(n * dim, g, scale), weight = random_values(dim, g),
                           out(n * dim + 1, -7);
        for (int64_t j = 0; j < dim; ++j) x[dim + j] = 0;  // a row of zeros gives zeros
        INFO(k->name << " dim " << dim << " scale " << scale);
        k->linear.rmsnorm(x.data(), weight.data(), n, dim, 1e-5f, out.data());
        int wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          double s = 0;
          for (int64_t j = 0; j < dim; ++j)
            s += static_cast<double>(x[i * dim + j]) * x[i * dim + j];
          const double inverse =
              1 / std::sqrt(s / static_cast<double>(dim) + static_cast<double>(1e-5f));
          for (int64_t j = 0; j < dim; ++j) {
            const double want = x[i * dim + j] * inverse * weight[j];
            wrong += !(std::fabs(out[i * dim + j] - want) <= 3e-7 * std::fabs(want) + 1e-40);
          }
        }
        CHECK(wrong == 0);
        CHECK(out[n * dim] == -7);

        std::vector<float> sum = x, y = random_values(n * dim, g, scale);
        sum.push_back(-7);
        k->linear.add(sum.data(), y.data(), n * dim);
        wrong = 0;
        for (int64_t j = 0; j < n * dim; ++j) wrong += !(sum[j] == x[j] + y[j]);
        CHECK(wrong == 0);
        CHECK(sum[n * dim] == -7);
      }
}

// GELU by tanh loses bits below -4, where it is a small difference from 0: the bound there is of
// its argument, of which e^-2u makes a relative error 2|u| times as large.
TEST_CASE("clamped_swiglu is good to 1e-6 of its argument and keeps its head at the ends",
          "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kMax = std::numeric_limits<float>::max(),
              kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* k : available()) {
    INFO(k->name);
    std::vector<float> gate, up;
    int n = 0;
    for (double v = -12; v <= 12; v += 0.00371)
      gate.push_back(static_cast<float>(v)), up.push_back(static_cast<float>(n++ % 201 - 100) / 10);
    for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, kMax, -kMax, 7.0f, kInf, -kInf})
      gate.push_back(v), up.push_back(-0.5f);
    for (float v : {kInf, -kInf, kMax, -1.0f}) gate.push_back(2), up.push_back(v);
    std::vector<float> got = gate;
    got.push_back(-7);
    k->linear.clamped_swiglu(got.data(), up.data(), static_cast<int64_t>(gate.size()));
    CHECK(got.back() == -7);
    double worst = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min<double>(gate[i], 7), u = std::clamp<double>(up[i], -7, 7),
                   want = std::isinf(g) ? 0 : g / (1 + std::exp(-1.702 * g)) * (u + 1);
      const double error = std::fabs(got[i] - want) /
                           ((1 + 2 * std::fabs(std::max(g, -200.0))) * std::fabs(want) + 1e-36);
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
    CHECK(worst <= 1e-6);
    float gates[] = {kNan, 1, kNan}, ups[] = {1, kNan, kNan};
    k->linear.clamped_swiglu(gates, ups, 3);
    for (const float x : gates) CHECK(std::isnan(x));
    std::vector<float> pieces = gate;
    for (size_t i = 0; i < gate.size();) {
      const size_t some = std::min<size_t>(1 + i % 19, gate.size() - i);
      k->linear.clamped_swiglu(&pieces[i], &up[i], static_cast<int64_t>(some));
      i += some;
    }
    got.pop_back();
    CHECK(count_unequal(pieces, got) == 0);
  }
}

TEST_CASE("geglu is good to 1e-6 of its argument and keeps its head at the ends", "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kMax = std::numeric_limits<float>::max();
  for (const Kernels* k : available()) {
    INFO(k->name);
    std::vector<float> gate, up;
    for (double v = -12; v <= 12; v += 0.00371)
      gate.push_back(static_cast<float>(v)), up.push_back(1.25f);
    for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, kMax, -kMax, 60.0f, -60.0f})
      gate.push_back(v), up.push_back(-0.5f);
    std::vector<float> got = gate;
    got.push_back(-7);
    k->linear.geglu(got.data(), up.data(), static_cast<int64_t>(gate.size()));
    CHECK(got.back() == -7);
    double worst = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i], u = std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g),
                   want = g / (1 + std::exp(-2 * u)) * up[i];
      const double error =
          std::fabs(got[i] - want) / ((1 + 2 * std::fabs(u)) * std::fabs(want) + 1e-36);
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
    CHECK(worst <= 1e-6);
    float ends[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}, ones[] = {1, 1, 1};
    k->linear.geglu(ends, ones, 3);
    CHECK(ends[0] == kInf);
    CHECK(ends[1] == 0);
    CHECK(std::isnan(ends[2]));
    std::vector<float> pieces = gate;
    for (size_t i = 0; i < gate.size();) {
      const size_t n = std::min<size_t>(1 + i % 19, gate.size() - i);
      k->linear.geglu(&pieces[i], &up[i], static_cast<int64_t>(n));
      i += n;
    }
    got.pop_back();
    CHECK(count_unequal(got, pieces) == 0);
  }
}

TEST_CASE("rope of a part of the head moves the rest", "[linear]") {
  for (const Kernels* k : available())
    for (int head_dim : {16, 32, 96, 128}) {
      INFO(k->name << " head_dim " << head_dim);
      Random g(head_dim);
      const int half = head_dim / 2, rotated = head_dim * 3 / 4, r = rotated / 2;
      std::vector<float> x = random_values(head_dim, g), table(head_dim);
      for (int j = 0; j < half; ++j) {
        table[2 * j] = j < r ? std::cos(0.3f * (j + 1)) : 1;
        table[2 * j + 1] = j < r ? std::sin(0.3f * (j + 1)) : 0;
      }
      const std::vector<float> in = x;
      const int32_t position = 0;
      k->linear.rope(x.data(), 1, head_dim, 1, head_dim, table.data(), &position, {false, rotated});
      int wrong = 0;
      for (int j = 0; j < r; ++j) {  // pairs (j, j + r), to (j, j + half)
        const double c = table[2 * j], s = table[2 * j + 1], a = in[j], b = in[j + r];
        wrong += !(std::fabs(x[j] - (a * c - b * s)) <= 1e-6);
        wrong += !(std::fabs(x[j + half] - (a * s + b * c)) <= 1e-6);
      }
      for (int j = r; j < half; ++j)  // the rest in its order
        wrong += x[j] != in[r + j] || x[j + half] != in[half + j];
      CHECK(wrong == 0);
    }
}

TEST_CASE("swiglu is good to 1e-6 and keeps its head at the ends", "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kMax = std::numeric_limits<float>::max();
  for (const Kernels* k : available()) {
    INFO(k->name);
    std::vector<float> gate, up;
    for (double v = -130; v <= 130; v += 0.0371)
      gate.push_back(static_cast<float>(v)), up.push_back(1.25f);
    for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e-42f, 1e30f, -1e30f, kMax, -kMax, -86.9f,
                    -87.4f, -88.8f, -103.9f})
      gate.push_back(v), up.push_back(-0.5f);
    std::vector<float> got = gate;
    got.push_back(-7);
    k->linear.swiglu(got.data(), up.data(), static_cast<int64_t>(gate.size()));
    CHECK(got.back() == -7);
    double worst = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = gate[i], want = g / (1 + std::exp(-g)) * up[i];
      const double error = std::fabs(got[i] - want) / (std::fabs(want) + 1e-36);
      if (!(error <= worst)) worst = error;  // a NaN stays
      if (std::isnan(error)) break;
    }
    CHECK(worst <= 1e-6);
    // Special values, and the same bits wherever a value stands.
    float ends[] = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}, ones[] = {1, 1, 1};
    k->linear.swiglu(ends, ones, 3);
    CHECK(ends[0] == kInf);
    CHECK(ends[1] == 0);
    CHECK(std::isnan(ends[2]));
    std::vector<float> pieces = gate;
    for (size_t i = 0; i < gate.size();) {
      const size_t n = std::min<size_t>(1 + i % 19, gate.size() - i);
      k->linear.swiglu(&pieces[i], &up[i], static_cast<int64_t>(n));
      i += n;
    }
    got.pop_back();
    CHECK(count_unequal(got, pieces) == 0);
  }
}

TEST_CASE("sigmoid_gate is good to 1e-6 and keeps its head at the ends", "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kMax = std::numeric_limits<float>::max(),
              kNan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* k : available()) {
    INFO(k->name);
    std::vector<float> x, gate;
    int n = 0;
    for (double v = -100; v <= 100; v += 0.0371)
      gate.push_back(static_cast<float>(v)), x.push_back(static_cast<float>(n++ % 201 - 100) / 10);
    for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, kMax, -kMax, kInf, -kInf})
      gate.push_back(v), x.push_back(-0.5f);
    std::vector<float> got = x;
    got.push_back(-7);
    k->linear.sigmoid_gate(got.data(), gate.data(), static_cast<int64_t>(gate.size()));
    CHECK(got.back() == -7);
    double worst = 0;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double want = x[i] / (1 + std::exp(-static_cast<double>(gate[i])));
      const double error = std::fabs(got[i] - want) / (std::fabs(want) + 1e-36);
      if (!(error <= worst)) worst = error;  // a NaN stays
    }
    CHECK(worst <= 1e-6);
    float values[] = {kNan, 1, kNan}, gates[] = {1, kNan, kNan};
    k->linear.sigmoid_gate(values, gates, 3);
    for (const float v : values) CHECK(std::isnan(v));
    std::vector<float> pieces = x;
    for (size_t i = 0; i < gate.size();) {
      const size_t some = std::min<size_t>(1 + i % 19, gate.size() - i);
      k->linear.sigmoid_gate(&pieces[i], &gate[i], static_cast<int64_t>(some));
      i += some;
    }
    got.pop_back();
    CHECK(count_unequal(pieces, got) == 0);
  }
}

TEST_CASE("softcap is good to 3e-7 of the cap and keeps its head at the ends", "[linear]") {
  const float kInf = std::numeric_limits<float>::infinity(),
              kMax = std::numeric_limits<float>::max();
  for (const Kernels* k : available())
    for (const float cap : {0.5f, 20.0f, 3000.0f}) {
      INFO(k->name << " cap " << cap);
      std::vector<float> x;
      for (double v = -12; v <= 12; v += 0.00371) x.push_back(static_cast<float>(v) * cap);
      for (float v : {0.0f, -0.0f, 1e-30f, -1e-30f, 1e30f, -1e30f, kMax, -kMax, kInf, -kInf})
        x.push_back(v);
      std::vector<float> got = x;
      got.push_back(-7);
      k->linear.softcap(got.data(), static_cast<int64_t>(x.size()), cap);
      CHECK(got.back() == -7);
      double worst = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = std::fabs(got[i] / cap - std::tanh(static_cast<double>(x[i]) / cap));
        if (!(error <= worst)) worst = error;  // a NaN stays
      }
      CHECK(worst <= 3e-7);
      float nan = std::numeric_limits<float>::quiet_NaN();
      k->linear.softcap(&nan, 1, cap);
      CHECK(std::isnan(nan));
      std::vector<float> pieces = x;
      for (size_t i = 0; i < x.size();) {
        const size_t some = std::min<size_t>(1 + i % 19, x.size() - i);
        k->linear.softcap(&pieces[i], static_cast<int64_t>(some), cap);
        i += some;
      }
      got.pop_back();
      CHECK(count_unequal(pieces, got) == 0);
    }
}

TEST_CASE("rope rotates both pair layouts into the same order", "[linear]") {
  for (const Kernels* k : available())
    for (int head_dim : {2, 6, 16, 24, 32, 64, 100, 128, 256, 1024, 1040}) {
      Random g(head_dim);
      const int half = head_dim / 2, heads = 3, n_pos = 7;
      const int64_t n = 4, ld = heads * head_dim + 9;
      std::vector<float> table(n_pos * head_dim), split = random_values(n * ld, g);
      for (int p = 0; p < n_pos; ++p)
        for (int j = 0; j < half; ++j) {
          const double angle = p * std::pow(10000.0, -2.0 * j / head_dim);
          table[p * head_dim + 2 * j] = static_cast<float>(std::cos(angle));
          table[p * head_dim + 2 * j + 1] = static_cast<float>(std::sin(angle));
        }
      const std::vector<int32_t> pos = {3, 0, 6, 3};
      std::vector<float> mixed = split;
      for (int64_t i = 0; i < n; ++i)
        for (int h = 0; h < heads; ++h)
          for (int j = 0; j < half; ++j)
            for (int e = 0; e < 2; ++e)
              mixed[i * ld + h * head_dim + 2 * j + e] =
                  split[i * ld + h * head_dim + j + e * half];
      const std::vector<float> before = split;
      k->linear.rope(split.data(), n, ld, heads, head_dim, table.data(), pos.data(),
                     {false, head_dim});
      k->linear.rope(mixed.data(), n, ld, heads, head_dim, table.data(), pos.data(),
                     {true, head_dim});
      INFO(k->name << " head_dim " << head_dim);
      CHECK(count_unequal(split, mixed) == 0);
      int wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int h = 0; h < heads; ++h)
          for (int j = 0; j < half; ++j) {
            const int64_t at = i * ld + h * head_dim + j;
            const double c = table[pos[i] * head_dim + 2 * j],
                         s = table[pos[i] * head_dim + 2 * j + 1];
            const double x0 = before[at], x1 = before[at + half], size = std::hypot(x0, x1);
            wrong += !(std::fabs(split[at] - (x0 * c - x1 * s)) <= 2e-7 * size);
            wrong += !(std::fabs(split[at + half] - (x0 * s + x1 * c)) <= 2e-7 * size);
          }
        for (int64_t j = heads * head_dim; j < ld; ++j)
          wrong += split[i * ld + j] != before[i * ld + j];
      }
      CHECK(wrong == 0);
    }
}
