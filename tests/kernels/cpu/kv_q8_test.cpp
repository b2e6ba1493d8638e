// Keys and values in 8 bits: what a row decodes to, and that every kernel computes with exactly
// that, so with the bits of f16 rows that hold the same numbers.
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
#include "kernels/cpu/attention/gather.h"
#include "kernels/cpu/kernels.h"
#include "tests/kernels/cpu/each_isa.h"

using namespace riffle;
using namespace riffle::cpu;

namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;
Bytes aligned(size_t n) {
  Bytes p(static_cast<std::byte*>(std::aligned_alloc(64, (n + 63) / 64 * 64)));
  std::memset(p.get(), 0xff, n);
  return p;
}

float f16_value(float x) { return f16_to_f32(f32_to_f16(x)); }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Rows of random numbers of every size, in 8 bits and as f16 rows of what these decode to.
struct Rows {
  int d;
  int64_t n, q8_row, f16_row;
  Bytes q8, f16;

  Rows(std::mt19937& random, int64_t n, int d)
      : d(d),
        n(n),
        q8_row(kv_row_bytes(KvType::Q8, d)),
        f16_row(kv_row_bytes(KvType::F16, d)),
        q8(aligned(n * q8_row)),
        f16(aligned(n * f16_row)) {
    const AttentionKernels& scalar = kernels(Isa::Scalar)->attention;
    std::normal_distribution<float> normal;
    std::vector<float> row(d);
    for (int64_t i = 0; i < n; i++) {
      for (float& x : row) x = normal(random);
      scalar.kv_store(row.data(), d, KvType::Q8, q8.get() + i * q8_row);
      scalar.kv_load(q8.get() + i * q8_row, d, KvType::Q8, row.data());
      scalar.kv_store(row.data(), d, KvType::F16, f16.get() + i * f16_row);
    }
  }
  const std::byte* row(KvType type, int64_t i) const {
    return type == KvType::Q8 ? q8.get() + i * q8_row : f16.get() + i * f16_row;
  }
};

}  // namespace

TEST_CASE("q8: every code times every scale is exact in f16", "[kernels][q8]") {
  std::vector<std::byte> row(kv_row_bytes(KvType::Q8, 32));
  for (int scale = 0; scale < 0xf8; scale++) {
    const float unit = f16_to_f32(static_cast<uint16_t>(scale << 7));
    for (int code = -127; code <= 127; code++) {
      if (std::fabs(unit * static_cast<float>(code)) > 65504) continue;  // kv_store makes none
      for (int j = 0; j < 32; j++) row[j] = static_cast<std::byte>(code);
      row[32] = static_cast<std::byte>(scale);
      float x[32];
      kernels(Isa::Scalar)->attention.kv_load(row.data(), 32, KvType::Q8, x);
      REQUIRE(x[31] == unit * static_cast<float>(code));
      REQUIRE(f16_value(x[31]) == x[31]);
    }
  }
}

TEST_CASE("q8: a row errs by half a scale, which is the smallest that covers it", "[kernels][q8]") {
  riffle::test::for_isas(riffle::test::Sets::All, [](const Kernels& k) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> exponent(-26, 15.9f), uniform(-1, 1);
    for (const int d : {2, 16, 24, 32, 48, 64, 80, 96, 128, 256})
      for (int round = 0; round < 40; round++) {
        std::vector<float> x(d), back(d);
        for (int j0 = 0; j0 < d; j0 += 32) {
          const float size = round == 0 ? 0 : std::exp2(exponent(random));
          for (int j = j0; j < std::min(d, j0 + 32); j++)
            x[j] = round == 1 ? (j % 2 ? 65504.0f : -65504.0f) : size * uniform(random);
        }
        const int64_t bytes = kv_row_bytes(KvType::Q8, d);
        std::vector<uint8_t> row(bytes + 4, 0xa5), scalar(bytes);
        k.attention.kv_store(x.data(), d, KvType::Q8, row.data());
        kernels(Isa::Scalar)->attention.kv_store(x.data(), d, KvType::Q8, scalar.data());
        REQUIRE(std::equal(scalar.begin(), scalar.end(), row.begin()));
        for (int i = 0; i < 4; i++) REQUIRE(row[bytes + i] == 0xa5);
        k.attention.kv_load(row.data(), d, KvType::Q8, back.data());
        for (int j0 = 0; j0 < d; j0 += 32) {
          const int n = std::min(32, d - j0);
          float largest = 0;
          for (int j = j0; j < j0 + n; j++) largest = std::max(largest, std::fabs(x[j]));
          const int byte = row[d + j0 / 32];
          const double scale = f16_to_f32(static_cast<uint16_t>(byte << 7));
          INFO("d " << d << " round " << round << " largest " << largest << " scale " << scale);
          REQUIRE(scale * 127 >= largest * (1 - 1e-6));
          if (byte > 0)
            REQUIRE(f16_to_f32(static_cast<uint16_t>((byte - 1) << 7)) * 127 <
                    largest * (1 + 1e-6));
          // The largest magnitudes of all have no code above 113, which is nearer than half.
          const double most = byte > 0xc0 ? 1.0 : 0.5;
          for (int j = j0; j < j0 + n; j++)
            REQUIRE(std::fabs(double(back[j]) - double(x[j])) <= most * scale * (1 + 1e-6));
        }
      }
  });
}

