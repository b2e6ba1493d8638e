// The linear-algebra kernels against float64 sums over weights decoded here, and against their CPU
// twins.
#include "tests/kernels/cuda/linear.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/common/softplus.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/layer/layer.h"
#include "model/model.h"
#include "riffle.h"
#include "util/options.h"

namespace cpu = riffle::cpu;
using namespace riffle::cuda;
using namespace riffle::test;

namespace {

template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
static_assert(same(WType::F32, riffle::DType::F32) && same(WType::F16, riffle::DType::F16));
static_assert(same(WType::BF16, riffle::DType::BF16) && same(WType::Q8_0, riffle::DType::Q8_0));
static_assert(same(KvType::F16, riffle::KvKind::F16) && same(KvType::F32, riffle::KvKind::F32));
static_assert(same(KvType::F16, cpu::KvType::F16) && same(KvType::F32, cpu::KvType::F32));
static_assert(same(DigestKind::Mean, riffle::BlockDigest::MEAN) &&
              same(DigestKind::Quest, riffle::BlockDigest::QUEST));
static_assert(same(DigestKind::CuboidMean, riffle::BlockDigest::CUBOID_MEAN));

}  // namespace

TEST_CASE("gemv against float64, every type and number of rows, and bits that do not depend on it",
          "[cuda]") {
  if (skip()) return;
  Rng g(1);
  const int64_t shapes[][2] = {{1, 32},    {5, 96},      {131, 512},  {67, 1408},
                               {70, 2048}, {2200, 4096}, {4300, 256}, {33, 14336}};
  int turn = 0;
  for (WType type : kTypes) {
    for (const auto& shape : shapes) {
      if (!whole_blocks(type, shape[1])) continue;
      for (Then then : {Then::Store, Then::Add, Then::SwiGlu}) {
        if (shape[0] > 1000 && then == Then::Add) continue;  // time
        std::vector<Weights> w;
        w.emplace_back(g, type, shape[0], shape[1]);
        if (then == Then::SwiGlu) w.emplace_back(g, type, shape[0], shape[1]);
        const bool norm = ++turn % 2 == 0;
        const auto x = random_floats(g, shape[1] * kGemvMaxRows),
                   weight = random_floats(g, shape[1]);
        const auto before =
            random_floats(g, shape[0] + 3);  // as long as ldy: the same for every row
        std::vector<float> all;
        for (int n : {16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13}) {
          if (shape[0] > 1000 && n != 16 && n != 1 && n != 3) continue;
          const auto y = check_gemv(w, {n, norm, then}, x, weight, before)[0];
          if (n == 16) all = y;
          INFO(name_of(type) << " " << shape[0] << "x" << shape[1] << " n " << n);
          CHECK(same_bits(
              y, std::vector<float>(all.begin(), all.begin() + static_cast<int64_t>(y.size()))));
        }
      }
    }
  }
}

TEST_CASE(
    "gemv of more rows and columns than a block holds at a time; other rows of x do not matter",
    "[cuda]") {
  if (skip()) return;
  Rng g(6);
  const int64_t rows = 4300, cols = 8192, n_rows = 16;
  const auto clean = random_floats(g, cols * n_rows), norm = random_floats(g, cols);
  const DeviceArray<float> norm_device(norm);
  for (WType type : {WType::BF16, WType::Q8_0, WType::Q4_0, WType::Q4_K, WType::Q6_K}) {
    const Weights w(g, type, rows, cols);
    for (bool with_norm : {false, true}) {
      std::vector<float> all;
      for (int n :
           {16, 1, 2, 3, 4, 5, 8, 11, -16}) {  // -16: 16 with rows of which some are not numbers
        auto x = clean;
        if (n < 0) {
          for (int64_t c = 0; c < cols; c++)
            x[3 * cols + c] = c % 5 ? INFINITY : NAN, x[6 * cols + c] *= 1e30f;
        }
        const int count = std::abs(n);
        DeviceArray<float> x_device(x), y(static_cast<size_t>(rows * count));
        y.poison();
        Gemv a;
        a.x = x_device.get(), a.ldx = cols, a.n = count,
        a.norm = with_norm ? norm_device.get() : nullptr;
        a.eps = 1e-5f, a.w[0] = w.matrix(), a.y[0] = y.get(), a.ldy[0] = rows,
        a.overlap = n % 2 == 0;
        check_cuda(gemv(a, nullptr), "gemv");
        const auto got = y.download();
        INFO(name_of(type) << " n " << n << " norm " << with_norm);
        if (n == 16) {
          all = got;
          double worst = 0;
          bool finite = true;
          for (int64_t r = 0; r < rows; r += r < rows - 40 ? 53 : 1) {
            for (int64_t i = 0; i < n_rows; i++) {
              double size = 0;
              const double want =
                  reference(w, r, &x[i * cols], with_norm ? norm.data() : nullptr, a.eps, &size);
              finite &= std::isfinite(got[i * rows + r]);
              worst = std::max(worst, std::fabs(got[i * rows + r] - want) / size);
            }
          }
          CHECK(finite);
          CHECK(worst <= 2e-6);
        }
        bool equal = true;
        for (int64_t i = 0; i < count; i++) {
          if (n < 0 && (i == 3 || i == 6)) continue;
          equal &= std::memcmp(&got[i * rows], &all[i * rows], rows * sizeof(float)) == 0;
        }
        CHECK(equal);
      }
    }
  }
}

