// Every instruction set's attention kernels against float64 brute force, and their exact properties
// (src/select/README.md, properties).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tests/kernels/cpu/each_isa.h"
#include "tests/kernels/cpu/prompt_rounding.h"
#include "tests/rounds.h"

using namespace riffle::cpu;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kInfF = std::numeric_limits<float>::infinity();

// test(const AttentionKernels&), or with the error that attend_prefill may make here: that of f32,
// or four times that of a product that rounds more.
template <class F>
void for_each_isa(F test) {
  riffle::test::for_isas(riffle::test::Sets::All, [&](const Kernels& k) {
    if constexpr (std::is_invocable_v<F, const AttentionKernels&, double>)
      test(k.attention, 4e-6 + 4 * riffle::test::product_rounding(k.isa));
    else test(k.attention);
  });
}

struct Memory {
  explicit Memory(size_t bytes) : p(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)) {}
  ~Memory() { std::free(p); }
  Memory(const Memory&) = delete;
  Memory(Memory&& other) noexcept : p(other.p) { other.p = nullptr; }
  void* p;
};

std::vector<float> normal_vector(std::mt19937& random, size_t n, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Blocks of one KV head with the float64 values that their bytes mean; tokens at and after n_tokens
// hold NaN.
struct Cache {
  int block_size, d;
  KvType type;
  bool in_keys = false;  // take_values_from_keys
  std::vector<Memory> memory;
  std::vector<const void*> blocks;
  std::vector<double> k, v;  // [n_tokens][d]

  Cache(std::mt19937& random, int block_size, int d, KvType type, int n_tokens, float k_scale = 1)
      : Cache(block_size, d, type,
              normal_vector(random, static_cast<size_t>(n_tokens) * d, k_scale),
              normal_vector(random, static_cast<size_t>(n_tokens) * d, 1)) {}

  Cache(int block_size, int d, KvType type, const std::vector<float>& keys,
        const std::vector<float>& values)
      : block_size(block_size), d(d), type(type) {
    const AttentionKernels& scalar = kernels(Isa::Scalar)->attention;
    const size_t n_tokens = keys.size() / d, size = static_cast<size_t>(block_size) * d;
    k.resize(keys.size()), v.resize(keys.size());
    std::vector<float> part(2 * size);
    for (size_t t0 = 0; t0 < n_tokens; t0 += block_size) {
      const size_t n = std::min<size_t>(block_size, n_tokens - t0) * d;
      std::fill(part.begin(), part.end(), std::nanf(""));
      std::copy_n(keys.begin() + t0 * d, n, part.begin());
      std::copy_n(values.begin() + t0 * d, n, part.begin() + size);
      memory.emplace_back(part.size() * 4);
      scalar.kv_store(part.data(), part.size(), type, memory.back().p);
      scalar.kv_load(memory.back().p, part.size(), type, part.data());
      std::copy_n(part.begin(), n, k.begin() + t0 * d);
      std::copy_n(part.begin() + size, n, v.begin() + t0 * d);
      blocks.push_back(memory.back().p);
    }
  }

  int64_t value_at() const { return in_keys ? 0 : block_size * kv_row_bytes(type, d); }
  // Makes keys the values too. The bytes behind them must not be read.
  void take_values_from_keys() {
    in_keys = true;
    v = k;
    for (const Memory& block : memory) {
      const size_t bytes = block_size * kv_row_bytes(type, d);
      std::memset(static_cast<char*>(block.p) + bytes, 0xff, bytes);
    }
  }
};

// Float64 attention of one query (already scaled) over the given tokens: output, log-sum-exp.
struct Reference {
  std::vector<double> o;
  double l = -kInf, largest_value = 0;
};
Reference attend_reference(const float* q, double scale, const Cache& cache,
                           const std::vector<int>& tokens) {
  Reference r;
  r.o.assign(cache.d, 0);
  std::vector<double> score;
  double largest = -kInf, sum = 0;
  for (const int t : tokens) {
    double s = 0;
    for (int j = 0; j < cache.d; j++)
      s += static_cast<double>(q[j]) * scale * cache.k[static_cast<size_t>(t) * cache.d + j];
    score.push_back(s);
    largest = std::max(largest, s);
  }
  for (size_t i = 0; i < tokens.size(); i++) {
    const double p = std::exp(score[i] - largest);
    sum += p;
    for (int j = 0; j < cache.d; j++) {
      const double value = cache.v[static_cast<size_t>(tokens[i]) * cache.d + j];
      r.o[j] += p * value;
      r.largest_value = std::max(r.largest_value, std::fabs(value));
    }
  }
  for (double& x : r.o) x /= sum;
  if (!tokens.empty()) r.l = largest + std::log(sum);
  return r;
}

struct State {
  std::vector<float> o, m, s;
  State(int g, int d) : o(static_cast<size_t>(g) * d), m(g, -kInfF), s(g) {}
  AttendState view() { return {o.data(), m.data(), s.data()}; }
};

// Largest error of o/s against the reference as a share of the largest value, and of the
// log-sum-exp against 1 + |l|.
double state_error(const State& state, int h, int d, const Reference& r) {
  double error = std::fabs(state.m[h] + std::log(static_cast<double>(state.s[h])) - r.l) /
                 (1 + std::fabs(r.l));
  for (int j = 0; j < d; j++) {
    const double e = std::fabs(
        static_cast<double>(state.o[static_cast<size_t>(h) * d + j]) / state.s[h] - r.o[j]);
    if (!(e / r.largest_value <= error)) error = e / r.largest_value;
  }
  return error;
}

uint64_t full_mask(int n) { return n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> prefill(const AttentionKernels& k, const std::vector<float>& q, int g,
                           const Cache& cache, int pos0, int n_q, const std::vector<int>& parts,
                           int window = 0, const float* sinks = nullptr,
                           const uint64_t* tiles = nullptr) {
  const int d = cache.d, ld = g * d;
  std::vector<float> out(q.size(), std::nanf(""));
  int at = 0;
  for (size_t i = 0; at < n_q; i++) {
    const int n = std::min(parts[i % parts.size()], n_q - at);
    Memory scratch(k.prefill_scratch_bytes(n, g, d, cache.block_size));
    std::memset(scratch.p, 0xff,
                k.prefill_scratch_bytes(n, g, d, cache.block_size));  // NaN: nothing may rely on it
    k.attend_prefill(q.data() + static_cast<size_t>(at) * ld, ld, n, g, d, pos0 + at, window, tiles,
                     cache.blocks.data(), cache.block_size, cache.type, cache.value_at(), sinks,
                     out.data() + static_cast<size_t>(at) * ld, ld, scratch.p);
    at += n;
  }
  return out;
}

// Largest error of a prefill against float64, as a share of the largest value.
double prefill_error(const std::vector<float>& q, const std::vector<float>& out, int g,
                     const Cache& cache, int pos0, int n_q, int window = 0,
                     const float* sinks = nullptr, const uint64_t* tiles = nullptr) {
  const int d = cache.d;
  double error = 0;
  for (int i = 0; i < n_q; i++) {
    std::vector<int> tokens;
    for (int t = window > 0 ? std::max(0, pos0 + i - window + 1) : 0; t <= pos0 + i; t++)
      if (tiles == nullptr || (tiles[t / 64 / 64] >> t / 64 % 64 & 1)) tokens.push_back(t);
    for (int h = 0; h < g; h++) {
      const size_t at = (static_cast<size_t>(i) * g + h) * d;
      const Reference r =
          attend_reference(q.data() + at, 1 / std::sqrt(static_cast<double>(d)), cache, tokens);
      const double share = sinks != nullptr ? 1 / (1 + std::exp(sinks[h] - r.l)) : 1;
      for (int j = 0; j < d; j++) {
        const double e = std::fabs(out[at + j] - share * r.o[j]) / r.largest_value;
        if (!(e <= error)) error = e;
      }
    }
  }
  return error;
}

}  // namespace

TEST_CASE("kv_load and kv_store: every half, rounding to even, any count", "[kernels][attention]") {
  std::vector<uint16_t> all(65536), back(65536);
  for (int i = 0; i < 65536; i++) all[i] = static_cast<uint16_t>(i);
  std::mt19937 random(1);
  for_each_isa([&](const AttentionKernels& k) {
    std::vector<float> value(65536);
    k.kv_load(all.data(), 65536, KvType::F16, value.data());
    int wrong = 0;
    for (int i = 0; i < 65536; i++) {
      const int exponent = i >> 10 & 31, fraction = i & 1023;
      double expected =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      if (exponent == 31) expected = fraction == 0 ? kInf : std::nan("");
      if (i & 0x8000) expected = -expected;
      if (std::isnan(expected)) wrong += !std::isnan(value[i]);
      else wrong += !(value[i] == expected) || std::signbit(value[i]) != std::signbit(expected);
    }
    CHECK(wrong == 0);
    k.kv_store(value.data(), 65536, KvType::F16, back.data());
    wrong = 0;
    for (int i = 0; i < 65536; i++)
      wrong +=
          std::isnan(value[i]) ? (back[i] & 0x7c00) != 0x7c00 || !(back[i] & 0x3ff) : back[i] != i;
    CHECK(wrong == 0);

    // Between neighbours: nearest, the midpoint to the even one; beyond the largest half, infinity.
    wrong = 0;
    for (int i = 0; i < 0x7c00; i++) {
      const float low = value[i], high = i == 0x7bff ? 65536.0f : value[i + 1],
                  middle = low + (high - low) / 2;
      const float x[3] = {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, kInfF)};
      uint16_t h[3];
      k.kv_store(x, 3, KvType::F16, h);
      wrong += h[0] != i || h[1] != i + (i & 1) || h[2] != i + 1;
    }
    CHECK(wrong == 0);

    for (int n = 0; n < 70; n++) {
      const std::vector<float> x = normal_vector(random, n, 3);
      std::vector<uint16_t> half(n + 1, 0x1234), expected(n + 1, 0x1234);
      std::vector<float> loaded(n + 1, 7), copied(n + 1, 7);
      k.kv_store(x.data(), n, KvType::F16, half.data());
      kernels(Isa::Scalar)->attention.kv_store(x.data(), n, KvType::F16, expected.data());
      CHECK(half == expected);
      k.kv_load(half.data(), n, KvType::F16, loaded.data());
      CHECK(loaded[n] == 7);
      k.kv_store(x.data(), n, KvType::F32, copied.data());
      k.kv_load(copied.data(), n, KvType::F32, loaded.data());
      CHECK(std::equal(x.begin(), x.end(), loaded.begin()));
      CHECK(copied[n] == 7);
    }
  });
}

