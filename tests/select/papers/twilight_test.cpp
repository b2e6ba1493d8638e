// Twilight against brute force in float64 on synthetic keys, and through the engine: properties
// 1, 3, 6 and 8 of src/select/README.md.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/common/half.h"
#include "select/papers/int4_keys.h"
#include "select/selector.h"
#include "tests/engine/steps.h"
#include "tests/rounds.h"
#include "tests/select/dropped.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

using Tokens = std::set<int>;

// One KV head: blocks, digests, INT4 keys, and a query group; a few keys point along its queries.
struct Scene {
  int g, d, block_size, n_tokens, n_blocks;
  StateShape shape;
  std::vector<float> k, v, q;  // k and v rounded to f16
  std::vector<Buffer> memory;
  std::vector<const std::byte*> blocks;
  std::vector<uint16_t> digests;
  std::vector<float> factor;
  std::unique_ptr<Int4Keys> keys;
  Row row;

  Scene(int group, int tokens, unsigned seed, int dims = 64, int size = 32,
        KvType type = KvType::F16, bool mean = false)
      : g(group),
        d(dims),
        block_size(size),
        n_tokens(tokens),
        n_blocks((tokens + size - 1) / size) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    k.resize(size_t(n_tokens) * d);
    v.resize(k.size());
    q.resize(size_t(g) * d);
    for (float& x : q) x = 2 * normal(random) / std::sqrt(float(d));
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    for (int i = 0; i < 12; ++i) {
      const int t = static_cast<int>(random() % tokens), h = static_cast<int>(random() % g);
      for (int j = 0; j < d; ++j) k[size_t(t) * d + j] += q[h * d + j] * std::sqrt(float(d)) * 0.4f;
    }
    shape.n_layers = shape.n_kv_heads = 1;
    shape.g = g;
    shape.layout = {block_size, d, type};
    shape.kernels = cpu::kernels(cpu::best_isa());
    const auto& attention = shape.kernels->attention;
    const int64_t stride = (mean ? 3 : 2) * d;
    const int full = n_blocks - 1;
    digests.resize(full * stride);
    for (int b = 0; b < n_blocks; ++b) {
      memory.emplace_back(shape.layout.bytes());
      std::byte* data = memory.back().as<std::byte>();
      std::fill_n(reinterpret_cast<uint16_t*>(data), shape.layout.bytes() / 2,
                  uint16_t(0x7e00));  // NaN beyond the end
      const int n = std::min(block_size, n_tokens - b * block_size);
      const size_t at = size_t(b) * block_size * d, count = size_t(n) * d;
      attention.kv_store(&k[at], count, type, data);
      attention.kv_store(&v[at], count, type, data + shape.layout.value_offset());
      attention.kv_load(data, count, type, &k[at]);
      attention.kv_load(data + shape.layout.value_offset(), count, type, &v[at]);
      blocks.push_back(data);
      if (b < full)
        factor.push_back(attention.digest_build(
            data, type, block_size, d, cpu::DigestKind::CuboidMean, mean, &digests[b * stride]));
    }
    keys = std::make_unique<Int4Keys>(shape);
    keys->add_blocks(0, 0, full, blocks.data());
    row = {q.data(),
           g,
           d,
           block_size,
           n_tokens,
           n_blocks,
           full,
           digests.data(),
           stride,
           factor.data(),
           shape.kernels};
    row.blocks = blocks.data();
    row.tail = blocks.back();
    row.type = type;
    row.state = keys.get();
  }

  double score(int h, int t) const {
    double dot = 0;
    for (int j = 0; j < d; ++j) dot += double(q[h * d + j]) * k[size_t(t) * d + j];
    return dot;
  }
  // Returns the score by the codes, in the layout of kernels/cpu/select/select.h; for the tail, by
  // its keys.
  double estimated(int h, int t) const {
    if (t / block_size >= row.n_full) return score(h, t);
    const auto* group = reinterpret_cast<const uint8_t*>(keys->block(0, 0, t / block_size)) +
                        t % block_size / 16 * cpu::int4_group_bytes(d);
    const auto* numbers = reinterpret_cast<const uint16_t*>(group + (d + 7) / 8 * 64);
    const double zero = double(cpu::f16_to_f32(numbers[t % 16])),
                 scale = double(cpu::f16_to_f32(numbers[16 + t % 16]));
    double dot = 0;
    for (int j = 0; j < d; ++j) {
      const int byte = group[j / 8 * 64 + t % 16 * 4 + j % 4];
      dot += double(q[h * d + j]) * (zero + scale * (j % 8 < 4 ? byte & 15 : byte >> 4));
    }
    return dot;
  }
  // Returns the softmax over tokens.
  std::vector<double> weights(const std::vector<int>& tokens,
                              const std::function<double(int)>& s) const {
    std::vector<double> w;
    double top = -1e300, sum = 0;
    for (const int t : tokens) top = std::max(top, s(t));
    for (const int t : tokens) w.push_back(std::exp(s(t) - top)), sum += w.back();
    for (double& x : w) x /= sum;
    return w;
  }
  std::vector<int> all() const {
    std::vector<int> tokens(n_tokens);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
  }
  Tokens forced(const Selection& s) const {
    Tokens out;
    RowPlan plan;
    plan.forced(row, s.sink_blocks, s.recent_blocks);
    for (int i = 0; i < plan.n_forced(); ++i) add(out, plan.at(i));
    return out;
  }
  void add(Tokens& out, int b) const {
    for (int t = b * block_size; t < std::min(n_tokens, (b + 1) * block_size); ++t) out.insert(t);
  }
};