TEST_CASE("gemv of 9 to 16 rows of x and BF16 gives the bits of one row at a time", "[cuda]") {
  if (skip()) return;
  Rng g(8);
  struct Shape {
    std::vector<int64_t> rows;
    int64_t cols;
    Then then;
    bool norm;
  };
  // Fewer tiles of 64 columns than warps, not a multiple, x in several pieces, few and many units;
  // an 8B model's layer.
  const Shape shapes[] = {{{20}, 64, Then::Store, true},
                          {{40}, 192, Then::Add, false},
                          {{100, 17, 1}, 320, Then::Store, true},
                          {{45, 45}, 704, Then::SwiGlu, true},
                          {{2117}, 1408, Then::Add, true},
                          {{70, 33}, 8256, Then::Store, true},
                          {{300, 300}, 14336, Then::SwiGlu, true},
                          {{9001}, 8192, Then::Add, true},
                          {{4096, 1024, 1024}, 4096, Then::Store, true},
                          {{14336, 14336}, 4096, Then::SwiGlu, true},
                          {{4096}, 14336, Then::Add, false}};
  for (const Shape& shape : shapes) {
    const int n_outs = static_cast<int>(shape.rows.size()),
              n_y = shape.then == Then::SwiGlu ? 1 : n_outs;
    const int64_t cols = shape.cols, ldx = cols + 4;
    const DeviceArray<float> x(random_floats(g, ldx * kGemvMaxRows)), norm(random_floats(g, cols));
    Gemv a;
    a.ldx = ldx, a.norm = shape.norm ? norm.get() : nullptr, a.eps = 1e-5f, a.then = shape.then,
    a.n_outs = n_outs;
    std::vector<DeviceArray<uint8_t>> data;
    std::vector<DeviceArray<float>> y;
    std::vector<std::vector<float>> before, one;
    for (int o = 0; o < n_outs; o++) {
      std::vector<uint8_t> bytes(static_cast<size_t>(shape.rows[o] * cols * 2));
      for (size_t i = 0; i < bytes.size(); i += 2) {
        const uint16_t value = bf16_of(0.25f * uniform(g));
        std::memcpy(&bytes[i], &value, sizeof value);
      }
      data.emplace_back(bytes);
      a.w[o] = {WType::BF16, shape.rows[o], cols, data[o].get(), nullptr};
      if (o >= n_y) continue;
      a.ldy[o] = shape.rows[o] + 3;
      before.push_back(random_floats(g, a.ldy[o] * kGemvMaxRows));
      y.emplace_back(before[o]);
    }
    for (int i = 0; i < kGemvMaxRows; i++) {
      a.x = x.get() + i * ldx, a.n = 1;
      for (int o = 0; o < n_y; o++) a.y[o] = y[o].get() + i * a.ldy[o];
      check_cuda(gemv(a, nullptr), "gemv of one row");
    }
    for (int o = 0; o < n_y; o++) one.push_back(y[o].download());
    for (int n = kGemvMaxRows; n > 8; n--) {
      for (int o = 0; o < n_y; o++) y[o].upload(before[o]), a.y[o] = y[o].get();
      a.x = x.get(), a.n = n, a.overlap = n % 2 == 0;
      check_cuda(gemv(a, nullptr), "gemv");
      for (int o = 0; o < n_y; o++) {
        // Rows beyond n, and what lies between two rows, stay as they were.
        std::vector<float> want = one[o];
        std::copy(before[o].begin() + n * a.ldy[o], before[o].end(), want.begin() + n * a.ldy[o]);
        INFO(shape.rows[o] << "x" << cols << " then " << static_cast<int>(shape.then) << " n " << n
                           << " out " << o);
        CHECK(same_bits(y[o].download(), want));
      }
    }
  }
}

