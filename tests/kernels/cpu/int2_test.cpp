// 2-bit codes of keys and the scores that they estimate: against float64, and the same bits for
// every instruction set.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "kernels/common/hadamard.h"
#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "tests/kernels/cpu/each_isa.h"
#include "tests/kernels/cpu/line_memory.h"

using namespace riffle;
using namespace riffle::cpu;
using riffle::test::Memory;
using riffle::test::memory;

namespace {

const SelectKernels& scalar() { return kernels(Isa::Scalar)->select; }

template <class F>
void for_each_isa(F test) {
  riffle::test::for_isas(riffle::test::Sets::AllButAmx, [&](const Kernels& k) { test(k.select); });
}

// Keys of consecutive blocks as a KV cache holds them, and the numbers that these bytes stand for.
// Each block has its own mean.
struct Keys {
  int n_blocks, block_size, d;
  KvType type;
  std::vector<float> value;  // [token][d]
  std::vector<std::byte> bytes;

  Keys(unsigned seed, int blocks, int block, int dims, KvType kv_type, float centre = 1)
      : n_blocks(blocks), block_size(block), d(dims), type(kv_type) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    value.resize(size_t(tokens()) * d);
    std::vector<float> middle(d);
    for (int t = 0; t < tokens(); ++t) {
      if (t % block_size == 0)
        for (float& v : middle) v = centre * normal(random);
      for (int j = 0; j < d; ++j) value[size_t(t) * d + j] = middle[j] + normal(random);
    }
    store();
  }
  int tokens() const { return n_blocks * block_size; }
  int64_t row_bytes() const { return kv_row_bytes(type, d); }
  // Stores the values, and takes them back as they were rounded.
  void store() {
    const AttentionKernels& k = kernels(Isa::Scalar)->attention;
    bytes.resize(size_t(tokens()) * row_bytes());
    for (int t = 0; t < tokens(); ++t) {
      k.kv_store(&value[size_t(t) * d], d, type, &bytes[t * row_bytes()]);
      k.kv_load(&bytes[t * row_bytes()], d, type, &value[size_t(t) * d]);
    }
  }
  const std::byte* block(int b) const { return &bytes[size_t(b) * block_size * row_bytes()]; }

  // Returns a vector in the form that is coded: multiplied by the Walsh-Hadamard matrix in float64.
  // KV in 8 bits is stored in that form.
  std::vector<double> rotated(const float* x) const {
    std::vector<double> out(x, x + d);
    if (type == KvType::Q8) return out;
    const int block = d & -d;
    for (int i = 0; i < d; ++i) {
      out[i] = 0;
      for (int j = i / block * block; j < (i / block + 1) * block; ++j)
        out[i] += std::popcount(static_cast<unsigned>(i % block & j % block)) % 2 ? -double(x[j])
                                                                                  : double(x[j]);
      out[i] /= std::sqrt(double(block));
    }
    return out;
  }
};

// The codes of consecutive blocks.
struct BlockCodes {
  int n_blocks, block_size, d;
  size_t code_bytes, scale_bytes, mean_bytes, mean_scale_bytes;
  Memory codes, scales, means, mean_scales;

  BlockCodes(int blocks, int block, int dims)
      : n_blocks(blocks),
        block_size(block),
        d(dims),
        code_bytes(blocks * (block / kInt4Group) * int2_group_bytes(d)),
        scale_bytes(size_t(blocks) * block * 2),
        mean_bytes((blocks + 15) / 16 * int2_mean_bytes(d)),
        mean_scale_bytes(size_t(blocks) * 4),
        codes(memory(code_bytes)),
        scales(memory(scale_bytes)),
        means(memory(mean_bytes)),
        mean_scales(memory(mean_scale_bytes)) {}
  BlockCodes(const SelectKernels& k, const Keys& keys)
      : BlockCodes(keys.n_blocks, keys.block_size, keys.d) {
    for (int b = 0; b < n_blocks; ++b)
      k.int2_encode(keys.block(b), keys.type, block_size, d, at(b));
  }
  Int2Block at(int b) const {
    return {codes.get() + b * (block_size / kInt4Group) * int2_group_bytes(d),
            reinterpret_cast<uint16_t*>(scales.get()) + int64_t(b) * block_size,
            means.get() + b / 16 * int2_mean_bytes(d), b % 16,
            reinterpret_cast<float*>(mean_scales.get()) + b};
  }
  Int2Run run() const {
    return {codes.get(),
            reinterpret_cast<const uint16_t*>(scales.get()),
            means.get(),
            reinterpret_cast<const float*>(mean_scales.get()),
            n_blocks,
            block_size,
            d};
  }
  bool same_bits(const BlockCodes& o) const {
    return std::memcmp(codes.get(), o.codes.get(), code_bytes) == 0 &&
           std::memcmp(scales.get(), o.scales.get(), scale_bytes) == 0 &&
           std::memcmp(means.get(), o.means.get(), mean_bytes) == 0 &&
           std::memcmp(mean_scales.get(), o.mean_scales.get(), mean_scale_bytes) == 0;
  }

