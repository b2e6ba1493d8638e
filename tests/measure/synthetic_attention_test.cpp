// Synthetic attention has the properties that were asked for, measured by brute force in double.
#include "measure/synthetic_attention.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "riffle_measure.h"
#include "tests/engine/test_model.h"
#include "tests/engine/uneven_model.h"
#include "util/error.h"

using namespace riffle;

namespace {

SyntheticAttention asked() { return {}; }

struct Sparsity {
  int head_dim, block_size;
  float sparsity, weight, overlap;
};
// The last sparsity is near the limit of 32 directions.
const std::vector<Sparsity> kSettings = {{128, 16, 0.05f, 0.95f, 0.88f},
                                         {128, 32, 0.02f, 0.9f, 0.97f},
                                         {64, 16, 0.05f, 0.95f, 0.88f},
                                         {32, 64, 0.1f, 0.8f, 0.5f},
                                         {32, 16, 0.05f, 0.95f, 0.88f}};

SyntheticSpec spec_of(const Sparsity& s, uint64_t seed) {
  SyntheticAttention t = asked();
  t.sparsity = s.sparsity;
  t.weight = s.weight;
  t.overlap = s.overlap;
  t.seed = seed;
  return make_synthetic_spec(t, s.head_dim);
}

std::vector<char> view(const SyntheticSpec& spec, int layer, int head, int64_t position,
                       int64_t n_blocks) {
  std::vector<char> in(n_blocks);
  for (int64_t b = 0; b < n_blocks; ++b) in[b] = synthetic_active(spec, layer, head, position, b);
  return in;
}

}  // namespace

TEST_CASE("synthetic attention: weight and sparsity are as asked, for each query head") {
  constexpr int kHeads = 4, kKvHeads = 2, kLayer = 3;
  for (const Sparsity& s : kSettings) {
    const int d = s.head_dim;
    const SyntheticSpec spec = spec_of(s, 7);
    INFO("head_dim " << d << ", " << spec.active << " of " << spec.clusters << " clusters");
    const int64_t n_blocks = 4 * spec.clusters, n = n_blocks * s.block_size;
    std::vector<float> k(n * kKvHeads * d), v(k.size()), q(kHeads * d);
    synthetic_keys(spec, kLayer, 0, n, kKvHeads, d, s.block_size, k.data(), v.data());
    double weight = 0, share = 0, lowest = 1;
    const int64_t positions[] = {n - 1, n + 100, 3 * n};
    for (const int64_t position : positions) {
      synthetic_query(spec, kLayer, position, kHeads, kKvHeads, d, q.data());
      for (int h = 0; h < kHeads; ++h) {
        const int kv = h / (kHeads / kKvHeads);
        const std::vector<char> in = view(spec, kLayer, kv, position, n_blocks);
        double active = 0, all = 0;
        for (int64_t t = 0; t < n; ++t) {
          double dot = 0;
          for (int j = 0; j < d; ++j)
            dot += static_cast<double>(q[h * d + j]) * k[(t * kKvHeads + kv) * d + j];
          const double e = std::exp(dot / std::sqrt(static_cast<double>(d)));
          all += e;
          if (in[t / s.block_size]) active += e;
        }
        weight += active / all / (3 * kHeads);
        lowest = std::min(lowest, active / all);
        share += static_cast<double>(std::count(in.begin(), in.end(), 1)) / n_blocks / (3 * kHeads);
      }
    }
    CHECK(std::fabs(weight - s.weight) <= 0.1 * s.weight);
    CHECK(std::fabs(weight - s.weight) <= 0.5 * (1 - s.weight));  // 95 % is not 99 %
    CHECK(lowest > 0.75 * s.weight);
    CHECK(std::fabs(share - s.sparsity) <= 0.1 * s.sparsity);
    double sum = 0, squares = 0;
    for (const float x : v) sum += x, squares += static_cast<double>(x) * x;
    CHECK(std::fabs(sum / v.size()) < 0.01);
    CHECK(std::fabs(squares / v.size() - 1.0 / 3) < 0.01);
  }
}

