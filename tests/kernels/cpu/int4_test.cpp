// INT4 codes of keys, estimated scores and the kernels that choose by weight, of every instruction
// set against float64 and against the scalar twin (src/select/README.md, property 7).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/common/half.h"
#include "kernels/cpu/kernels.h"
#include "tests/kernels/cpu/each_isa.h"
#include "tests/kernels/cpu/line_memory.h"

using namespace riffle::cpu;
using riffle::test::Memory;
using riffle::test::memory;

namespace {

template <class F>
void for_each_isa(F test) {
  riffle::test::for_isas(riffle::test::Sets::AllButAmx, [&](const Kernels& k) { test(k.select); });
}

struct Keys {
  int n, d;
  KvType type;
  std::vector<float> value;  // value of the bytes
  std::vector<uint16_t> half;
  Keys(unsigned seed, int n_tokens, int dims, KvType kv_type, float size = 1)
      : n(n_tokens), d(dims), type(kv_type) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    value.resize(size_t(n) * d);
    for (int t = 0; t < n; ++t) {
      const float shift = normal(random), spread = std::exp(2 * normal(random));
      for (int j = 0; j < d; ++j) value[t * d + j] = size * (shift + spread * normal(random));
    }
    round();
  }
  void round() {
    half.resize(value.size());
    for (size_t i = 0; i < value.size(); ++i) {
      half[i] = f32_to_f16(value[i]);
      if (type == KvType::F16) value[i] = f16_to_f32(half[i]);
    }
  }
  const void* data() const {
    return type == KvType::F16 ? static_cast<const void*>(half.data()) : value.data();
  }
};

int code(const uint8_t* groups, int d, int t, int j) {
  const uint8_t byte = groups[t / 16 * int4_group_bytes(d) + j / 8 * 64 + t % 16 * 4 + j % 4];
  return j % 8 < 4 ? byte & 15 : byte >> 4;
}
double number(const uint8_t* groups, int d, int t, int which) {  // 0: zero, 1: scale
  uint16_t h;
  std::memcpy(
      &h, groups + t / 16 * int4_group_bytes(d) + (d + 7) / 8 * 64 + which * 32 + t % 16 * 2, 2);
  return double(f16_to_f32(h));
}
double decoded(const uint8_t* groups, int d, int t, int j) {
  return number(groups, d, t, 0) + number(groups, d, t, 1) * code(groups, d, t, j);
}

}  // namespace

TEST_CASE(
    "INT4 codes are within half a step of the keys, the same bits for every instruction set") {
  for (const int d : {2, 6, 8, 30, 64, 66, 80, 96, 126, 128, 200, 256})
    for (const KvType type : {KvType::F16, KvType::F32}) {
      CAPTURE(d, int(type));
      const Keys keys(d, 64, d, type, type == KvType::F32 ? 30.f : 1.f);
      const size_t bytes = 4 * int4_group_bytes(d);
      const Memory reference = memory(bytes);
      kernels(Isa::Scalar)->select.int4_encode(keys.data(), type, 64, d, reference.get());
      double worst = -1;
      for (int t = 0; t < 64; ++t) {
        const float* k = &keys.value[t * d];
        const auto [low, high] = std::minmax_element(k, k + d);
        const double zero = number(reference.get(), d, t, 0),
                     scale = number(reference.get(), d, t, 1);
        REQUIRE(zero <= *low);
        REQUIRE(15 * scale >= *high - zero);
        // Rounding up to f16 may add 2^-10 of the value to the zero, and as much to the scale.
        REQUIRE(scale <= ((double(*high) - *low + std::fabs(zero) * 0x1p-10) / 15 + 0x1p-24) *
                             (1 + 0x1p-10));
        for (int j = 0; j < d; ++j) {
          const double error = std::fabs(decoded(reference.get(), d, t, j) - k[j]);
          REQUIRE(error <= scale * (0.5 + 1e-5));
          worst = std::max(worst, error / scale);
        }
      }
      if (d > 8) CHECK(worst > 0.45);  // the bound is not idle
      for_each_isa([&](const SelectKernels& k) {
        const Memory codes = memory(bytes);
        k.int4_encode(keys.data(), type, 64, d, codes.get());
        CHECK(std::memcmp(codes.get(), reference.get(), bytes) == 0);
      });
    }
}