  double scale(int t) const { return double(f16_to_f32(run().scales[t])); }
  double mean_scale(int b) const { return double(run().mean_scales[b]); }
  int mean_code(int b, int j) const {
    return means.get()[b / 16 * int2_mean_bytes(d) + j / 4 * 64 + b % 16 * 4 + j % 4] - 128;
  }
  int code(int t, int j) const {
    const uint8_t byte =
        codes.get()[t / 16 * int2_group_bytes(d) + j / 16 * 64 + t % 16 * 4 + j % 4];
    return byte >> j % 16 / 4 * 2 & 3;
  }
  double mean(int b, int j) const { return mean_scale(b) * mean_code(b, j); }
  double residual(int t, int j) const { return scale(t) * (code(t, j) - 1.5); }
};

std::vector<float> random_queries(int g, int d, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> q(size_t(g) * d);
  for (float& v : q) v = normal(random) / std::sqrt(float(d));
  return q;
}

// Scores that a kernel estimates for queries in the form of the codes, [g][ldo].
std::vector<float> scores_of(const SelectKernels& k, const BlockCodes& codes,
                             const std::vector<float>& q, int g, int64_t ldo) {
  const Memory form = memory(int2_query_bytes(g, codes.d));
  k.int2_query(q.data(), g, codes.d, form.get());
  std::vector<float> out(size_t(g) * ldo, -77.f);
  k.int2_score(codes.run(), form.get(), g, out.data(), ldo);
  return out;
}

// Sums of squares of the errors of estimated scores, and of what 2 bits have to code: the scores
// less those of the block's mean.
struct ScoreErrors {
  double error = 0, coded = 0, exact = 0;
  explicit ScoreErrors(const Keys& keys) {
    const int g = 8, d = keys.d;
    const BlockCodes codes(scalar(), keys);
    const std::vector<float> q = random_queries(g, d, 77);
    std::vector<float> turned = q;
    if (keys.type != KvType::Q8)
      for (int h = 0; h < g; ++h) hadamard(&turned[size_t(h) * d], d);
    const std::vector<float> got = scores_of(scalar(), codes, turned, g, keys.tokens());
    for (int b = 0; b < keys.n_blocks; ++b)
      for (int h = 0; h < g; ++h) {
        std::vector<double> dots(keys.block_size);
        double middle = 0;
        for (int t = 0; t < keys.block_size; ++t) {
          const float* key = &keys.value[size_t(b * keys.block_size + t) * d];
          for (int j = 0; j < d; ++j) dots[t] += double(q[h * d + j]) * double(key[j]);
          middle += dots[t] / keys.block_size;
        }
        for (int t = 0; t < keys.block_size; ++t) {
          const double off = got[size_t(h) * keys.tokens() + b * keys.block_size + t] - dots[t];
          error += off * off;
          coded += (dots[t] - middle) * (dots[t] - middle);
          exact += dots[t] * dots[t];
        }
      }
  }
};

}  // namespace