TEST_CASE("gemv of terms that do not cancel, and of every size", "[cuda]") {
  if (skip()) return;
  Rng g(7);
  for (WType type : kTypes) {
    for (int64_t cols : {128, 4096, 14336}) {
      if (!whole_blocks(type, cols)) continue;
      std::vector<Weights> w;
      w.emplace_back(g, type, 40, cols);
      std::vector<float> x(cols * 16), norm(cols, 1.0f), before(43);
      for (int64_t c = 0; c < cols; c++) {  // values: with row 0's signs; of every size; the
                                            // largest 2^20 times the others; tiny
        const float w0 = w[0].values[c];
        for (int i = 0; i < 8; i++) {
          const float v = uniform(g);
          float& to = x[i * cols + c];
          if (i < 2) to = std::copysign(v, w0);
          else if (i < 4) to = std::ldexp(v, static_cast<int>(g() % 40) - 20);
          else if (i < 6) to = c % 97 == 5 ? v * 1e6f : v;
          else to = v * 1e-20f;
        }
      }
      for (int64_t i = 0; i < 8 * cols; i++) x[8 * cols + i] = x[i];
      check_gemv(w, {16, false, Then::Store}, x, norm, before);
      check_gemv(w, {8, false, Then::Store, false, 0, Cores::Ordinary}, x, norm, before);
      check_gemv(w, {6, true, Then::Store}, x, norm, before);
    }
  }
}

TEST_CASE("gemv of odd sizes, unaligned x, several outputs and mixed types", "[cuda]") {
  if (skip()) return;
  Rng g(2);
  for (WType type : {WType::F32, WType::F16, WType::BF16}) {
    for (int64_t cols : {1, 7, 33, 50, 1001, 4100}) {
      for (Then then : {Then::Store, Then::Add, Then::SwiGlu}) {
        std::vector<Weights> w;
        w.emplace_back(g, type, 37, cols);
        if (then == Then::SwiGlu) w.emplace_back(g, type, 37, cols);
        const auto x = random_floats(g, cols * 8), norm = random_floats(g, cols),
                   before = random_floats(g, 40);
        check_gemv(w, {5, true, then}, x, norm, before);
        check_gemv(w, {1, false, then}, x, norm, before);
      }
    }
  }
  const int64_t cols = 2560;
  const auto x = random_floats(g, (cols + 4) * 10), norm = random_floats(g, cols),
             before = random_floats(g, 40);
  for (WType a : kTypes) {
    for (WType b : kTypes) {
      std::vector<Weights> w, pair;
      w.emplace_back(g, a, 129, cols), w.emplace_back(g, b, 31, cols),
          w.emplace_back(g, b, 32, cols);
      pair.emplace_back(g, a, 61, cols), pair.emplace_back(g, b, 61, cols);
      for (int n : {1, 3, 10}) {
        check_gemv(w, {n, true, Then::Store, true}, x, norm, before);
        check_gemv(w, {n, true, Then::Store, false, 1}, x, norm, before);  // unaligned rows of x
        check_gemv(w, {n, false, Then::Store, false, 4}, x, norm, before);
        check_gemv(pair, {n, true, Then::SwiGlu}, x, norm, before);
      }
      // An output's bits do not depend on the other outputs.
      std::vector<Weights> alone;
      alone.push_back(std::move(w[2]));
      const auto one = check_gemv(alone, {2, true, Then::Store}, x, norm, before);
      w[2] = std::move(alone[0]);
      CHECK(same_bits(one[0], check_gemv(w, {2, true, Then::Store}, x, norm, before)[2]));
    }
  }
}