TEST_CASE("synthetic attention: the overlap of steps is as asked") {
  for (const Sparsity& s : kSettings) {
    const SyntheticSpec spec = spec_of(s, 11);
    const int64_t n_blocks = 2 * spec.clusters;
    double kept = 0, count = 0;
    int changes = 0;
    for (int layer = 0; layer < 2; ++layer)
      for (int head = 0; head < 4; ++head)
        for (int64_t position = 5000, i = 0; i < 200; ++i, ++position) {
          const std::vector<char> now = view(spec, layer, head, position, n_blocks);
          const std::vector<char> next = view(spec, layer, head, position + 1, n_blocks);
          REQUIRE(std::count(now.begin(), now.end(), 1) == 2 * spec.active);
          for (int64_t b = 0; b < n_blocks; ++b) kept += now[b] && next[b];
          count += 2 * spec.active;
          changes += now != next;
        }
    INFO("head_dim " << s.head_dim << ", overlap " << s.overlap);
    CHECK(std::fabs(kept / count - s.overlap) <= 0.1 * std::min(s.overlap, 1 - s.overlap) + 0.005);
    CHECK(changes > 0);
  }
  SyntheticAttention t = asked();
  t.overlap = 1;
  const SyntheticSpec still = make_synthetic_spec(t, 128);
  CHECK(view(still, 0, 0, 10, 240) == view(still, 0, 0, 100000, 240));
  t.overlap = 0;
  const SyntheticSpec restless = make_synthetic_spec(t, 128);
  int same = 0;
  for (int64_t b = 0; b < 1200; ++b)
    same += synthetic_active(restless, 0, 0, 77, b) && synthetic_active(restless, 0, 0, 78, b);
  CHECK(same <= 20);  // 60 blocks are active; a draw may repeat an earlier one
}

TEST_CASE("synthetic attention: heads, layers and seeds differ, parts agree with the whole") {
  constexpr int d = 64, kB = 16, kHeads = 3;
  const SyntheticSpec spec = make_synthetic_spec(asked(), d);
  SyntheticAttention t = asked();
  t.seed = 1;
  const SyntheticSpec other = make_synthetic_spec(t, d);
  CHECK(view(spec, 0, 0, 999, 600) != view(spec, 0, 1, 999, 600));
  CHECK(view(spec, 0, 0, 999, 600) != view(spec, 1, 0, 999, 600));
  CHECK(view(spec, 0, 0, 999, 600) != view(other, 0, 0, 999, 600));
  std::vector<float> k(100 * kHeads * d), v(k.size()), k1(k.size()), v1(k.size());
  synthetic_keys(spec, 2, 37, 100, kHeads, d, kB, k.data(), v.data());
  for (int i = 0; i < 100; ++i)
    synthetic_keys(spec, 2, 37 + i, 1, kHeads, d, kB, &k1[i * kHeads * d], &v1[i * kHeads * d]);
  CHECK(k == k1);
  CHECK(v == v1);
}