TEST_CASE("attend_block equals float64 attention over any masks", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(2);
    double worst = 0, worst_l = 0;
    for (const KvType type : {KvType::F16, KvType::F32}) {
      for (const int d : {2, 34, 64, 80, 96, 128, 256}) {
        for (const int g : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23}) {
          const int block_size = 16 << random() % 3;
          const int n_tokens = 2 * block_size + 1 +
                               static_cast<int>(random() % block_size);  // the third block: a tail
          const Cache cache(random, block_size, d, type, n_tokens);
          const std::vector<float> q = normal_vector(random, static_cast<size_t>(g) * d,
                                                     2 / std::sqrt(static_cast<float>(d)));
          State state(g, d);
          std::vector<int> attended;
          for (int b = 0; b < 3; b++) {
            const uint64_t filled = full_mask(std::min(block_size, n_tokens - b * block_size));
            uint64_t mask = filled;
            if (random() % 2) mask &= (static_cast<uint64_t>(random()) << 32 | random());
            if (random() % 4 == 0) mask &= -mask;  // one token, or none
            if (random() % 8 == 0) mask = 0;
            if (b == 2 && attended.empty()) mask = filled;
            std::vector<int> tokens;
            for (int t = 0; t < block_size; t++)
              if (mask >> t & 1) tokens.push_back(b * block_size + t);
            attended.insert(attended.end(), tokens.begin(), tokens.end());
            std::vector<float> l(g, 5);
            AttendState view = state.view();
            k.attend_block(q.data(), g, d, cache.blocks[b], type, block_size, cache.value_at(),
                           mask, &view, l.data(), nullptr);
            for (int h = 0; h < g; h++) {
              const double expected = attend_reference(q.data() + h * d, 1, cache, tokens).l;
              if (tokens.empty()) CHECK(l[h] == -kInfF);
              else
                worst_l =
                    !(std::fabs(l[h] - expected) <= worst_l) ? std::fabs(l[h] - expected) : worst_l;
            }
          }
          for (int h = 0; h < g; h++) {
            const double e =
                state_error(state, h, d, attend_reference(q.data() + h * d, 1, cache, attended));
            if (!(e <= worst)) worst = e;
          }
        }
      }
    }
    CAPTURE(worst, worst_l);
    CHECK(worst <= 3e-6);
    CHECK(worst_l <= 1e-5);
  });
}