TEST_CASE("INT4 keeps constant keys exactly") {
  for_each_isa([&](const SelectKernels& k) {
    for (const float value : {0.f, 1.f, -0.3f, 1e-6f, -7e-8f, 60000.f, -65504.f}) {
      Keys keys(1, 16, 34, KvType::F16);
      std::fill(keys.value.begin(), keys.value.end(), value);
      keys.round();
      const Memory codes = memory(int4_group_bytes(34));
      k.int4_encode(keys.data(), KvType::F16, 16, 34, codes.get());
      for (int t = 0; t < 16; ++t)
        for (int j = 0; j < 34; ++j)
          REQUIRE(decoded(codes.get(), 34, t, j) == double(keys.value[0]));
    }
  });
}

TEST_CASE("INT4 codes survive what f16 does not hold, and no number at all") {
  for_each_isa([&](const SelectKernels& k) {
    Keys keys(1, 16, 8, KvType::F32);
    keys.value[0] = 1e30f;
    keys.value[8] = -1e30f;
    keys.value[16] = INFINITY;
    keys.value[24] = -INFINITY;
    for (int j = 0; j < 8; ++j) keys.value[32 + j] = NAN;
    keys.value[40] = NAN;
    const Memory codes = memory(int4_group_bytes(8));
    k.int4_encode(keys.data(), KvType::F32, 16, 8, codes.get());
    for (int t = 0; t < 16; ++t)
      for (int j = 0; j < 8; ++j) CHECK(std::isfinite(decoded(codes.get(), 8, t, j)));
    for (int j = 1; j < 8; ++j)
      CHECK(std::fabs(decoded(codes.get(), 8, 6, j) - keys.value[48 + j]) < 3);
  });
}

TEST_CASE("INT4 pack round trip: whole numbers from 0 to 15 come back") {
  for_each_isa([&](const SelectKernels& k) {
    const int d = 128;
    Keys keys(1, 32, d, KvType::F16);
    std::mt19937 random(5);
    for (int t = 0; t < 32; ++t) {
      for (int j = 0; j < d; ++j) keys.value[t * d + j] = float(random() % 16);
      keys.value[t * d] = 0;
      keys.value[t * d + 1] = 15;
    }
    keys.round();
    const Memory codes = memory(2 * int4_group_bytes(d));
    k.int4_encode(keys.data(), KvType::F16, 32, d, codes.get());
    for (int t = 0; t < 32; ++t)
      for (int j = 0; j < d; ++j) REQUIRE(code(codes.get(), d, t, j) == int(keys.value[t * d + j]));
  });
}