TEST_CASE(
    "2-bit codes are the nearest ones about the block's mean, scaled to the key's own product") {
  for (const int d : {2, 24, 64, 72, 80, 112, 128, 256, 512, 1040})
    for (const int block_size : {16, 32, 64})
      for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8}) {
        CAPTURE(d, block_size, int(type));
        const Keys keys(static_cast<unsigned>(d + block_size), 3, block_size, d, type, 2);
        const BlockCodes codes(scalar(), keys);
        double mean_error = 0;
        int edge = 0, inner = 0;
        for (int b = 0; b < keys.n_blocks; ++b) {
          std::vector<std::vector<double>> key;
          std::vector<double> mean(d);
          for (int t = 0; t < block_size; ++t) {
            key.push_back(keys.rotated(&keys.value[size_t(b * block_size + t) * d]));
            for (int j = 0; j < d; ++j) mean[j] += key[t][j] / block_size;
          }
          double largest = 0;
          for (const double x : mean) largest = std::max(largest, std::fabs(x));
          const double step = codes.mean_scale(b);
          CHECK(step == Approx(largest / 127).epsilon(1e-5));
          for (int j = 0; j < d; ++j) {
            const double off = std::fabs(codes.mean(b, j) - mean[j]) / step;
            REQUIRE(off <= 0.5 + 1e-3);
            mean_error = std::max(mean_error, off);
          }
          for (int j = d; j < int2_words(d) * 16; ++j) REQUIRE(codes.mean_code(b, j) == 0);

          for (int t = 0; t < block_size; ++t) {
            const int token = b * block_size + t;
            double square = 0, with_key = 0;
            std::vector<double> rest(d);
            for (int j = 0; j < d; ++j) {
              rest[j] = key[t][j] - codes.mean(b, j);
              square += rest[j] * rest[j];
            }
            const double unit = 0.9957 * std::sqrt(square / d);
            for (int j = 0; j < d; ++j) {
              const double at = codes.code(token, j) - 1.5, off = rest[j] / unit - at;
              with_key += rest[j] * at;
              // Beyond the outer two of the four steps there is nothing nearer.
              if (std::fabs(rest[j] / unit) > 1.5) {
                ++edge;
                REQUIRE(at == (rest[j] > 0 ? 1.5 : -1.5));
              } else {
                ++inner;
                REQUIRE(std::fabs(off) <= 0.5 + 1e-3);
              }
            }
            // f16 rounds by 2^-11; the sums are those of floats.
            const double want = square / with_key;
            REQUIRE(std::fabs(codes.scale(token) - want) <= want * (0x1p-11 + 1e-4));
          }
        }
        if (d > 2) CHECK((edge > 0 && inner > edge && mean_error > 0.4));  // no bound is idle
      }
}

TEST_CASE("2-bit codes have the same bits for every instruction set") {
  for (const int d : {2, 24, 64, 72, 80, 112, 128, 256, 1040})
    for (const int block_size : {16, 32, 64})
      for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8}) {
        CAPTURE(d, block_size, int(type));
        Keys keys(static_cast<unsigned>(d), 18, block_size, d, type);
        std::fill_n(&keys.value[0], d, 0.f);  // a key of zeros, and a block of equal keys
        for (int t = 0; t < block_size; ++t)
          std::copy_n(&keys.value[size_t(7) * d], d, &keys.value[size_t(block_size + t) * d]);
        keys.store();
        const BlockCodes reference(scalar(), keys);
        for_each_isa(
            [&](const SelectKernels& k) { CHECK(BlockCodes(k, keys).same_bits(reference)); });
      }
}

TEST_CASE("encoding a block in 2 bits writes its own codes and nothing else") {
  const int d = 72, block_size = 32;
  const Keys keys(4, 18, block_size, d, KvType::F16);
  for_each_isa([&](const SelectKernels& k) {
    const BlockCodes all(k, keys), one(18, block_size, d), none(18, block_size, d);
    k.int2_encode(keys.block(5), keys.type, block_size, d, one.at(5));
    for (int t = 0; t < keys.tokens(); ++t) {
      const BlockCodes& want = t / block_size == 5 ? all : none;
      REQUIRE(one.run().scales[t] == want.run().scales[t]);
      for (int j = 0; j < int2_words(d) * 16; ++j) REQUIRE(one.code(t, j) == want.code(t, j));
    }
    for (int b = 0; b < 32; ++b)  // the lanes without a block as well
      for (int j = 0; j < int2_words(d) * 16; ++j)
        REQUIRE(one.mean_code(b, j) == (b == 5 ? all : none).mean_code(b, j));
  });
}