TEST_CASE("attention over keys that are the values too", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k, double bound) {
    std::mt19937 random(12);
    for (const KvType type : {KvType::F16, KvType::F32})
      for (const int d : {40, 96, 576})
        for (const int g : {1, 5, 20}) {
          const int block_size = 16, n_tokens = 90;
          Cache cache(random, block_size, d, type, n_tokens);
          cache.take_values_from_keys();
          const std::vector<float> q = normal_vector(random, static_cast<size_t>(g) * d,
                                                     2 / std::sqrt(static_cast<float>(d)));
          State state(g, d);
          std::vector<int> tokens(n_tokens);
          for (int t = 0; t < n_tokens; t++) tokens[t] = t;
          std::vector<float> l(g);
          for (int b = 0; b * block_size < n_tokens; b++) {
            AttendState view = state.view();
            k.attend_block(q.data(), g, d, cache.blocks[b], type, block_size, cache.value_at(),
                           full_mask(std::min(block_size, n_tokens - b * block_size)), &view,
                           l.data(), nullptr);
          }
          INFO("d " << d << " g " << g);
          for (int h = 0; h < g; h++)
            CHECK(state_error(state, h, d, attend_reference(q.data() + h * d, 1, cache, tokens)) <=
                  3e-6);
          const int n_q = 7, pos0 = n_tokens - n_q;
          const std::vector<float> queries =
              normal_vector(random, static_cast<size_t>(n_q) * g * d, 1);
          const std::vector<float> out = prefill(k, queries, g, cache, pos0, n_q, {n_q});
          CHECK(prefill_error(queries, out, g, cache, pos0, n_q) <= bound);
        }
  });
}