TEST_CASE("q8: what f16 does not hold is no number, and only its group", "[kernels][q8]") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  riffle::test::for_isas(riffle::test::Sets::All, [&](const Kernels& k) {
    for (const float bad : {inf, -inf, nan, -nan, 1e6f, -65520.0f})
      for (const int at : {0, 31, 40}) {
        std::vector<float> x(80, 0.5f), back(80);
        x[at] = bad;
        std::vector<uint8_t> row(kv_row_bytes(KvType::Q8, 80));
        k.attention.kv_store(x.data(), 80, KvType::Q8, row.data());
        k.attention.kv_load(row.data(), 80, KvType::Q8, back.data());
        for (int j = 0; j < 80; j++) CHECK(std::isnan(back[j]) == (j / 32 == at / 32));
      }
  });
}

TEST_CASE("q8: attention and what is made of keys have the bits of f16", "[kernels][q8]") {
  riffle::test::for_isas(riffle::test::Sets::All, [](const Kernels& k) {
    std::mt19937 random(77);
    std::normal_distribution<float> normal;
    for (const int d : {16, 24, 64, 80, 96, 128, 256})
      for (const int block_size : {16, 32, 64})
        for (const int g : {1, 3, 4, 8}) {
          INFO("d " << d << " block " << block_size << " g " << g);
          const int n_blocks = 3;
          const Rows rows(random, 2 * n_blocks * block_size, d);
          std::vector<float> q(size_t(g) * d);
          for (float& x : q) x = normal(random);
          const uint64_t mask = random() | uint64_t(random()) << 32 | 1;
          std::vector<float> results[2];
          for (const KvType type : {KvType::Q8, KvType::F16}) {
            std::vector<float>& all = results[type == KvType::F16];
            const auto keep = [&](const std::vector<float>& x) {
              all.insert(all.end(), x.begin(), x.end());
            };
            std::vector<float> o(size_t(g) * d), m(g, -INFINITY), s(g), l(g);
            AttendState state{o.data(), m.data(), s.data()};
            std::vector<const void*> blocks;
            for (int b = 0; b < n_blocks; b++) {
              blocks.push_back(rows.row(type, int64_t(2 * b) * block_size));
              const uint64_t tokens = mask & ~uint64_t(0) >> (64 - block_size);
              k.attention.attend_block(q.data(), g, d, blocks[b], type, block_size,
                                       block_size * kv_row_bytes(type, d), tokens, &state, l.data(),
                                       b ? blocks[b - 1] : nullptr);
              keep(l);
            }
            keep(o), keep(m), keep(s);

            const int n_q = 5, pos0 = n_blocks * block_size - n_q - 3;
            std::vector<float> queries(size_t(n_q) * g * d), out(queries.size());
            std::mt19937 same(3);
            for (float& x : queries) x = normal(same);
            normal.reset();
            const Bytes scratch =
                aligned(k.attention.prefill_scratch_bytes(n_q, g, d, block_size) + 64);
            k.attention.attend_prefill(queries.data(), int64_t(g) * d, n_q, g, d, pos0, 0, nullptr,
                                       blocks.data(), block_size, type,
                                       block_size * kv_row_bytes(type, d), nullptr, out.data(),
                                       int64_t(g) * d, scratch.get());
            keep(out);

            std::vector<uint16_t> digest(3 * d);
            keep({k.attention.digest_build(blocks[0], type, block_size, d, DigestKind::CuboidMean,
                                           true, digest.data())});
            keep(std::vector<float>(digest.begin(), digest.end()));
            const Bytes codes = aligned(block_size / kInt4Group * int4_group_bytes(d));
            k.select.int4_encode(blocks[0], type, block_size, d, codes.get());
            for (int64_t i = 0; i < block_size / kInt4Group * int4_group_bytes(d); i++)
              all.push_back(static_cast<float>(codes.get()[i]));

            const GatherKernels& gather = *k.gather;
            std::vector<const void*> at;
            for (int i = 0; i < 37; i++)
              at.push_back(rows.row(type, (i * 29) % (2 * n_blocks * block_size)));
            std::vector<float> scores(size_t(g) * 40), sums(size_t(g) * d);
            gather.dot(q.data(), g, d, at.data(), 37, type, 0, scores.data(), 40);
            gather.values(scores.data(), 40, g, d, at.data(), 37, type, sums.data());
            keep(scores), keep(sums);
          }
          REQUIRE(same_bits(results[0], results[1]));
        }
  });
}

