// Helpers of the tests of the linear kernels: the instruction sets of this machine, guarded memory,
// matrices with their float64 values, gemv and gemm run whole or in parts.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/isa_limit.h"

namespace riffle::cpu {
namespace {

inline std::vector<const Kernels*> available() {
  std::vector<const Kernels*> all;
  for (const Isa isa : riffle::test::arch_isas())
    if (isa_available(isa)) all.push_back(kernels(isa));
    else WARN("SKIPPED: this machine cannot run the " << kernels(isa)->name << " kernels");
  return all;
}

// 64-byte aligned bytes, filled with 0xff (as floats: NaN) so that a read of something never
// written shows.
class Aligned {
 public:
  explicit Aligned(size_t bytes)
      : bytes_(bytes), p_(std::aligned_alloc(64, (bytes + 127) / 64 * 64)) {
    std::memset(p_, 0xff, (bytes + 127) / 64 * 64);
    std::memset(at(bytes), kGuard, 64 - bytes % 64);
  }
  ~Aligned() { std::free(p_); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  uint8_t* at(size_t i) { return static_cast<uint8_t*>(p_) + i; }
  void* get() { return p_; }
  bool intact() {
    for (size_t i = bytes_; i < (bytes_ / 64 + 1) * 64; ++i)
      if (*at(i) != kGuard) return false;
    return true;
  }

 private:
  static constexpr uint8_t kGuard = 0xa5;
  size_t bytes_;
  void* p_;
};

inline double value_of_f16(uint16_t h) {
  const int e = h >> 10 & 31, f = h & 1023;
  const double s = h & 0x8000 ? -1 : 1;
  if (e == 31)
    return f ? std::numeric_limits<double>::quiet_NaN()
             : s * std::numeric_limits<double>::infinity();
  return s * (e ? std::ldexp(1024 + f, e - 25) : std::ldexp(f, -24));
}
inline double value_of_bf16(uint16_t h) {
  const int e = h >> 7 & 255, f = h & 127;
  const double s = h & 0x8000 ? -1 : 1;
  if (e == 255)
    return f ? std::numeric_limits<double>::quiet_NaN()
             : s * std::numeric_limits<double>::infinity();
  return s * (e ? std::ldexp(128 + f, e - 134) : std::ldexp(f, -133));
}
// The finite f16 nearest to zero of those not smaller than |v| would do; this truncates, the tests
// only need some value.
inline uint16_t some_f16(double v) {
  uint16_t best = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const uint16_t next = static_cast<uint16_t>(best | 1 << bit);
    if (next < 0x7c00 && value_of_f16(next) <= std::fabs(v)) best = next;
  }
  return static_cast<uint16_t>(best | (v < 0 ? 0x8000 : 0));
}

using Random = std::mt19937_64;
inline double uniform(Random& g) {
  return static_cast<double>(g() >> 11) * 0x1p-52 - 1.0;
}  // [-1, 1)

struct Matrix {
  WType type;
  int64_t rows, cols;
  std::vector<uint8_t> bytes;  // the matrix begins at byte 1: unaligned for every type
  std::vector<double> value;   // [rows][cols]
  std::vector<double> norm;    // [rows]
  const void* data() const { return bytes.data() + 1; }
};

inline void measure(Matrix* w) {
  w->norm.assign(w->rows, 0);
  for (int64_t r = 0; r < w->rows; ++r) {
    for (int64_t j = 0; j < w->cols; ++j)
      w->norm[r] += w->value[r * w->cols + j] * w->value[r * w->cols + j];
    w->norm[r] = std::sqrt(w->norm[r]);
  }
}

inline std::vector<float> random_values(int64_t n, Random& g, double scale = 1) {
  std::vector<float> x(n);
  for (float& v : x)
    v = static_cast<float>(g() % 40 ? uniform(g) * scale : g() % 2 ? 0 : uniform(g) * scale * 30);
  return x;
}
inline double norm_of(const float* x, int64_t n) {
  double s = 0;
  for (int64_t j = 0; j < n; ++j) s += static_cast<double>(x[j]) * x[j];
  return std::sqrt(s);
}

// All n results of gemv for rows [r0, r1); ldy = rows + 3, what is not asked for stays NaN.
inline std::vector<float> run_gemv(const LinearKernels& k, const Matrix& w,
                                   const std::vector<float>& x, int64_t n, int64_t r0, int64_t r1) {
  const GemvKernels& gemv = k.gemv_of(w.type);
  const size_t each = gemv.act_bytes(w.type, w.cols);
  REQUIRE(each % 64 == 0);
  Aligned acts(each * n);
  for (int64_t i = 0; i < n; ++i)
    gemv.encode(w.type, x.data() + i * w.cols, w.cols, acts.at(each * i));
  std::vector<float> y(n * (w.rows + 3), std::numeric_limits<float>::quiet_NaN());
  gemv.run(w.type, w.data(), w.cols, r0, r1, acts.get(), n, y.data(), w.rows + 3);
  CHECK(acts.intact());
  return y;
}

// c[m][rows + 3] for rows [r0, r1), the activations packed in the given pieces.
inline std::vector<float> run_gemm(const LinearKernels& k, const Matrix& w,
                                   const std::vector<float>& a, int64_t lda, int64_t m,
                                   const std::vector<int64_t>& row_cuts,
                                   const std::vector<int64_t>& col_cuts) {
  const GemmKernels& gemm = k.gemm_of(w.type);
  Aligned packed(gemm.pack_bytes(m, w.cols)), scratch(gemm.scratch_bytes(w.cols));
  for (size_t p = 0; p + 1 < row_cuts.size(); ++p)
    gemm.pack(a.data(), lda, m, w.cols, row_cuts[p], row_cuts[p + 1], packed.get());
  std::vector<float> c(m * (w.rows + 3), std::numeric_limits<float>::quiet_NaN());
  for (size_t p = 0; p + 1 < col_cuts.size(); ++p)
    gemm.run(w.type, w.data(), w.cols, col_cuts[p], col_cuts[p + 1], packed.get(), m, c.data(),
             w.rows + 3, scratch.get());
  CHECK(packed.intact());
  CHECK(scratch.intact());
  return c;
}

// Bound of a result's distance from float64: a part relative to |w||x|, and a part from rounding x
// to a grid of `grid` m, where m is the largest of a group of 32. Such an error is 0.29 of the grid
// on average and has a random sign; six and a half standard deviations of their sum are allowed.
struct Tolerance {
  double relative, grid;
  Tolerance(double relative, double grid = 0) : relative(relative), grid(grid) {}
};

// Returns the number of results that differ from float64 by more than that. A NaN differs.
inline int64_t count_wrong(const Matrix& w, const std::vector<float>& x, int64_t ldx, int64_t n,
                           const std::vector<float>& y, const Tolerance& tolerance) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double nx = norm_of(x.data() + i * ldx, w.cols);
    for (int64_t r = 0; r < w.rows; ++r) {
      double sum = 0, variance = 0;
      for (int64_t g = 0; g < w.cols; g += 32) {
        double largest = 0, squares = 0;
        for (int64_t j = g; j < std::min(g + 32, w.cols); ++j) {
          const double v = w.value[r * w.cols + j], of = x[i * ldx + j];
          sum += v * of;
          largest = std::fmax(largest, std::fabs(of)), squares += v * v;
        }
        variance += largest * largest * squares;
      }
      const double diff = std::fabs(y[i * (w.rows + 3) + r] - sum),
                   rounding = 6.5 * 0.289 * tolerance.grid * std::sqrt(variance);
      if (!(diff <= tolerance.relative * w.norm[r] * nx + rounding + 1e-40)) ++wrong;
    }
    for (int64_t r = w.rows; r < w.rows + 3; ++r)  // and nothing beyond the rows is touched
      if (!std::isnan(y[i * (w.rows + 3) + r])) ++wrong;
  }
  return wrong;
}