Selection settings(BaseSelection base, float p) {
  Selection s;
  s.selector = SelectorKind::TWILIGHT;
  s.base = base;
  s.base_budget = 0.4f;
  s.top_p = p;
  s.sink_blocks = 1;
  s.recent_blocks = 1;
  s.microbatch = 4;
  s.epsilon = 0.9f;
  return s;
}

Tokens kept(const RowPlan& const_plan, const Scene& scene) {
  auto& plan = const_cast<RowPlan&>(const_plan);
  Tokens out;
  int last = -1;
  for (int i = 0; i < plan.size(); ++i) {
    const int b = plan.at(i);
    CHECK(b > last);
    last = b;
    for (int t = 0; t < scene.block_size; ++t)
      if (plan.mask(i) >> t & 1 && b * scene.block_size + t < scene.n_tokens)
        out.insert(b * scene.block_size + t);
  }
  CHECK(plan.tokens_read(scene.row, plan.size()) == int64_t(out.size()));
  return out;
}

Tokens select(const Selection& s, const Scene& scene, RowPlan* used = nullptr) {
  RowPlan own;
  RowPlan& plan = used ? *used : own;
  make_selector(s)->begin(scene.row, plan);
  return kept(plan, scene);
}

bool contains(const Tokens& big, const Tokens& small) {
  return std::includes(big.begin(), big.end(), small.begin(), small.end());
}

}  // namespace