TEST_CASE(
    "a chain of overlapping gemvs in a graph gives the bits of the same chain launched one by one",
    "[cuda]") {
  if (skip()) return;
  Rng g(3);
  const int64_t dim = 4096;
  const int n_steps = 24;
  const auto norm = random_floats(g, dim);
  const DeviceArray<float> norm_device(norm);
  for (WType type : {WType::BF16, WType::Q8_0, WType::F16, WType::Q4_K, WType::Q6_K}) {
    const Weights w(g, type, dim, dim);
    for (int n : {1, 5, 16}) {
      const auto start = random_floats(g, dim * n);
      std::vector<float> plain;
      for (bool overlap : {false, true}) {
        DeviceArray<float> x(start.size()), y(start.size());
        cudaStream_t stream;
        check_cuda(cudaStreamCreate(&stream));
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int i = 0; i < n_steps; i++) {
          Gemv a;
          a.x = i % 2 ? y.get() : x.get(), a.ldx = dim, a.n = n, a.norm = norm_device.get(),
          a.eps = 1e-5f;
          a.w[0] = w.matrix(), a.y[0] = i % 2 ? x.get() : y.get(), a.ldy[0] = dim;
          a.then = i % 3 ? Then::Add : Then::Store, a.overlap = overlap;
          check_cuda(gemv(a, stream), "gemv in a graph");
        }
        check_cuda(cudaStreamEndCapture(stream, &graph));
        check_cuda(cudaGraphInstantiate(&exec, graph, 0));
        for (int run = 0; run < 20; run++) {
          x.upload(start);
          y.poison();
          check_cuda(cudaGraphLaunch(exec, stream));
          const auto result = x.download();
          if (plain.empty()) plain = result;
          INFO(name_of(type) << " n " << n << " overlap " << overlap << " run " << run);
          CHECK(std::isfinite(result[0]));
          CHECK(same_bits(result, plain));
        }
        check_cuda(cudaGraphExecDestroy(exec));
        check_cuda(cudaGraphDestroy(graph));
        check_cuda(cudaStreamDestroy(stream));
      }
    }
  }
}

TEST_CASE("dequantize and convert are exact", "[cuda]") {
  if (skip()) return;
  Rng g(4);
  for (WType type : kTypes) {
    for (int64_t cols : {32, 96, 1408, 50, 7, 256, 1280, 4352, 8448}) {
      if (!whole_blocks(type, cols)) continue;
      const Weights w(g, type, 43, cols);
      INFO(name_of(type) << " cols " << cols);
      for (WType out : {WType::F32, WType::F16, WType::BF16}) {
        for (int64_t first : {0, 5}) {
          const int64_t n = 43 - first - (first ? 3 : 0);
          DeviceArray<uint8_t> d(static_cast<size_t>(n * cols) * bytes_of(out) + 16);
          d.poison();
          check_cuda(dequantize(w.matrix(), first, n, d.get(), out, nullptr));
          const auto bytes = d.download();
          bool right = true, intact = true;
          for (int64_t i = 0; i < n * cols; i++) {
            const float v = w.values[first * cols + i];
            const float want = out == WType::F32   ? v
                               : out == WType::F16 ? cpu::f16_to_f32(cpu::f32_to_f16(v))
                                                   : value_of_bf16(bf16_of(v));
            right &= element_of(bytes.data(), out, i) == want;
          }
          for (size_t i = n * cols * bytes_of(out); i < bytes.size(); i++)
            intact &= bytes[i] == 0xff;
          INFO("to " << name_of(out) << " from row " << first);
          CHECK(right);
          CHECK(intact);
        }
      }
    }
  }
  // Parts of a matrix, in any order and more than once.
  for (const WType type : kTypes)
    for (const int64_t cols : {256, 1280, 50, 4352}) {
      if (!whole_blocks(type, cols)) continue;
      constexpr int64_t kPart = 7, kParts = 6;
      const Weights w(g, type, kPart * kParts, cols);
      const std::vector<int32_t> parts = {4, 0, 5, 4};
      const DeviceArray<int32_t> parts_d(parts);
      INFO(name_of(type) << " cols " << cols);
      for (const WType out : {WType::F32, WType::F16}) {
        DeviceArray<uint8_t> picked(parts.size() * kPart * cols * bytes_of(out) + 16),
            all(kPart * kParts * cols * bytes_of(out));
        picked.poison();
        check_cuda(dequantize_parts(w.matrix(), parts_d.get(), std::ssize(parts), kPart,
                                    picked.get(), out, nullptr));
        check_cuda(dequantize(w.matrix(), 0, kPart * kParts, all.get(), out, nullptr));
        const auto got = picked.download(), from = all.download();
        const size_t bytes = kPart * cols * bytes_of(out);
        for (size_t i = 0; i < parts.size(); ++i)
          CHECK(std::equal(got.begin() + i * bytes, got.begin() + (i + 1) * bytes,
                           from.begin() + parts[i] * bytes));
        CHECK(std::all_of(got.end() - 16, got.end(), [](uint8_t b) { return b == 0xff; }));
      }
    }
  const std::vector<float> special = {0,     -0.0f,    65504,     65519, 65520, 1e9f,
                                      -1e9f, INFINITY, -INFINITY, 1e-8f, 5e-8f};
  const DeviceArray<float> in(special);
  DeviceArray<uint16_t> out(special.size());
  check_cuda(
      convert(in.get(), static_cast<int64_t>(special.size()), out.get(), WType::F16, nullptr));
  const auto half = out.download();
  for (size_t i = 0; i < special.size(); i++) {
    INFO(special[i]);
    CHECK(half[i] == cpu::f32_to_f16(std::fmin(std::fmax(special[i], -65504.0f), 65504.0f)));
  }
}