TEST_CASE("attend_block: scores of 1e4, blocks of no weight, empty masks", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(3);
    const int d = 64, g = 4, block_size = 32;
    // Keys along one axis: the scores are exact. Block 0 spans +-1e4; block 1 lies e^-200 below
    // block 0's largest.
    std::vector<float> keys(2 * block_size * d), q(g * d);
    for (int t = 0; t < block_size; t++)
      keys[t * d] = t % 2 ? 100.0f : -100.0f, keys[(block_size + t) * d] = 98.0f;
    for (int h = 0; h < g; h++) q[h * d] = 100;
    const Cache cache(block_size, d, KvType::F16, keys, normal_vector(random, keys.size(), 1));
    State state(g, d);
    AttendState view = state.view();
    std::vector<float> l(g);
    k.attend_block(q.data(), g, d, cache.blocks[0], KvType::F16, block_size, cache.value_at(), 0,
                   &view, l.data(), nullptr);
    for (int h = 0; h < g; h++) CHECK((l[h] == -kInfF && state.m[h] == -kInfF && state.s[h] == 0));
    k.attend_block(q.data(), g, d, cache.blocks[0], KvType::F16, block_size, cache.value_at(),
                   full_mask(32), &view, l.data(), nullptr);
    for (int h = 0; h < g; h++) CHECK(std::fabs(l[h] - (1e4 + std::log(16.0))) <= 1e-3);
    const std::vector<float> before = state.o;
    k.attend_block(q.data(), g, d, cache.blocks[1], KvType::F16, block_size, cache.value_at(),
                   full_mask(32), &view, l.data(), nullptr);
    for (int h = 0; h < g; h++) CHECK(std::fabs(l[h] - (9800 + std::log(32.0))) <= 1e-3);
    k.attend_block(q.data(), g, d, cache.blocks[1], KvType::F16, block_size, cache.value_at(), 0,
                   &view, l.data(), nullptr);
    CHECK(same_bits(before, state.o));
    std::vector<int> tokens(2 * block_size);
    for (int t = 0; t < 2 * block_size; t++) tokens[t] = t;
    for (int h = 0; h < g; h++)
      CHECK(state_error(state, h, d, attend_reference(q.data(), 1, cache, tokens)) <= 1e-6);

    // The other way round: everything so far becomes weightless.
    std::vector<float> low(q);
    for (float& x : low) x = -x;
    State reversed(g, d);
    view = reversed.view();
    k.attend_block(low.data(), g, d, cache.blocks[1], KvType::F16, block_size, cache.value_at(),
                   full_mask(32), &view, l.data(), nullptr);
    for (int h = 0; h < g; h++) CHECK(std::fabs(l[h] - (-9800 + std::log(32.0))) <= 1e-3);
    k.attend_block(low.data(), g, d, cache.blocks[0], KvType::F16, block_size, cache.value_at(),
                   full_mask(32), &view, l.data(), nullptr);
    for (int h = 0; h < g; h++)
      CHECK(state_error(reversed, h, d, attend_reference(low.data(), 1, cache, tokens)) <= 1e-6);
  });
}

TEST_CASE("merge is order-free to rounding and takes empty parts", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(4);
    for (const int d : {6, 64, 80}) {
      const int g = 3, block_size = 16, n_blocks = 5;
      const Cache cache(random, block_size, d, KvType::F16, n_blocks * block_size, 3);
      const std::vector<float> q = normal_vector(random, static_cast<size_t>(g) * d, 1);
      std::vector<int> tokens(n_blocks * block_size), order{0, 1, 2, 3, 4, 5};
      for (size_t t = 0; t < tokens.size(); t++) tokens[t] = static_cast<int>(t);
      for (int round = 0; round < 10; round++) {
        State total(g, d);
        for (const int b : order) {
          State part(g, d);  // part 5 stays empty
          AttendState view = part.view(), total_view = total.view();
          std::vector<float> l(g);
          if (b < n_blocks)
            k.attend_block(q.data(), g, d, cache.blocks[b], KvType::F16, block_size,
                           cache.value_at(), full_mask(16), &view, l.data(), nullptr);
          k.merge(&total_view, &view, g, d);
        }
        // Scores reach 80, where one rounding is up to 3.8e-6 of a weight.
        for (int h = 0; h < g; h++)
          CHECK(state_error(total, h, d, attend_reference(q.data() + h * d, 1, cache, tokens)) <=
                1e-5);
        std::shuffle(order.begin(), order.end(), random);
      }
      State a(g, d), b(g, d);
      AttendState view_a = a.view(), view_b = b.view();
      k.merge(&view_a, &view_b, g, d);
      for (int h = 0; h < g; h++) CHECK((a.m[h] == -kInfF && a.s[h] == 0 && a.o[h * d] == 0));
    }
  });
}