TEST_CASE("Twilight keeps each head's top-p tokens by estimated weight, and the forced ones",
          "[twilight][arithmetic]") {
  for (const int g : {1, 4})
    for (const int d : {30, 64})
      for (const int block : {16, 32, 64})
        for (const KvType type : {KvType::F16, KvType::F32})
          for (const float p : {0.5f, 0.85f, 0.95f}) {
            CAPTURE(g, d, block, int(type), p);
            const Scene scene(g, 1500, g + d, d, block, type);
            const Selection s = settings(BaseSelection::ALL, p);
            const Tokens got = select(s, scene), forced = scene.forced(s);
            CHECK(contains(got, forced));
            std::vector<double> largest(scene.n_tokens,
                                        0);  // largest over heads of weight / the head's threshold
            for (int h = 0; h < g; ++h) {
              const auto w =
                  scene.weights(scene.all(), [&](int t) { return scene.estimated(h, t); });
              std::vector<double> sorted(w);
              std::sort(sorted.begin(), sorted.end(), std::greater<>());
              double sum = 0, threshold = 0;
              for (const double x : sorted) {
                threshold = x;
                if ((sum += x) >= double(p)) break;
              }
              for (int t = 0; t < scene.n_tokens; ++t)
                largest[t] = std::max(largest[t], w[t] / threshold);
            }
            size_t wanted = 0;
            for (int t = 0; t < scene.n_tokens; ++t) {
              if (forced.count(t)) continue;
              wanted += largest[t] >= 1;
              if (largest[t] > 1 + 1e-4) REQUIRE(got.count(t));  // nearer to 1 rounding decides
              if (largest[t] < 1 - 1e-4) REQUIRE(!got.count(t));
            }
            if (p > 0.8f) CHECK(wanted > 0);
            CHECK(wanted < size_t(scene.n_tokens));
          }
}

TEST_CASE("Twilight's plan counts what it read", "[twilight][arithmetic]") {
  const Scene scene(2, 1000, 1);  // 31 full blocks and 8 tokens
  RowPlan plan;
  select(settings(BaseSelection::ALL, 0.9f), scene, &plan);
  CHECK(plan.index_bytes == 31 * 32 * (64 / 2 + 4) + 8 * 64 * 2);
  select(settings(BaseSelection::TOPK, 0.9f), scene, &plan);
  // 13 of 32 blocks, the tail among them; the digests of all blocks except sink, window and tail.
  CHECK(plan.index_bytes == 12 * 32 * (64 / 2 + 4) + 8 * 64 * 2 + 29 * 64 * 2 * 2);
  select(settings(BaseSelection::ALL, 1), scene, &plan);
  CHECK(plan.index_bytes == 0);
}

TEST_CASE("Twilight with top_p 1 keeps all that the base proposes", "[twilight]") {
  const Scene scene(4, 2000, 2);
  CHECK(select(settings(BaseSelection::ALL, 1), scene).size() == 2000);
  for (const float budget : {0.01f, 0.1f, 0.4f, 1.f})
    for (const HeadRule gqa : {HeadRule::MEAN, HeadRule::SOFT_SUM, HeadRule::UNION}) {
      Selection s = settings(BaseSelection::TOPK, 1);
      s.base_budget = budget;
      s.gqa = gqa;
      const Tokens got = select(s, scene);
      s.selector = SelectorKind::TOPK;
      s.budget = budget;
      RowPlan plan;
      make_selector(s)->begin(scene.row, plan);
      Tokens expected;
      for (int i = 0; i < plan.size(); ++i) scene.add(expected, plan.at(i));
      CHECK(got == expected);
      s.selector = SelectorKind::TWILIGHT;
      s.top_p = 0.9f;
      CHECK(contains(expected, select(s, scene)));
    }
}