TEST_CASE("synthetic attention: digests rank the active blocks first") {
  constexpr int kHeads = 4;
  const auto& a = cpu::kernels(cpu::Isa::Scalar)->attention;
  for (const Sparsity& s : kSettings) {
    const int d = s.head_dim;
    const SyntheticSpec spec = spec_of(s, 3);
    const int64_t n_blocks = 3 * spec.clusters, position = n_blocks * s.block_size;
    std::vector<float> k(position * d), v(k.size()), q(kHeads * d), mean(d), mean_abs(d),
        scores(n_blocks);
    std::vector<uint16_t> stored(s.block_size * d), digests(n_blocks * 2 * d);
    synthetic_keys(spec, 0, 0, position, 1, d, s.block_size, k.data(), v.data());
    for (int64_t b = 0; b < n_blocks; ++b) {
      a.kv_store(&k[b * s.block_size * d], s.block_size * d, cpu::KvType::F16, stored.data());
      a.digest_build(stored.data(), cpu::KvType::F16, s.block_size, d, cpu::DigestKind::CuboidMean,
                     false, &digests[b * 2 * d]);
    }
    synthetic_query(spec, 0, position, kHeads, 1, d, q.data());
    for (int h = 0; h < kHeads; ++h)
      for (int j = 0; j < d; ++j)
        mean[j] += q[h * d + j] / kHeads, mean_abs[j] += std::fabs(q[h * d + j]) / kHeads;
    a.digest_score(digests.data(), 2 * d, n_blocks, d, mean.data(), mean_abs.data(), scores.data());
    float least_active = INFINITY, most_other = -INFINITY;
    for (int64_t b = 0; b < n_blocks; ++b)
      if (synthetic_active(spec, 0, 0, position, b))
        least_active = std::min(least_active, scores[b]);
      else most_other = std::max(most_other, scores[b]);
    INFO("head_dim " << d);
    CHECK(least_active > most_other);
  }
}

TEST_CASE("synthetic attention: what cannot be is refused") {
  const auto refused = [](auto change, int head_dim) {
    SyntheticAttention t = asked();
    change(t);
    try {
      make_synthetic_spec(t, head_dim);
      return false;
    } catch (const Error& e) {
      return e.status() == RIFFLE_BAD_ARGUMENT || e.status() == RIFFLE_UNSUPPORTED;
    }
  };
  CHECK(!refused([](auto&) {}, 128));
  CHECK(refused([](auto& t) { t.sparsity = 0; }, 128));
  CHECK(refused([](auto& t) { t.sparsity = NAN; }, 128));
  CHECK(refused([](auto& t) { t.sparsity = 0.6f; }, 128));
  CHECK(refused([](auto& t) { t.weight = 1; }, 128));
  CHECK(refused([](auto& t) { t.weight = 0.01f; }, 128));
  CHECK(refused([](auto& t) { t.overlap = 1.1f; }, 128));
  CHECK(refused([](auto&) {}, 16));
  CHECK(refused([](auto&) {}, 66));
}

TEST_CASE("synthetic attention: a selector sees the queries at the prompt's end",
          "[engine][model]") {
  constexpr int kTokens = 3000;
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = test::options();
    o.device = device;
    o.n_ctx = 4096;
    o.synthetic_attention = asked();
    o.selection.selector = SelectorKind::LFPS;
    o.selection.bypass = 1;
    test::Runtime r(o);
    riffle_session* s = r.session();
    const std::vector<int32_t> prompt = test::some_tokens(kTokens, 3);
    r.check(riffle_prefill(s, prompt.data(), 1000, nullptr, nullptr));
    r.check(riffle_prefill(s, prompt.data() + 1000, kTokens - 1000, nullptr, nullptr));
    std::vector<int64_t> scored;
    r.check(riffle_set_row_report(
        r.context,
        [](void* user, const riffle_row_report* t) {
          static_cast<std::vector<int64_t>*>(user)->push_back(t->index_bytes);
        },
        &scored, false));
    const int32_t token = 5;
    r.check(riffle_step(r.context, &s, &token, 1));
    REQUIRE(scored.size() == 8 * 2);
    // Without the prompt's queries the first step would score all tokens. With them it scores only
    // the tokens that they make likely.
    for (const int64_t bytes : scored) {
      CHECK(bytes > 0);
      CHECK(bytes < kTokens * 64 * 2 / 2);
    }
  }
}

TEST_CASE("synthetic attention: layers that differ are refused") {
  ContextOptions o = riffle::test::options();
  const riffle::test::Runtime r(o, riffle::test::uneven_model);
  o.synthetic_attention.emplace();
  riffle_context* c = nullptr;
  char err[512];
  CHECK(riffle::test::context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK(err == std::string("synthetic attention: layer 2 has 2 KV heads of size 128, layer 0 has 4 "
                           "of size 64, expected the same in all layers"));
}