TEST_CASE("equal keys have no residual in 2 bits, and zeros no mean either") {
  for_each_isa([&](const SelectKernels& k) {
    for (const float value : {0.f, 0.5f, -8.f}) {
      INFO("value " << value);
      Keys keys(1, 1, 16, 64, KvType::F16);
      std::fill(keys.value.begin(), keys.value.end(), value);
      keys.store();
      const BlockCodes codes(k, keys);
      // The Walsh-Hadamard transform of equal numbers is 0 except for the first.
      for (int j = 0; j < 64; ++j)
        CHECK(codes.mean(0, j) == Approx(j == 0 ? 8 * double(value) : 0).epsilon(1e-6));
      for (int t = 0; t < 16; ++t) CHECK(codes.scale(t) <= std::fabs(value) * 1e-5);
    }
  });
}

TEST_CASE("2-bit scores are the dot products with the decoded keys") {
  for (const int d : {2, 24, 64, 72, 80, 112, 128, 256, 1040})
    for (const int g : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16})
      for (const int n : {1, 15, 16, 17, 64}) {
        const int block_size = g % 3 == 0 ? 64 : g % 3 == 1 ? 16 : 32;
        CAPTURE(d, g, n, block_size);
        const Keys keys(static_cast<unsigned>(d + g + n), n, block_size, d, KvType::F16, 4);
        const BlockCodes codes(scalar(), keys);
        std::vector<float> q = random_queries(g, d, 9);
        if (g > 2) std::fill_n(&q[d], d, 0.f);
        const int64_t ldo = keys.tokens() + 16;
        const std::vector<float> reference = scores_of(scalar(), codes, q, g, ldo);
        for (int h = 0; h < g; ++h) {
          const float* row = &q[size_t(h) * d];
          double largest = 0;
          for (int j = 0; j < d; ++j) largest = std::max(largest, std::fabs(double(row[j])));
          const double step = largest / 32639;
          for (int t = 0; t < keys.tokens(); ++t) {
            double dot = 0, of_codes = 0, of_mean = 0;
            for (int j = 0; j < d; ++j) {
              const double mean = codes.mean(t / block_size, j), rest = codes.residual(t, j);
              dot += double(row[j]) * (mean + rest);
              of_codes += std::fabs(rest);
              of_mean += std::fabs(mean);
            }
            // A query's upper digit is off by half of 256 steps, both together by half a step. The
            // rest is f32: the products with means plus 128 reach 255 steps of the mean.
            const double sums = 255 * codes.mean_scale(t / block_size) * d + of_mean + of_codes;
            const double bound =
                of_codes * 128.5 * step + of_mean * 0.51 * step + 2e-7 * largest * sums;
            REQUIRE(std::fabs(double(reference[h * ldo + t]) - dot) <= bound);
          }
          for (int64_t t = keys.tokens(); t < ldo; ++t) REQUIRE(reference[h * ldo + t] == -77.f);
        }
        for_each_isa([&](const SelectKernels& k) {
          const std::vector<float> out = scores_of(k, codes, q, g, ldo);
          CHECK(std::memcmp(out.data(), reference.data(), out.size() * sizeof(float)) == 0);
        });
      }
}

TEST_CASE("2-bit scores use both digits of a query for means, and the upper one for codes") {
  const int d = 64, block_size = 16;
  Keys keys(3, 1, block_size, d, KvType::Q8, 30);
  // Each head's largest number is 32639 steps, so a number of 100 steps has only a lower digit.
  std::vector<float> q(d, 100.f);
  q[0] = 32639.f;
  for (int t = 0; t < block_size; ++t) keys.value[size_t(t) * d] = 0;
  keys.store();
  const BlockCodes codes(scalar(), keys);
  const std::vector<float> got = scores_of(scalar(), codes, q, 1, block_size);
  double most = 0;
  for (int t = 0; t < block_size; ++t) {
    double want = 32512 * codes.residual(t, 0), lost = 127 * codes.residual(t, 0);
    for (int j = 0; j < d; ++j) want += double(q[j]) * codes.mean(0, j);
    for (int j = 1; j < d; ++j) lost += 100 * codes.residual(t, j);
    CHECK(got[t] == Approx(want).margin(1));
    most = std::max(most, std::fabs(lost));
  }
  CHECK(most > 100);
}