TEST_CASE("attend_prefill equals float64 causal attention", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k, double bound) {
    std::mt19937 random(5);
    double worst = 0;
    for (const KvType type : {KvType::F16, KvType::F32}) {
      for (const int d : {2, 34, 64, 80, 96, 128, 256}) {
        for (const int g : {1, 3, 4, 16}) {
          const int block_size = 16 << random() % 3;
          const int pos0 = static_cast<int>(random() % 200),
                    n_q = 1 + static_cast<int>(random() % 70);
          const Cache cache(random, block_size, d, type, pos0 + n_q);  // beyond the last key: NaN
          const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * g * d, 2);
          const std::vector<float> out = prefill(k, q, g, cache, pos0, n_q, {n_q});
          const double e = prefill_error(q, out, g, cache, pos0, n_q);
          if (!(e <= worst)) worst = e;
        }
      }
    }
    CAPTURE(worst);
    CHECK(worst <= bound);
  });
}

TEST_CASE("attend_prefill: a row's bits do not depend on how queries are cut into calls",
          "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(6);
    for (const int d : {64, 80, 96, 128, 256}) {
      for (const int g : {1, 3, 4}) {
        const int block_size = 16 << random() % 3, pos0 = static_cast<int>(random() % 100),
                  n_q = 150;
        const Cache cache(random, block_size, d, KvType::F16, pos0 + n_q);
        const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * g * d, 4);
        const std::vector<float> whole = prefill(k, q, g, cache, pos0, n_q, {n_q});
        CHECK(same_bits(whole, prefill(k, q, g, cache, pos0, n_q, {1})));
        CHECK(same_bits(whole, prefill(k, q, g, cache, pos0, n_q, {7, 16, 33, 2})));
        CHECK(same_bits(whole, prefill(k, q, g, cache, pos0, n_q, {64})));
        CHECK(same_bits(whole, prefill(k, q, g, cache, pos0, n_q, {k.prefill_tile(g, d)})));
      }
    }
  });
}

// Whole blocks before the window hold NaN where the header says that they are not read.
TEST_CASE("attend_prefill with a window equals float64, and bits do not depend on calls",
          "[kernels][attention][window]") {
  for_each_isa([&](const AttentionKernels& k, double bound) {
    std::mt19937 random(51);
    double worst = 0;
    riffle::test::OneIn one(3);
    for (const KvType type : {KvType::F16, KvType::F32}) {
      for (const int d : {34, 64, 80, 96, 128, 256}) {
        for (const int window : {1, 2, 31, 63, 64, 65, 100, 128, 129, 300, 1 << 28}) {
          if (one.skips()) continue;
          const int block_size = 16 << random() % 3, g = std::vector<int>{1, 3, 4, 8}[random() % 4];
          const int pos0 = static_cast<int>(random() % 400),
                    n_q = 1 + static_cast<int>(random() % 200);
          const Cache cache(random, block_size, d, type, pos0 + n_q);
          const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * g * d, 2);
          const int unread = std::max(0, pos0 - window + 1) / 64 * 64;
          for (int b = 0; b < unread / block_size; b++)
            std::memset(cache.memory[b].p, 0xff,
                        static_cast<size_t>(2) * block_size * d * (type == KvType::F16 ? 2 : 4));
          const std::vector<float> out = prefill(k, q, g, cache, pos0, n_q, {n_q}, window);
          const double e = prefill_error(q, out, g, cache, pos0, n_q, window);
          if (!(e <= worst)) worst = e;
          CAPTURE(d, g, window, block_size, pos0, n_q);
          CHECK(same_bits(out, prefill(k, q, g, cache, pos0, n_q, {7, 16, 33, 2}, window)));
          CHECK(same_bits(out, prefill(k, q, g, cache, pos0, n_q, {1}, window)));
          CHECK(same_bits(out, prefill(k, q, g, cache, pos0, n_q, {k.prefill_tile(g, d)}, window)));
          if (window >= pos0 + n_q)
            CHECK(same_bits(out, prefill(k, q, g, cache, pos0, n_q, {n_q})));
        }
      }
    }
    CAPTURE(worst);
    CHECK(worst <= bound);
  });
}

// From sinks that take nothing to sinks that take everything.
TEST_CASE("attend_prefill with sinks equals float64, and bits do not depend on calls",
          "[kernels][attention][sinks]") {
  for_each_isa([&](const AttentionKernels& k, double bound) {
    std::mt19937 random(52);
    double worst = 0;
    for (const KvType type : {KvType::F16, KvType::F32}) {
      for (const int d : {34, 64, 128}) {
        for (const int window : {0, 40}) {
          const int block_size = 16 << random() % 3, g = std::vector<int>{1, 3, 8}[random() % 3];
          const int pos0 = static_cast<int>(random() % 200),
                    n_q = 1 + static_cast<int>(random() % 100);
          const Cache cache(random, block_size, d, type, pos0 + n_q);
          const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * g * d, 2);
          std::vector<float> sinks = normal_vector(random, g, 5);
          sinks[0] = std::vector<float>{-1e30f, -200, 300, 1e30f}[random() % 4];
          const std::vector<float> out =
              prefill(k, q, g, cache, pos0, n_q, {n_q}, window, sinks.data());
          const double e = prefill_error(q, out, g, cache, pos0, n_q, window, sinks.data());
          if (!(e <= worst)) worst = e;
          CHECK(
              same_bits(out, prefill(k, q, g, cache, pos0, n_q, {7, 1, 33}, window, sinks.data())));
        }
      }
    }
    CAPTURE(worst);
    CHECK(worst <= bound);
  });
}