TEST_CASE(
    "INT4 scores are the dot products with the decoded keys, the same bits for every instruction "
    "set") {
  for (const int d : {2, 6, 8, 30, 64, 66, 80, 96, 126, 128, 256})
    for (const int g : {1, 2, 3, 4, 5, 7, 8, 12, 16})
      for (const int n : {16, 48, 304}) {
        CAPTURE(d, g, n);
        const Keys keys(d + g, n, d, KvType::F16);
        const int64_t groups = n / 16, ldo = n + 16;
        const Memory codes = memory(groups * int4_group_bytes(d)),
                     query = memory(int4_query_bytes(g, d));
        const SelectKernels& scalar = kernels(Isa::Scalar)->select;
        scalar.int4_encode(keys.data(), KvType::F16, n, d, codes.get());
        std::mt19937 random(9);
        std::normal_distribution<float> normal;
        std::vector<float> q(size_t(g) * d), reference(g * ldo, -1.f);
        for (float& v : q) v = normal(random) / std::sqrt(float(d));
        if (g > 2) std::fill_n(&q[d], d, 0.f);
        scalar.int4_query(q.data(), g, d, query.get());
        scalar.int4_score(codes.get(), groups, d, query.get(), g, reference.data(), ldo, nullptr);
        for (int h = 0; h < g; ++h)
          for (int t = 0; t < n; ++t) {
            double dot = 0, norm = 0, largest = 0;
            for (int j = 0; j < d; ++j) {
              const double key = decoded(codes.get(), d, t, j);
              dot += double(q[h * d + j]) * key;
              norm += std::fabs(key - number(codes.get(), d, t, 0));
              largest = std::max(largest, std::fabs(double(q[h * d + j])));
            }
            // Half a unit of the fixed point for every dimension, and f32 rounding of the last
            // steps.
            const double bound = norm * largest * 0.5001 / 32639 +
                                 4e-7 * (norm * largest + std::fabs(dot)) +
                                 4e-7 * std::fabs(number(codes.get(), d, t, 0)) * largest * d;
            REQUIRE(std::fabs(double(reference[h * ldo + t]) - dot) <= bound);
          }
        for_each_isa([&](const SelectKernels& k) {
          const Memory form = memory(int4_query_bytes(g, d));
          k.int4_query(q.data(), g, d, form.get());
          std::vector<float> out(g * ldo, -1.f);
          k.int4_score(codes.get(), groups, d, form.get(), g, out.data(), ldo, codes.get());
          CHECK(std::memcmp(out.data(), reference.data(), out.size() * sizeof(float)) == 0);
        });
      }
}

TEST_CASE("A query's fixed-point form: digits, steps and their totals") {
  for (const int d : {2, 8, 30, 72, 128, 256})
    for (const int g : {1, 3, 8, 17}) {
      CAPTURE(d, g);
      std::mt19937 random(d + g);
      std::normal_distribution<float> normal;
      std::vector<float> q(size_t(g) * d);
      for (float& v : q) v = normal(random);
      if (g > 1) std::fill_n(&q[d], d, 0.f);
      const size_t bytes = int4_query_bytes(g, d);
      const Memory form = memory(bytes);
      kernels(Isa::Scalar)->select.int4_query(q.data(), g, d, form.get());
      const auto* numbers = reinterpret_cast<const float*>(form.get());
      const auto* digits = reinterpret_cast<const int8_t*>(form.get()) + int4_query_digits(g);
      for (int h = 0; h < g; ++h) {
        const float* row = &q[size_t(h) * d];
        double largest = 0, sum = 0;
        for (int j = 0; j < d; ++j) largest = std::max(largest, std::fabs(double(row[j])));
        for (int j = 0; j < d; ++j) sum += double(row[j]);
        const double step = largest / 32639;
        CHECK(std::fabs(numbers[h] - step) <= 1e-7 * step);
        CHECK(std::fabs(numbers[g + h] - sum) <= 1e-7 * std::fabs(sum));
        int32_t upper = 0, values = 0;
        for (int j = 0; j < (d + 15) / 16 * 16; ++j) {  // padding has no digits
          const int8_t* at = digits + (j / 4 * 2 * g + h) * 4 + j % 4;
          const int value = 256 * at[0] + at[int64_t(4) * g];
          const double want = j < d ? double(row[j]) : 0;
          REQUIRE(std::fabs(value * double(numbers[h]) - want) <= 0.51 * step);
          upper += at[0];
          values += value;
        }
        int32_t totals[2];
        std::memcpy(totals, digits + int4_digit_bytes(g, d) + int64_t(h) * 8, sizeof totals);
        CHECK(totals[0] == upper);
        CHECK(totals[1] == values);
      }
      for_each_isa([&](const SelectKernels& k) {
        const Memory other = memory(bytes);
        k.int4_query(q.data(), g, d, other.get());
        CHECK(std::memcmp(other.get(), form.get(), bytes) == 0);
      });
    }
}