inline int64_t count_unequal(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  int64_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], 4) != 0;
  return n;
}

// Activations x [n], which are those from first on of the product `all` of all rows, and a part of
// the rows: how many results have other bits than in `all`, or were written where nothing was asked
// for.
inline int64_t count_unequal_part(const LinearKernels& k, const Matrix& w,
                                  const std::vector<float>& x, int64_t n, int64_t first,
                                  const std::vector<float>& all) {
  const int64_t rows = w.rows, r0 = n % 5, r1 = rows - n % 3;
  const std::vector<float> y = run_gemv(k, w, x, n, r0, r1);
  int64_t unequal = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r) {
      const float got = y[i * (rows + 3) + r], want = all[(first + i) * (rows + 3) + r];
      if (r < r0 || r >= r1) unequal += !std::isnan(got);
      else unequal += std::memcmp(&got, &want, 4) != 0;
    }
  return unequal;
}

// The products with f32 KV in place of the others.
inline LinearKernels with_f32_kv(LinearKernels k) {
  std::copy(std::begin(k.f32_gemv), std::end(k.f32_gemv), k.gemv);
  std::copy(std::begin(k.f32_gemm), std::end(k.f32_gemm), k.gemm);
  return k;
}

// f32 sums of up to some thousand products of random sign: far below this in practice.
constexpr double kF32Tolerance = 3e-6;
// 16 bits of activations (fixed16).
constexpr double kFixed16Grid = 1.0 / 32639;
// 8 bits of activations, a grid of m / 127, where m is the largest of their group of 32; groups
// whose m exceeds 5 |x| / sqrt(k) have 16. In the others an error is 0.29 of the grid on average,
// of random sign: six standard deviations of their sum, 6 * 0.29 / 127 * 5 |x| / sqrt(k), are
// 1.25e-2 |x| / sqrt(k / 32).
inline Tolerance tolerance_of_8_bits(int64_t k) { return 1.25e-2 / std::sqrt(k / 32.0) + 5e-7; }
inline Tolerance gemv_tolerance(Isa isa, WType type, int64_t k, bool f32) {
  if (isa == Isa::Scalar || !is_quantised(type)) return kF32Tolerance;
  return f32 ? Tolerance(5e-7, kFixed16Grid) : tolerance_of_8_bits(k);
}
// The AMX product leaves out 2^-16 of each product at most. Integer products round activations to
// 16 bits (AVX2, for codes of 8 bits) or to 8 bits.
inline Tolerance gemm_tolerance(Isa isa, WType type, int64_t k, bool f32) {
  if (isa == Isa::Amx) return 3e-5 / std::sqrt(std::fmax(1.0, k / 4.0)) + 5e-7;
  if (isa == Isa::Scalar || !is_quantised(type) || f32) return kF32Tolerance;
  const bool codes_of_8_bits =
      type == WType::Q8_0 || type == WType::IQ4_NL || type == WType::IQ4_XS;
  if (isa == Isa::Avx2 && codes_of_8_bits) return {5e-7, kFixed16Grid};
  if (isa == Isa::Neon) return kF32Tolerance;
  return tolerance_of_8_bits(k);
}
// Where chunks of a row are of very different sizes, other products than those of 8 bits stay
// within this.
inline Tolerance rough_gemm_tolerance(Isa isa, WType type, int64_t k) {
  Tolerance t = gemm_tolerance(isa, type, k, false);
  t.relative = std::fmax(3e-5, t.relative);
  return t;
}

// Returns a tolerance for decode and prompts alike, for tests in which only a gross error matters.
inline double rough_tolerance(Isa isa, WType type, int64_t k) {
  const double prompts = rough_gemm_tolerance(isa, type, k).relative;
  return is_quantised(type) ? std::fmax(prompts, tolerance_of_8_bits(k).relative) : prompts;
}

}  // namespace
}  // namespace riffle::cpu