TEST_CASE("rmsnorm that subtracts the mean, against float64", "[cuda]") {
  if (skip()) return;
  Rng g(15);
  for (const int64_t dim : {1, 2, 30, 31, 512, 4096, 5001}) {
    const int64_t n = 3, ldo = dim + 5;
    auto x = random_floats(g, n * dim, 3);
    for (float& v : x) v += 2;  // the mean is as large as the distances from it
    const auto weight = random_floats(g, dim);
    const DeviceArray<float> xd(x), wd(weight);
    DeviceArray<float> y(n * ldo);
    y.poison();
    check_cuda(rmsnorm(xd.get(), wd.get(), n, dim, 1e-5f, y.get(), WType::F32, nullptr, ldo, true));
    const auto got = y.download();
    bool right = true, kept = true;
    for (int64_t i = 0; i < n; i++) {
      double sum = 0, squares = 0;
      for (int64_t j = 0; j < dim; j++) sum += x[i * dim + j];
      const double mean = sum / static_cast<double>(dim);
      for (int64_t j = 0; j < dim; j++)
        squares += (x[i * dim + j] - mean) * (x[i * dim + j] - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5f);
      for (int64_t j = 0; j < dim; j++) {
        const double want = (x[i * dim + j] - mean) * scale * weight[j];
        right &= std::fabs(got[i * ldo + j] - want) <= 2e-6 * (1 + scale);
      }
      for (int64_t j = dim; j < ldo; j++) kept &= std::isnan(got[i * ldo + j]);
    }
    INFO("dim " << dim);
    CHECK(right);
    CHECK(kept);
  }
}