TEST_CASE("attend_prefill: scores of 1e4", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(7);
    const int d = 64, n = 200;
    std::vector<float> keys(n * d), q(n * d);
    for (int t = 0; t < n; t++)
      keys[t * d] = t % 3 == 0   ? 256.0f
                    : t % 3 == 1 ? -256.0f
                                 : 255.0f,
               q[t * d] = t % 2 ? 256.0f : -256.0f;
    const Cache cache(32, d, KvType::F16, keys,
                      normal_vector(random, keys.size(), 1));  // scores +-8192
    CHECK(prefill_error(q, prefill(k, q, 1, cache, 0, n, {n}), 1, cache, 0, n) <= 1e-4);
    for (float& x : q) x *= 1.25f;
    CHECK(prefill_error(q, prefill(k, q, 1, cache, 0, n, {n}), 1, cache, 0, n) <= 1e-4);
  });
}

TEST_CASE("attend_prefill: a rising maximum, long context", "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(8);
    const int d = 64, n_keys = 2000, n_q = 20;
    std::vector<float> keys = normal_vector(random, static_cast<size_t>(n_keys) * d, 1);
    for (int t = 0; t < n_keys; t++) keys[static_cast<size_t>(t) * d] = static_cast<float>(t) / 100;
    const Cache cache(16, d, KvType::F16, keys, normal_vector(random, keys.size(), 1));
    std::vector<float> q = normal_vector(random, n_q * d, 1);
    for (int i = 0; i < n_q; i++) q[i * d] = static_cast<float>(i - 10) * 3;
    // Scores up to 75: the tile kernel's products of bf16 pairs are good to about 2^-18 of that.
    CHECK(prefill_error(q, prefill(k, q, 1, cache, n_keys - n_q, n_q, {n_q}), 1, cache,
                        n_keys - n_q, n_q) <= 1e-4);
  });
}