// Four steps code a normal deviate with a mean square error of 0.119 of its variance at best, and
// of 0.119 / (1 - 0.119) = 0.135 with the scale that keeps products with the key. A block's mean
// takes up some of the variance, and its own rounding adds little.
TEST_CASE("2-bit scores of Gaussian keys err as little as 2 bits allow") {
  for (const int d : {64, 128, 256})
    for (const int block_size : {16, 32, 64})
      for (const KvType type : {KvType::F16, KvType::F32, KvType::Q8}) {
        CAPTURE(d, block_size, int(type));
        const ScoreErrors e(Keys(6, 20, block_size, d, type));
        CHECK(e.error / e.coded > 0.115);
        CHECK(e.error / e.coded < 0.155);
        CHECK(e.error < 0.09 * e.exact);  // half of these keys' variance is that of the means
      }
}

// The transform makes such a key nearly constant in magnitude over the d or, at 80, 16 dimensions
// that it joins. At d = 64 and 128 that magnitude lies between two steps, and half of the numbers
// get either: the error is a quarter of the variance. At 80, 16 numbers of
// 2.2 rms and 64 near 0 err by 0.45 of it. Untransformed keys would err by 0.77.
TEST_CASE("a key dimension a hundred times as large as the others costs 2-bit scores little") {
  for (const int d : {64, 80, 128})
    for (const bool steady : {false, true}) {
      CAPTURE(d, steady);
      Keys keys(8, 40, 32, d, KvType::F32, 0);
      for (int t = 0; t < keys.tokens(); ++t) {
        float& x = keys.value[size_t(t) * d + 7];
        x = steady ? 100 + x : 100 * x;
      }
      keys.store();
      const ScoreErrors e(keys);
      INFO(e.error / e.exact << " of the scores' squares, " << e.error / e.coded
                             << " of the rest's");
      // A block's mean takes a steady part.
      if (steady) CHECK((e.error < 0.002 * e.exact && e.error < 0.15 * e.coded));
      else CHECK(e.error < (d == 80 ? 0.6 : 0.33) * e.exact);
    }
}

TEST_CASE("2-bit codes survive keys that f16 does not hold, and no numbers at all") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNan = std::numeric_limits<float>::quiet_NaN(),
                  kLargest = std::numeric_limits<float>::max();
  const int d = 80, block_size = 16;
  Keys keys(2, 9, block_size, d, KvType::F32);
  const float odd[] = {1e30f, -1e30f, kInfinity, -kInfinity, kNan, kLargest, 65504.f, 1e-42f};
  for (int b = 0; b < 8; ++b)
    for (int t = 0; t < block_size; ++t)
      for (int j = 0; j < d; ++j)
        if (t % 2 == 0 && (j == b || t == 4))
          keys.value[size_t(b * block_size + t) * d + j] = odd[b];
  keys.store();
  const BlockCodes reference(scalar(), keys);
  const std::vector<float> q = random_queries(3, d, 5);
  const std::vector<float> scores = scores_of(scalar(), reference, q, 3, keys.tokens());
  for (const float x : scores) REQUIRE(std::isfinite(x));
  for_each_isa([&](const SelectKernels& k) {
    CHECK(BlockCodes(k, keys).same_bits(reference));
    const std::vector<float> same = scores_of(k, reference, q, 3, keys.tokens());
    CHECK(std::memcmp(same.data(), scores.data(), scores.size() * sizeof(float)) == 0);
  });
  // A NaN counts as 0, and other keys as the nearest that f16 holds.
  Keys clamped = keys;
  for (float& x : clamped.value) x = std::isnan(x) ? 0 : std::clamp(x, -65504.f, 65504.f);
  clamped.store();
  CHECK(BlockCodes(scalar(), clamped).same_bits(reference));
}