TEST_CASE("Twilight's base psa takes PSA's blocks by estimated masses", "[twilight][arithmetic]") {
  for (const StopRule stop : {StopRule::PAPER, StopRule::LAST, StopRule::BOUND, StopRule::VETO}) {
    size_t last = 0;
    bool early = false;
    const Scene scene(2, 3000, 3, 64, 32, KvType::F16, stop == StopRule::VETO);
    for (const float epsilon : {0.3f, 0.6f, 0.9f, 0.99f, 1.f}) {
      CAPTURE(int(stop), epsilon);
      Selection s = settings(BaseSelection::PSA, 1);
      s.stop = stop;
      s.epsilon = epsilon;
      const Tokens got = select(s, scene);
      // PSA itself, with the masses that the codes give.
      Tokens expected;
      s.selector = SelectorKind::PSA;
      const auto psa = make_selector(s);
      RowPlan plan;
      psa->begin(scene.row, plan);
      const auto mass = [&](int h, const Tokens& tokens) {
        double sum = 0;
        for (const int t : tokens) sum += std::exp(scene.estimated(h, t));
        return static_cast<float>(std::log(sum));
      };
      int at = 0;
      while (at < plan.n_forced()) scene.add(expected, plan.at(at++));
      while (at < plan.size()) {
        std::vector<float> l, l_blocks;
        int n = 0;
        for (; n < 4 && at < plan.size(); ++n) {
          Tokens block;
          scene.add(block, plan.at(at++));
          expected.insert(block.begin(), block.end());
          for (int h = 0; h < 2; ++h) l_blocks.push_back(mass(h, block));
        }
        for (int h = 0; h < 2; ++h) l.push_back(mass(h, expected));
        if (psa->done(scene.row, plan, at, l.data(), l_blocks.data(), n)) break;
      }
      CHECK(got == expected);
      CHECK(got.size() >= last);
      last = got.size();
      early |= got.size() < 3000;
      s = settings(BaseSelection::PSA, 0.8f);
      s.stop = stop;
      s.epsilon = epsilon;
      CHECK(contains(got, select(s, scene)));
    }
    CHECK(last == 3000);
    if (stop != StopRule::BOUND) CHECK(early);  // this rule's bound is loose
    Selection psa = settings(BaseSelection::PSA, 0.8f), all = settings(BaseSelection::ALL, 0.8f);
    psa.epsilon = 1;
    CHECK(select(psa, scene) == select(all, scene));
  }
}

TEST_CASE("Twilight reads the union of what its heads keep; one head is as multi-head attention",
          "[twilight][arithmetic]") {
  const Scene group(4, 1800, 4);
  const Selection s = settings(BaseSelection::ALL, 0.8f);
  Tokens together = group.forced(s), smallest;
  for (int h = 0; h < 4; ++h) {
    Scene one(4, 1800, 4);
    one.row.q += h * one.d;
    one.row.g = 1;
    const Tokens own = select(s, one);
    CHECK(contains(select(s, group), own));
    together.insert(own.begin(), own.end());
    if (h == 0) smallest = own;
  }
  CHECK(select(s, group) == together);
  CHECK(together.size() > smallest.size());
}

TEST_CASE("Twilight's sets are nested in top_p", "[twilight][arithmetic]") {
  const Scene scene(3, 1777, 5);
  for (const BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    Tokens last;
    for (const float p : {0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 0.95f, 0.99f, 1.f}) {
      const Tokens now = select(settings(base, p), scene);
      CHECK(contains(now, last));
      last = now;
    }
  }
}

TEST_CASE("What Twilight drops errs by the identity, and within the bounds, of dropped.h",
          "[twilight][arithmetic]") {
  for (const float p : {0.3f, 0.7f, 0.95f}) {
    const Scene scene(2, 1500, 6);
    RowPlan plan;
    CHECK(select(settings(BaseSelection::ALL, p), scene, &plan).size() < 1500);
    check_dropped(scene.row, plan);
  }
}

TEST_CASE("Twilight works on the shortest sequences and refuses keys it has no codes of",
          "[twilight][arithmetic]") {
  for (const int n : {1, 2, 31, 32, 33, 64, 65, 97})
    for (const BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
      CAPTURE(n, int(base));
      const Scene scene(2, n, 7);
      CHECK(select(settings(base, 1), scene).size() <= size_t(n));
      const Tokens some = select(settings(base, 0.5f), scene);
      CHECK(contains(some, scene.forced(settings(base, 0.5f))));
    }
  Scene scene(2, 300, 8);
  scene.keys->truncate(100);
  CHECK_THROWS_AS(select(settings(BaseSelection::ALL, 0.5f), scene), Error);
  scene.row.state = nullptr;
  CHECK_THROWS_AS(select(settings(BaseSelection::ALL, 0.5f), scene), Error);
}