TEST_CASE("digests bound their keys and are the same on every instruction set",
          "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    const AttentionKernels& scalar = kernels(Isa::Scalar)->attention;
    std::mt19937 random(9);
    for (int round = 0; round < 120; round++) {
      const int d = std::vector<int>{2, 34, 64, 80, 96, 128, 256}[random() % 7],
                block_size = 16 << random() % 3;
      const KvType type = random() % 4 == 0 ? KvType::F32 : KvType::F16;
      const float scale = std::vector<float>{1e-6f, 0.01f, 1, 100}[random() % 4];
      std::vector<float> keys = normal_vector(random, static_cast<size_t>(block_size) * d, scale);
      if (round % 5 == 0)
        for (size_t i = d; i < keys.size(); i++)
          keys[i] = i % d < 2 ? keys[i % d] : keys[i];  // constant dimensions
      const Cache cache(block_size, d, type, keys, keys);
      for (const DigestKind kind : {DigestKind::Mean, DigestKind::Quest, DigestKind::CuboidMean}) {
        std::vector<uint16_t> digest(3 * d, 0xffff), expected(3 * d, 0xffff);
        const bool with_mean = random() % 2;
        const float factor =
            k.digest_build(cache.blocks[0], type, block_size, d, kind, with_mean, digest.data());
        CHECK(factor == scalar.digest_build(cache.blocks[0], type, block_size, d, kind, with_mean,
                                            expected.data()));
        CHECK(digest == expected);
        std::vector<float> value(3 * d);
        k.kv_load(digest.data(), 3 * d, KvType::F16, value.data());
        int wrong = 0;
        for (int j = 0; j < d; j++) {
          double high = -kInf, low = kInf, sum = 0, spread = 0;
          for (int t = 0; t < block_size; t++) {
            const double x = cache.k[static_cast<size_t>(t) * d + j];
            high = std::max(high, x), low = std::min(low, x), sum += x,
            spread += std::fabs(x - value[j]);
          }
          const double centre = value[j], radius = value[d + j],
                       half_width = std::max(high - centre, centre - low);
          // Half an f16 ulp, or half the smallest subnormal; rounding up may cost a whole one.
          const double slack = std::max(std::fabs(high), std::fabs(low)) * 0x1p-11 + 0x1p-25,
                       ulp = half_width * 0x1p-10 + 0x1p-24;
          if (kind == DigestKind::Mean) {
            wrong += !(std::fabs(centre - sum / block_size) <= slack) || !(radius == 0);
          } else {
            wrong += !(std::fabs(centre - (high + low) / 2) <= slack);
            const double exact = kind == DigestKind::Quest ? half_width : spread / block_size;
            wrong += !(radius >= exact * (1 - 1e-12)) || !(radius <= exact + ulp);
            if (kind == DigestKind::CuboidMean) wrong += !(radius <= half_width + ulp);
            wrong += !(half_width <= static_cast<double>(factor) * radius);
          }
          if (with_mean) wrong += !(std::fabs(value[2 * d + j] - sum / block_size) <= slack);
          if (!with_mean) wrong += digest[2 * d + j] != 0xffff;
        }
        CHECK(wrong == 0);
        CHECK((kind == DigestKind::Mean    ? factor == kInfF
               : kind == DigestKind::Quest ? factor == 1
                                           : factor > 0));

        // Token order does not matter.
        std::vector<int> order(block_size);
        for (int t = 0; t < block_size; t++) order[t] = t;
        std::shuffle(order.begin(), order.end(), random);
        std::vector<float> shuffled;
        for (const int t : order)
          shuffled.insert(shuffled.end(), keys.begin() + t * d, keys.begin() + (t + 1) * d);
        const Cache other(block_size, d, type, shuffled, shuffled);
        std::vector<uint16_t> again(3 * d, 0xffff);
        const float factor_again =
            k.digest_build(other.blocks[0], type, block_size, d, kind, with_mean, again.data());
        if (type == KvType::F16) {
          CHECK(again == digest);
          CHECK((factor_again == factor));
        }

        // Upper bounds of every q.k: Quest as it is, cuboid-mean with its factor. Masses: mean <=
        // true <= upper bound.
        std::vector<float> q = normal_vector(random, d,
                                             1 / (scale * std::sqrt(static_cast<float>(d)))),
                           q_abs(q);
        for (float& x : q_abs) x = std::fabs(x);
        float centre_score, score;
        k.digest_score(digest.data(), 2 * d, 1, d, q.data(), nullptr, &centre_score);
        k.digest_score(digest.data(), 2 * d, 1, d, q.data(), q_abs.data(), &score);
        double size = 0, largest = -kInf, mass = 0,
               rounding = 0;  // allowance for f32 sums and for the mean's f16 rounding
        for (int j = 0; j < d; j++) {
          size += q_abs[j] * (std::fabs(value[j]) + value[d + j]);
          rounding += q_abs[j] * (std::fabs(value[j]) * 0x1p-11 + 0x1p-25);
        }
        for (int t = 0; t < block_size; t++) {
          double dot = 0;
          for (int j = 0; j < d; j++) dot += q[j] * cache.k[static_cast<size_t>(t) * d + j];
          largest = std::max(largest, dot);
          mass += std::exp(dot);
        }
        const double log_n = std::log(static_cast<double>(block_size));
        if (kind == DigestKind::Mean) {
          CHECK(log_n + score <= std::log(mass) + rounding + 1e-6 * size);
        } else {
          const double bound = centre_score + static_cast<double>(factor) *
                                                  (static_cast<double>(score) - centre_score);
          CHECK(bound >= largest - 2e-6 * factor * size);
          CHECK(std::log(mass) <= log_n + bound + 2e-6 * factor * size);
        }
      }
    }
  });
}

TEST_CASE("digest_score equals float64, whatever the stride and the split",
          "[kernels][attention]") {
  for_each_isa([&](const AttentionKernels& k) {
    std::mt19937 random(10);
    for (const int d : {2, 34, 64, 80, 96, 128, 256}) {
      const int n = 53;
      const int64_t stride = (d % 4 ? 3 : 2) * d;
      const std::vector<float> values = normal_vector(random, static_cast<size_t>(n) * stride, 1);
      std::vector<uint16_t> digests(values.size());
      std::vector<float> exact(values.size()), q = normal_vector(random, d, 1),
                                               q_abs = normal_vector(random, d, 1);
      k.kv_store(values.data(), values.size(), KvType::F16, digests.data());
      k.kv_load(digests.data(), values.size(), KvType::F16, exact.data());
      for (const bool with_radius : {false, true}) {
        const float* radius_query = with_radius ? q_abs.data() : nullptr;
        std::vector<float> scores(n + 1, 7), split(n + 1, 7);
        k.digest_score(digests.data(), stride, n, d, q.data(), radius_query, scores.data());
        for (int b = 0; b < n; b++) {
          double expected = 0, size = 0;
          for (int j = 0; j < d; j++) {
            expected += static_cast<double>(q[j]) * exact[b * stride + j];
            size += std::fabs(q[j] * exact[b * stride + j]);
            if (with_radius) expected += static_cast<double>(q_abs[j]) * exact[b * stride + d + j];
            if (with_radius) size += std::fabs(q_abs[j] * exact[b * stride + d + j]);
          }
          CHECK(std::fabs(scores[b] - expected) <= 1e-6 * size);
        }
        CHECK(scores[n] == 7);
        for (int b = 0; b < n;) {
          const int part = std::min(1 + static_cast<int>(random() % 20), n - b);
          k.digest_score(digests.data() + b * stride, stride, part, d, q.data(), radius_query,
                         split.data() + b);
          b += part;
        }
        CHECK(same_bits(scores, split));
      }
    }
  });
}

