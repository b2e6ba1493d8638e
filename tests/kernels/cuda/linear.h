// Helpers of the tests of linear algebra: random matrices of every type, and gemv against float64.
#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "backend/cuda/split_rows.h"
#include "kernels/common/half.h"
#include "kernels/cpu/linear/quants.h"
#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/layer/layer.h"
#include "tests/kernels/cuda/device.h"

namespace riffle::test {

using namespace riffle::cuda;

inline constexpr WType kTypes[] = {WType::F32,    WType::F16,  WType::BF16, WType::Q8_0,
                                   WType::Q4_0,   WType::Q4_1, WType::Q5_0, WType::Q5_1,
                                   WType::Q4_K,   WType::Q5_K, WType::Q6_K, WType::IQ4_NL,
                                   WType::IQ4_XS, WType::Q3_K, WType::Q2_K, WType::MXFP4};
static_assert(std::size(kTypes) == kNumDTypes);
inline const char* name_of(WType t) { return dtype_info(t).name; }
inline bool whole_blocks(WType t, int64_t cols) { return cols % dtype_info(t).block_values == 0; }

using Rng = std::mt19937_64;
inline float uniform(Rng& g) {
  return static_cast<float>(static_cast<double>(g() >> 11) * 0x1p-52 - 1.0);
}
inline std::vector<float> random_floats(Rng& g, size_t n, float scale = 1) {
  std::vector<float> v(n);
  for (float& x : v) x = uniform(g) * scale;
  return v;
}
inline float value_of_bf16(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t bf16_of(float x) {  // nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float element_of(const uint8_t* p, WType type, size_t i) {
  float f;
  uint16_t h;
  if (type == WType::F32) return std::memcpy(&f, p + 4 * i, 4), f;
  std::memcpy(&h, p + 2 * i, 2);
  return type == WType::F16 ? cpu::f16_to_f32(h) : value_of_bf16(h);
}
inline size_t bytes_of(WType type) { return type == WType::F32 ? 4 : type == WType::Q8_0 ? 1 : 2; }

// Blocks of a file: quants and sub-scales of any bits, f16 scales and minima of ordinary sizes (the
// first subnormal).
inline std::vector<uint8_t> random_blocks(Rng& g, WType type, int64_t n) {
  const riffle::DTypeInfo& info = dtype_info(type);
  std::vector<uint8_t> bytes(n * info.block_bytes);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(g() >> 20);
  const bool with_min =
      type == WType::Q4_1 || type == WType::Q5_1 || type == WType::Q4_K || type == WType::Q5_K;
  const float most = type == WType::Q8_0       ? 0.01f
                     : type == WType::IQ4_NL   ? 0.002f
                     : type == WType::IQ4_XS   ? 1e-4f
                     : type == WType::Q2_K     ? 0.01f
                     : type == WType::Q3_K     ? 2e-3f
                     : info.block_values == 32 ? 0.03f
                     : type == WType::Q6_K     ? 1e-4f
                                               : 3e-4f;
  for (int64_t i = 0; i < n; i++) {
    uint8_t* block = &bytes[i * info.block_bytes];
    if (type == WType::MXFP4) {  // an exponent
      block[0] = static_cast<uint8_t>(i == 0 ? 1 : 118 + g() % 4);
      continue;
    }
    const uint16_t d = i == 0 ? 3 : cpu::f32_to_f16(uniform(g) * most),
                   m = cpu::f32_to_f16(uniform(g) * most * 8);
    const int at = type == WType::Q6_K   ? 208
                   : type == WType::Q3_K ? 108
                   : type == WType::Q2_K ? 80
                                         : 0;
    std::memcpy(block + at, &d, 2);
    if (with_min || type == WType::Q2_K) std::memcpy(block + at + 2, &m, 2);
  }
  return bytes;
}

// A random matrix: on the device in its type, here as the floats that the type holds.
struct Weights {
  int64_t rows, cols;
  std::vector<float> values;
  std::vector<uint8_t> bytes;  // quantised: a file's blocks
  DeviceArray<uint8_t> data, scales, high, blocks;
  WType type;

  Weights(Rng& g, WType t, int64_t n_rows, int64_t n_cols) : rows(n_rows), cols(n_cols), type(t) {
    const size_t n = static_cast<size_t>(rows * cols);
    if (riffle::is_quantised(type)) {
      bytes = random_blocks(g, type, static_cast<int64_t>(n) / dtype_info(type).block_values);
      upload_blocks();
      return;
    }
    values = random_floats(g, n, 0.25f);
    bytes.resize(n * bytes_of(type));
    for (size_t i = 0; i < n; i++) {
      const uint16_t h = type == WType::F16 ? cpu::f32_to_f16(values[i]) : bf16_of(values[i]);
      if (type == WType::F32) std::memcpy(&bytes[4 * i], &values[i], 4);
      else std::memcpy(&bytes[2 * i], &h, 2);
      values[i] = element_of(bytes.data(), type, i);
    }
    data = DeviceArray<uint8_t>(bytes);
  }
  // Takes a file's blocks.
  Weights(WType t, int64_t n_rows, int64_t n_cols, std::vector<uint8_t> file)
      : rows(n_rows), cols(n_cols), bytes(std::move(file)), type(t) {
    upload_blocks();
  }
  void upload_blocks() {
    REQUIRE(whole_blocks(type, cols));
    const int64_t row_size = riffle::row_bytes(type, cols);
    const RowParts row = row_parts(type, cols);
    std::vector<uint8_t> parts[4];
    int i = 0;
    for (int64_t part : {row.data, row.scales, row.high, row.blocks})
      parts[i++].assign(rows * part, 0xff);
    values.resize(rows * cols);
    const auto at = [&](int p, int64_t offset) {
      return reinterpret_cast<std::byte*>(parts[p].data()) + offset;
    };
    for (int64_t r = 0; r < rows; r++) {
      split_row(
          type, cols, reinterpret_cast<const std::byte*>(&bytes[r * row_size]),
          {at(0, r * row.data), at(1, r * row.scales), at(2, r * row.high), at(3, r * row.blocks)});
      cpu::dequant_blocks(type, &bytes[r * row_size], cols, &values[r * cols]);
    }
    data = DeviceArray<uint8_t>(parts[0]), scales = DeviceArray<uint8_t>(parts[1]);
    high = DeviceArray<uint8_t>(parts[2]), blocks = DeviceArray<uint8_t>(parts[3]);
  }
  Matrix matrix() const {
    return {type, rows, cols, data.get(), scales.get(), high.get(), blocks.get()};
  }
};

// W[row] . x in float64, x normalised first if norm is given; *size: |W[row]| |x|.
inline double reference(const Weights& w, int64_t row, const float* x, const float* norm, float eps,
                        double* size) {
  double squares = 0, sum = 0, w2 = 0, x2 = 0;
  for (int64_t c = 0; c < w.cols; c++) squares += static_cast<double>(x[c]) * x[c];
  const double scale =
      norm != nullptr ? 1 / std::sqrt(squares / static_cast<double>(w.cols) + eps) : 1;
  for (int64_t c = 0; c < w.cols; c++) {
    const double a = w.values[row * w.cols + c], b = x[c] * scale * (norm != nullptr ? norm[c] : 1);
    sum += a * b, w2 += a * a, x2 += b * b;
  }
  *size = std::sqrt(w2 * x2);
  return sum;
}
inline double silu(double g) { return g / (1 + std::exp(-g)); }

struct Case {
  int n;
  bool norm;
  Then then;
  bool overlap = false;
  int64_t ldx_pad = 0;
  Cores cores = Cores::Best;
};

// Runs one gemv, compares it with float64, and returns the outputs.
inline std::vector<std::vector<float>> check_gemv(const std::vector<Weights>& w, const Case& c,
                                                  const std::vector<float>& x,
                                                  const std::vector<float>& norm,
                                                  const std::vector<float>& before) {
  const bool pairs = c.then == Then::SwiGlu;
  const int64_t cols = w[0].cols, ldx = cols + c.ldx_pad;
  const float eps = 1e-5f;
  DeviceArray<float> x_device(x), norm_device(norm);
  std::vector<DeviceArray<float>> y;
  Gemv args;
  args.x = x_device.get(), args.ldx = ldx, args.n = c.n,
  args.norm = c.norm ? norm_device.get() : nullptr;
  args.eps = eps, args.n_outs = static_cast<int>(w.size()), args.then = c.then,
  args.overlap = c.overlap, args.cores = c.cores;
  const int64_t pad = 3;  // beyond the rows: must stay as it is
  for (size_t o = 0; o < w.size(); o++) {
    args.w[o] = w[o].matrix();
    if (pairs && o == 1) continue;
    const int64_t ldy = w[o].rows + pad;
    y.emplace_back(static_cast<size_t>(ldy * c.n));
    std::vector<float> poison(y[o].size());
    for (size_t i = 0; i < poison.size(); i++)
      poison[i] = c.then == Then::Add ? before[i % before.size()] : NAN;
    for (int i = 0; i < c.n; i++)
      for (int64_t p = 0; p < pad; p++) poison[i * ldy + w[o].rows + p] = 7;
    y[o].upload(poison);
    args.y[o] = y[o].get(), args.ldy[o] = ldy;
  }
  check_cuda(gemv(args, nullptr), "gemv");
  std::vector<std::vector<float>> results;
  for (size_t o = 0; o < y.size(); o++) {
    results.push_back(y[o].download());
    const int64_t ldy = w[o].rows + pad;
    double worst = 0;
    bool finite = true, intact = true;
    for (int i = 0; i < c.n; i++) {
      for (int64_t r = 0; r < w[o].rows; r++) {
        double size = 0, up_size = 0;
        double want = reference(w[o], r, &x[i * ldx], c.norm ? norm.data() : nullptr, eps, &size);
        if (pairs) {
          const double up =
              reference(w[1], r, &x[i * ldx], c.norm ? norm.data() : nullptr, eps, &up_size);
          size = 2 * (size * (std::fabs(up) + 1e-4) + up_size * (std::fabs(silu(want)) + 1e-4)),
          want = silu(want) * up;
        }
        if (c.then == Then::ReluSquared) {  // an error of the product counts twice
          want = std::max(want, 0.0);
          size = 2 * size * (want + 1e-5 * size);
          want *= want;
        }
        const double start = c.then == Then::Add ? before[(i * ldy + r) % before.size()] : 0;
        const double error = std::fabs(results[o][i * ldy + r] - (want + start));
        finite &= error == error;
        worst = std::max(worst, error / (size + 0.05 * std::fabs(start) + 1e-30));
      }
      for (int64_t p = 0; p < pad; p++) intact &= results[o][i * ldy + w[o].rows + p] == 7;
    }
    INFO(name_of(w[o].type) << " " << w[o].rows << "x" << cols << " n " << c.n << " norm " << c.norm
                            << " then " << static_cast<int>(c.then) << " out " << o << " ldx + "
                            << c.ldx_pad << " cores " << static_cast<int>(c.cores));
    CHECK(finite);
    // BF16 takes x as two bf16 parts, which leaves out up to 2^-18 of a value.
    CHECK(worst <= (w[o].type == WType::BF16 ? 6e-6 : 2e-6));
    CHECK(intact);
  }
  return results;
}

}  // namespace riffle::test