TEST_CASE("keys are transformed by the Walsh-Hadamard matrix, which undoes itself", "[kv_q8]") {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (const int d : {2, 8, 32, 64, 80, 96, 112, 128, 256, 512}) {
    INFO("head dimension " << d);
    const int block = hadamard_block(d);
    REQUIRE((d % block == 0 && std::has_single_bit(static_cast<unsigned>(block))));
    CHECK(d / block % 2 == 1);
    std::vector<float> x(d);
    for (float& v : x) v = normal(random) * (random() % 16 == 0 ? 100.0f : 1.0f);
    std::vector<float> got = x;
    hadamard(got.data(), d);
    double largest = 0, error = 0;
    for (int i = 0; i < d; i++) {
      double want = 0;  // entry (i, j) of the matrix: -1 to the number of bits that i and j share
      for (int j = i / block * block; j < (i / block + 1) * block; j++) {
        const auto shared = static_cast<unsigned>(i % block & j % block);
        want += std::popcount(shared) % 2 ? -double(x[j]) : double(x[j]);
      }
      want /= std::sqrt(double(block));
      largest = std::max(largest, std::fabs(want));
      error = std::max(error, std::fabs(got[i] - want));
    }
    CHECK(error < 1e-6 * largest);
    hadamard(got.data(), d);
    for (int i = 0; i < d; i++) CHECK(got[i] == Approx(x[i]).margin(1e-5 * largest));
  }
}

// Qwen2's keys: a few dimensions are far larger than the others and nearly the same in all tokens.
TEST_CASE("dimensions that are far larger than the others cost a transformed key no precision",
          "[kv_q8]") {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  const int d = 64;
  double plain = 0, after_transform = 0;
  for (int round = 0; round < 200; round++) {
    std::vector<float> q(d), k(d);
    for (float& v : q) v = normal(random);
    for (int i = 0; i < d; i++) k[i] = normal(random) * 0.5f + (i % 32 == 7 ? 120.0f : 0.0f);
    const auto error = [&](bool transformed) {
      std::vector<float> a = q, b = k, held(d);
      if (transformed) hadamard(a.data(), d), hadamard(b.data(), d);
      std::vector<std::byte> row(q8_row_bytes(d));
      const auto* scalar = kernels(Isa::Scalar);
      scalar->attention.kv_store(b.data(), d, cpu::KvType::Q8, row.data());
      scalar->attention.kv_load(row.data(), d, cpu::KvType::Q8, held.data());
      double got = 0, want = 0;
      for (int i = 0; i < d; i++) got += double(a[i]) * held[i], want += double(q[i]) * k[i];
      return (got - want) * (got - want);
    };
    plain += error(false), after_transform += error(true);
  }
  CHECK(after_transform < plain / 10);
}