TEST_CASE("attend_prefill reads the tiles that it is given, and no other",
          "[kernels][attention][tiles]") {
  for_each_isa([](const AttentionKernels& k, double bound) {
    std::mt19937 random(31);
    for (const KvType type : {KvType::F16, KvType::F32})
      for (const int d : {64, 80, 128}) {
        const int pos0 = 640, n_q = 128, n_tiles = (pos0 + n_q) / 64;
        Cache cache(random, 32, d, type, pos0 + n_q);
        const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * d, 1);
        const std::vector<float> dense = prefill(k, q, 1, cache, pos0, n_q, {n_q});
        const uint64_t all = full_mask(n_tiles);
        CHECK(same_bits(prefill(k, q, 1, cache, pos0, n_q, {n_q}, 0, nullptr, &all), dense));
        const uint64_t some = (random() & all & ~uint64_t{4}) | 1 | uint64_t{3} << (n_tiles - 2);
        // Keys of tile 2 become NaN: they may not even be loaded.
        for (int t = 128; t < 192; t += 32)
          std::memset(const_cast<void*>(cache.blocks[t / 32]), 0xff, 4 * 32 * d);
        const std::vector<float> out = prefill(k, q, 1, cache, pos0, n_q, {n_q}, 0, nullptr, &some);
        CHECK(prefill_error(q, out, 1, cache, pos0, n_q, 0, nullptr, &some) <= bound);
      }
  });
}

TEST_CASE("choose_tiles marks the tiles whose mean key has more than the share of a query's weight",
          "[kernels][attention][tiles]") {
  for_each_isa([](const AttentionKernels& k) {
    std::mt19937 random(32);
    for (const auto& [d, pos0] : {std::pair{64, 128}, {64, 1024}, {128, 4608}, {80, 2048}}) {
      const int n_q = 128, n_tiles = (pos0 + n_q) / 64, near = std::max(1, pos0 / 64 - 3);
      // Keys of a tile are alike, so that tiles differ.
      std::vector<float> keys(static_cast<size_t>(pos0 + n_q) * d);
      for (int tile = 0; tile < n_tiles; tile++) {
        const std::vector<float> middle = normal_vector(random, d, 1);
        for (int t = 64 * tile; t < 64 * tile + 64; t++)
          for (int j = 0; j < d; j++)
            keys[static_cast<size_t>(t) * d + j] =
                middle[j] + 0.3f * static_cast<float>(static_cast<int>(random() % 201) - 100) / 100;
      }
      const Cache cache(16, d, KvType::F16, keys, normal_vector(random, keys.size(), 1));
      std::vector<float> means(static_cast<size_t>(n_tiles) * d);
      for (size_t i = 0; i < keys.size(); i++)
        means[i / d / 64 * d + i % d] += static_cast<float>(cache.k[i]) / 64;
      const std::vector<float> q = normal_vector(random, static_cast<size_t>(n_q) * d, 1);
      for (const float share : {0.2f, 1e-30f}) {
        INFO("d " << d << ", pos0 " << pos0 << ", share " << share);
        std::vector<uint64_t> tiles(n_tiles / 64 + 1, ~uint64_t{0});
        const Memory scratch(k.choice_scratch_bytes(pos0 + n_q, d));
        k.choose_tiles(q.data(), d, n_q, d, pos0, means.data(), share, tiles.data(), scratch.p);
        std::vector<double> most(n_tiles);  // the largest share that a query gives a tile
        for (int i = 0; i < n_q; i++) {
          std::vector<double> weight(n_tiles);
          double total = 0;
          for (int tile = 0; tile < pos0 / 64; tile++) {
            double dot = 0;
            for (int j = 0; j < d; j++)
              dot += double(q[size_t(i) * d + j]) * means[size_t(tile) * d + j];
            total += weight[tile] = std::exp(dot / std::sqrt(double(d)));
          }
          for (int tile = 0; tile < n_tiles; tile++)
            most[tile] = std::max(most[tile], weight[tile] / total);
        }
        int wrong = 0, chosen = 0;
        for (int tile = 0; tile < n_tiles; tile++) {
          const bool read = tiles[tile / 64] >> tile % 64 & 1;
          const bool always = tile == 0 || tile >= near;
          if (always) wrong += !read;
          else if (std::fabs(most[tile] / share - 1) > 1e-3) wrong += read != (most[tile] > share);
          chosen += !always && read;
        }
        CHECK(wrong == 0);
        CHECK(tiles[n_tiles / 64] >> n_tiles % 64 == 0);
        if (pos0 > 2000 && share > 0.01f) CHECK((chosen > 0 && chosen < near - 1));
        if (share < 0.01f) CHECK(chosen == near - 1);
      }
    }
  });
}