namespace {

ContextOptions engine_options(BaseSelection base, float p) {
  ContextOptions o = options();
  o.n_ctx = 4096;
  o.n_threads = usual_threads();
  o.block_size = 32;
  o.selection = settings(base, p);
  return o;
}

}  // namespace

TEST_CASE("Twilight that keeps everything is dense attention", "[twilight][engine][arithmetic]") {
  const auto prompt = some_tokens(700, 7), steps = some_tokens(20, 8);
  ContextOptions dense = options();
  dense.n_ctx = 4096;
  dense.block_size = 32;
  dense.selection.selector = SelectorKind::DENSE;
  Runtime reference(dense);
  const auto expected = run(reference, reference.session(), prompt, steps);
  for (const BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    ContextOptions o = engine_options(base, 1);
    o.selection.base_budget = o.selection.epsilon = 1;
    Runtime r(o);
    CHECK(same_bits(run(r, r.session(), prompt, steps), expected));
  }
}

TEST_CASE("Twilight gives the same bits wherever the KV is, for any threads and chunks",
          "[twilight][engine][arithmetic]") {
  OneIn one(3);
  const auto prompt = some_tokens(1500, 7), steps = some_tokens(40, 8);
  for (const BaseSelection base : {BaseSelection::ALL, BaseSelection::TOPK, BaseSelection::PSA}) {
    if (one.skips()) continue;
    CAPTURE(int(base));
    Runtime reference(engine_options(base, 0.8f));
    const auto expected = run(reference, reference.session(), prompt, steps);
    std::map<std::string, ContextOptions> variants;
    const auto add = [&](const char* name, auto&& change) {
      change(variants[name] = engine_options(base, 0.8f));
    };
    add("three threads", [](auto& o) { o.n_threads = 3; });
    add("prefill in chunks of 100", [](auto& o) { o.prefill_chunk = 100; });
    add("emu, all slots", [](auto& o) { o.device = DeviceKind::EMU; });
    add("emu, fewest slots", [](auto& o) { o.device = DeviceKind::EMU, o.slots = 16 + 7; });
    for (const auto& [name, o] : variants) {
      INFO(name);
      Runtime r(o);
      CHECK(same_bits(run(r, r.session(), prompt, steps), expected));
    }
    {
      INFO("selected only after the prompt was read");
      ContextOptions o = engine_options(base, 0.8f);
      o.selection.selector = SelectorKind::DENSE;
      Runtime r(o);
      riffle_session* s = r.session(prompt);
      const Selection later = settings(base, 0.8f);
      r.check(set_selection(r.context, &later));
      std::vector<std::vector<float>> got{r.logits(s)};
      for (const int32_t t : steps) {
        r.check(riffle_step(r.context, &s, &t, 1));
        got.push_back(r.logits(s));
      }
      CHECK(same_bits(got, expected));
    }
    {
      INFO("cut back and read again");
      Runtime r(engine_options(base, 0.8f));
      riffle_session* s = r.session();
      const auto other = some_tokens(900, 9);
      std::vector<int32_t> start(prompt.begin(), prompt.begin() + 650);
      start.insert(start.end(), other.begin(), other.end());
      r.check(riffle_prefill(s, start.data(), start.size(), nullptr, nullptr));
      r.check(riffle_session_truncate(s, 650));
      r.check(riffle_prefill(s, prompt.data() + 650, prompt.size() - 650, nullptr, nullptr));
      std::vector<std::vector<float>> got{r.logits(s)};
      for (const int32_t t : steps) {
        r.check(riffle_step(r.context, &s, &t, 1));
        got.push_back(r.logits(s));
      }
      CHECK(same_bits(got, expected));
    }
    CHECK_FALSE(same_bits({expected.back()}, {expected.front()}));
  }
}