TEST_CASE("rmsnorm and swiglu against float64", "[cuda]") {
  if (skip()) return;
  Rng g(5);
  for (int64_t dim : {1, 30, 512, 4096, 5000, 8192}) {
    const int64_t n = 3;
    const auto x = random_floats(g, n * dim, 3), weight = random_floats(g, dim),
               up = random_floats(g, n * dim);
    const DeviceArray<float> xd(x), wd(weight), ud(up);
    for (WType out : {WType::F32, WType::F16, WType::BF16}) {
      const double tolerance = out == WType::F32   ? 1e-6
                               : out == WType::F16 ? 5e-4
                                                   : 4e-3;  // half a unit, and f32's
      DeviceArray<uint8_t> y(n * dim * bytes_of(out));
      y.poison();
      check_cuda(rmsnorm(xd.get(), wd.get(), n, dim, 1e-5f, y.get(), out, nullptr));
      const auto got = y.download();
      y.poison();
      check_cuda(glu(Gate::Silu, xd.get(), ud.get(), n * dim, WType::F32, y.get(), out, nullptr));
      const auto gated = y.download();
      bool right = true, right_gated = true;
      for (int64_t i = 0; i < n; i++) {
        double squares = 0;
        for (int64_t j = 0; j < dim; j++)
          squares += static_cast<double>(x[i * dim + j]) * x[i * dim + j];
        for (int64_t j = 0; j < dim; j++) {
          const int64_t at = i * dim + j;
          const double want =
              x[at] / std::sqrt(squares / static_cast<double>(dim) + 1e-5f) * weight[j];
          right &= std::fabs(element_of(got.data(), out, at) - want) <=
                   tolerance * std::fabs(want) + 6e-8;
          const double product = silu(x[at]) * up[at];
          right_gated &= std::fabs(element_of(gated.data(), out, at) - product) <=
                         tolerance * std::fabs(product) + 6e-8;
        }
      }
      INFO("dim " << dim << " to " << name_of(out));
      CHECK(right);
      CHECK(right_gated);
    }
  }
  // Clamped, with biases, against float64; and what a NaN and the far ends become.
  {
    const int64_t width = 33, rows = 7;
    const auto g1 = random_floats(g, rows * width, 6), u1 = random_floats(g, rows * width, 6),
               gb = random_floats(g, width, 3), ub = random_floats(g, width, 3);
    const DeviceArray<float> g1d(g1), u1d(u1), gbd(gb), ubd(ub);
    DeviceArray<float> out(std::vector<float>(rows * width));
    check_cuda(glu(Gate::ClampedSilu, g1d.get(), u1d.get(), rows * width, WType::F32, out.get(),
                   WType::F32, nullptr, gbd.get(), ubd.get(), width));
    const auto got = out.download();
    int wrong = 0, cut = 0;
    for (int64_t i = 0; i < rows * width; i++) {
      const double a = double(g1[i]) + gb[i % width], b = double(u1[i]) + ub[i % width],
                   x = std::min(a, 7.0), u = std::clamp(b, -7.0, 7.0),
                   want = x / (1 + std::exp(-1.702 * x)) * (u + 1);
      cut += x != a || u != b;
      wrong += !(std::fabs(got[i] - want) <= 3e-6 * (1 + std::fabs(x)) * (1 + std::fabs(u)));
    }
    CHECK(wrong == 0);
    CHECK(cut > 5);
    const std::vector<float> ends = {INFINITY, -INFINITY, NAN, 1, 1},
                             ups = {INFINITY, 1, 1, NAN, -INFINITY};
    const DeviceArray<float> ends_d(ends), ups_d(ups);
    DeviceArray<float> five(std::vector<float>(5));
    check_cuda(glu(Gate::ClampedSilu, ends_d.get(), ups_d.get(), 5, WType::F32, five.get(),
                   WType::F32, nullptr));
    const auto far = five.download();
    CHECK((std::isfinite(far[0]) && far[0] > 50 && far[1] == 0 && std::isfinite(far[4])));
    CHECK((std::isnan(far[2]) && std::isnan(far[3])));
  }
  // Eight values at a time in 16 bits, in place, with infinities and a rest of three values, from
  // an aligned place and another one: the same as one by one in f32.
  for (const auto& [in, to] :
       {std::pair{WType::F16, WType::F16}, {WType::F16, WType::BF16}, {WType::BF16, WType::BF16}})
    for (const int64_t shift : {0, 1})
      for (const Gate kind : {Gate::Silu, Gate::GeluTanh, Gate::ClampedSilu}) {
        INFO(name_of(in) << " to " << name_of(to) << ", shift " << shift);
        constexpr int64_t kCount = 24 + 3;
        const auto bits_of = [](WType type, float x) {
          return type == WType::F16 ? cpu::f32_to_f16(x) : bf16_of(x);
        };
        const auto value_of = [](WType type, uint16_t bits) {
          return type == WType::F16 ? cpu::f16_to_f32(bits) : value_of_bf16(bits);
        };
        std::vector<uint16_t> gates(kCount + 1), ups(kCount + 1);
        std::vector<float> g1(kCount), u1(kCount);
        for (int64_t i = 0; i < kCount; ++i) {
          gates[i + shift] = bits_of(in, i == 5 ? INFINITY : 4 * random_floats(g, 1)[0]);
          ups[i + shift] = bits_of(in, i == 9 ? -INFINITY : 4 * random_floats(g, 1)[0]);
          g1[i] = value_of(in, gates[i + shift]), u1[i] = value_of(in, ups[i + shift]);
          if (in == WType::F16)
            g1[i] = std::clamp(g1[i], -65504.0f, 65504.0f),
            u1[i] = std::clamp(u1[i], -65504.0f, 65504.0f);
        }
        DeviceArray<uint16_t> values(gates);
        const DeviceArray<uint16_t> ups_d(ups);
        const DeviceArray<float> g1_d(g1), u1_d(u1);
        DeviceArray<float> want_d(g1);
        check_cuda(glu(kind, values.get() + shift, ups_d.get() + shift, kCount, in,
                       values.get() + shift, to, nullptr));
        for (int64_t i = 0; i < kCount; ++i)  // one value at a time is never a vector
          check_cuda(glu(kind, g1_d.get() + i, u1_d.get() + i, 1, WType::F32, want_d.get() + i,
                         WType::F32, nullptr));
        const auto got = values.download();
        const auto want = want_d.download();
        for (int64_t i = 0; i < kCount; ++i) {
          const float w = to == WType::F16 ? std::clamp(want[i], -65504.0f, 65504.0f) : want[i];
          CHECK(got[i + shift] == bits_of(to, w));
        }
      }
  // 16-bit in place, and the far ends.
  const std::vector<float> gate = {-INFINITY, -200, -90, 0, 90, 200}, up = {1, 1, 1, 1, 1, 2};
  DeviceArray<float> gd(gate);
  const DeviceArray<float> ud(up);
  check_cuda(glu(Gate::Silu, gd.get(), ud.get(), 6, WType::F32, gd.get(), WType::F32, nullptr));
  const auto far = gd.download();
  CHECK((far[0] == 0 && std::fabs(far[1]) <= 1e-30f && std::fabs(far[2]) <= 1e-30f && far[3] == 0));
  CHECK((far[4] == 90 && far[5] == 400));
  // In f16 a product beyond 65504 came as infinity, and counts as 65504.
  const std::vector<uint16_t> closed = {0xfc00, 0x7c00, 0x7c00, 0xfe00},
                              open = {0x7c00, 0xfc00, 0x3c00, 0x3c00};
  const DeviceArray<uint16_t> closed_d(closed), open_d(open);
  DeviceArray<float> cut(std::vector<float>(4));
  for (const Gate kind : {Gate::Silu, Gate::GeluTanh}) {
    check_cuda(
        glu(kind, closed_d.get(), open_d.get(), 4, WType::F16, cut.get(), WType::F32, nullptr));
    const auto four = cut.download();
    CHECK(
        (four[0] == 0 && four[1] == -65504.0f * 65504 && four[2] == 65504 && std::isnan(four[3])));
  }
}