TEST_CASE("Weights of scores: exp against float64, sums in fixed point") {
  for_each_isa([&](const SelectKernels& k) {
    for (const int n : {1, 7, 16, 33, 1000}) {
      CAPTURE(n);
      std::mt19937 random(n);
      std::normal_distribution<float> normal(40, 9);
      std::vector<float> s(n), w(n + 1, -3.f);
      for (float& v : s) v = normal(random);
      if (n > 7) s[3] = -INFINITY;
      float top = 0;
      const uint64_t sum = k.exp_weights(s.data(), n, w.data(), &top);
      CHECK(top == *std::max_element(s.begin(), s.end()));
      CHECK(w[n] == -3.f);
      uint64_t expected = 0;
      for (int i = 0; i < n; ++i) {
        const double e = std::exp(double(s[i] - top));
        CHECK(std::fabs(w[i] - e) <= 3e-7 * e + 1e-37);
        expected += std::llrint(double(w[i]) * 0x1p30);
      }
      CHECK(sum == expected);
      k.exp_weights(s.data(), n, s.data(), &top);  // in place
      CHECK(std::memcmp(s.data(), w.data(), n * sizeof(float)) == 0);
    }
  });
}

TEST_CASE("Masses of blocks: the largest score and the sum of exp, against float64") {
  for_each_isa([](const SelectKernels& k) {
    std::mt19937 random(9);
    std::normal_distribution<float> normal(0, 4);
    for (int block_size : {16, 32, 64})
      for (int64_t n_blocks : {1, 2, 7, 8, 9, 64}) {
        INFO("block size " << block_size << ", " << n_blocks << " blocks");
        std::vector<float> s(n_blocks * block_size), top(n_blocks + 1, -3.f),
            sum(n_blocks + 1, -3.f);
        for (float& x : s) x = normal(random);
        s[0] = 1e4f, s[s.size() - 1] = -1e4f;
        for (int i = 0; n_blocks > 2 && i < block_size; ++i) s[block_size + i] = -INFINITY;
        k.block_masses(s.data(), n_blocks, block_size, top.data(), sum.data());
        CHECK((top[n_blocks] == -3.f && sum[n_blocks] == -3.f));
        for (int64_t b = 0; b < n_blocks; ++b) {
          const float* from = &s[b * block_size];
          const float largest = *std::max_element(from, from + block_size);
          CHECK(top[b] == largest);
          double expected = 0;
          for (int i = 0; largest > -INFINITY && i < block_size; ++i)
            expected += std::exp(double(from[i]) - double(largest));
          CHECK(std::fabs(sum[b] - expected) <= 1e-6 * expected + block_size * 0x1p-24);
        }
      }
  });
}

TEST_CASE("Splitting and marking weights") {
  for_each_isa([&](const SelectKernels& k) {
    for (const int n : {1, 5, 8, 16, 31, 64, 130, 1000}) {
      CAPTURE(n);
      std::mt19937 random(n);
      std::uniform_real_distribution<float> uniform;
      std::vector<float> w(n), above(n + 16), below(n + 16);
      for (float& v : w) v = uniform(random);
      for (const float pivot : {0.f, 0.3f, w[n / 2], 1.f}) {
        std::vector<float> up, down;
        uint64_t expected = 0;
        std::vector<uint64_t> marks((n + 63) / 64, 0), bits = marks;
        bits[0] = marks[0] = 1;
        for (int i = 0; i < n; ++i) {
          (w[i] >= pivot ? up : down).push_back(w[i]);
          if (w[i] < pivot) continue;
          expected += std::llrint(double(w[i]) * 0x1p30);
          bits[i / 64] |= uint64_t(1) << i % 64;
        }
        int64_t n_above = -1;
        CHECK(k.split(w.data(), n, pivot, above.data(), below.data(), &n_above) == expected);
        REQUIRE(n_above == int64_t(up.size()));
        CHECK(std::equal(up.begin(), up.end(), above.begin()));
        CHECK(std::equal(down.begin(), down.end(), below.begin()));
        std::vector<float> same(w);
        same.resize(n + 16);
        CHECK(k.split(same.data(), n, pivot, same.data(), below.data(), &n_above) == expected);
        CHECK(std::equal(up.begin(), up.end(), same.begin()));
        k.mark(w.data(), n, pivot, marks.data());
        CHECK(marks == bits);
      }
    }
  });
}