TEST_CASE("softplus_gate against the CPU's function", "[cuda]") {
  if (skip()) return;
  Rng g(16);
  for (const int64_t width : {1, 64, 77})
    for (const int64_t n : {1, 30, 1000}) {
      INFO(n << " gates of " << width << " values");
      const auto x = random_floats(g, n * width, 3);
      auto gate = random_floats(g, n, 30);
      gate[n / 2] = n == 1 ? 300 : -300;
      DeviceArray<float> xd(x);
      const DeviceArray<float> gate_d(gate);
      check_cuda(softplus_gate(xd.get(), gate_d.get(), n, width, nullptr));
      const auto got = xd.download();
      bool right = true;
      for (int64_t i = 0; i < n * width; i++) {
        const float want = x[i] * riffle::softplus(gate[i / width]);
        right &= std::fabs(got[i] - want) <= 1e-6 * (1e-30 + std::fabs(want));
      }
      CHECK(right);
    }
}

TEST_CASE("sigmoid_gate and softcap against float64", "[cuda]") {
  if (skip()) return;
  Rng g(11);
  const std::vector<float> ends = {INFINITY, -INFINITY, NAN, 200, -200, 0};
  for (const int64_t n : {1, 255, 256, 1000, 70001}) {
    INFO(n);
    auto x = random_floats(g, n, 30), gate = random_floats(g, n, 30);
    x.insert(x.end(), ends.size(), 2);
    gate.insert(gate.end(), ends.begin(), ends.end());
    const auto count = static_cast<int64_t>(x.size());
    DeviceArray<float> gated(x), capped(gate);
    const DeviceArray<float> gd(gate);
    check_cuda(sigmoid_gate(gated.get(), gd.get(), count, nullptr));
    check_cuda(softcap(capped.get(), count, 20, nullptr));
    const auto got = gated.download(), cut = capped.download();
    int wrong = 0;
    for (int64_t i = 0; i < count; i++) {
      const double v = gate[i], want = x[i] / (1 + std::exp(-v)), most = 20 * std::tanh(v / 20);
      if (std::isnan(v)) {
        wrong += !std::isnan(got[i]) || !std::isnan(cut[i]);
        continue;
      }
      wrong += !(std::fabs(got[i] - want) <= 1e-6 * std::fabs(want) + 1e-37);
      wrong += !(std::fabs(cut[i] - most) <= 3e-7 * 20);
    }
    CHECK(wrong == 0);
  }
}
