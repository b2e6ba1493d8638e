// Selectors against brute force in float64, on synthetic keys: properties 3 to 5 and 8
// of src/select/README.md.
#include "select/selector.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "api/options.h"
#include "tests/option_text.h"
#include "tests/rounds.h"
#include "util/error.h"
#include "util/settings.h"

using namespace riffle;

namespace {

constexpr int kB = 32, kD = 64;

// Keys of one KV head, in f32, of which a few blocks matter; their digests; a query group.
struct Scene {
  int g, n_tokens, n_blocks;
  std::vector<float> keys, q;
  std::vector<uint16_t> digests;
  std::vector<float> factor;
  DigestSpec spec;
  Row row;

  Scene(int group, int tokens, unsigned seed, DigestSpec s, float sharpness = 1.0f)
      : g(group), n_tokens(tokens), n_blocks((tokens + kB - 1) / kB), spec(s) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    keys.resize(size_t(n_blocks) * kB * kD);
    q.resize(size_t(g) * kD);
    for (float& v : q) v = normal(random) * sharpness / std::sqrt(float(kD));
    for (float& v : keys) v = normal(random);
    for (int i = 0; i < 4; ++i) {  // needles: tokens that point along one head's query
      const int t = static_cast<int>(random() % tokens), h = static_cast<int>(random() % g);
      for (int j = 0; j < kD; ++j)
        keys[size_t(t) * kD + j] += q[h * kD + j] * std::sqrt(float(kD)) * 2 / sharpness;
    }
    const cpu::Kernels* k = cpu::kernels(cpu::Isa::Scalar);
    const int full = n_blocks - 1;
    const int64_t stride = int64_t(spec.vectors()) * kD;
    digests.resize(full * stride);
    factor.resize(full);
    for (int b = 0; b < full; ++b)
      factor[b] = k->attention.digest_build(&keys[size_t(b) * kB * kD], KvType::F32, kB, kD,
                                            spec.kind, spec.with_mean, &digests[b * stride]);
    row = {q.data(), g, kD, kB, n_tokens, n_blocks, full, digests.data(), stride, factor.data(), k};
  }

  // Returns the log-sum-exp of a block's scores for a head.
  double mass(int h, int b) const {
    double sum = 0, top = -1e300;
    std::vector<double> s;
    for (int t = b * kB; t < std::min((b + 1) * kB, n_tokens); ++t) {
      double dot = 0;
      for (int j = 0; j < kD; ++j) dot += double(q[h * kD + j]) * keys[size_t(t) * kD + j];
      s.push_back(dot);
      top = std::max(top, dot);
    }
    for (double x : s) sum += std::exp(x - top);
    return top + std::log(sum);
  }
  double mass(int h, const std::vector<int>& blocks) const {
    double sum = 0;
    for (int b : blocks) sum += std::exp(mass(h, b));
    return std::log(sum);
  }
  std::vector<int> all() const {
    std::vector<int> v(n_blocks);
    std::iota(v.begin(), v.end(), 0);
    return v;
  }
};

Selection settings(SelectorKind selector) {
  Selection s;
  s.selector = selector;
  s.microbatch = 4;
  s.budget = 0.25f;
  s.sink_blocks = 1;
  s.recent_blocks = 2;
  return s;
}

// Runs a selector as a backend does, with exact masses. Returns the blocks read, in order.
std::vector<int> read_blocks(const Selector& selector, const Scene& scene) {
  RowPlan plan;
  selector.begin(scene.row, plan);
  std::vector<int> read;
  const int m = selector.microbatch();
  if (m == 0) {
    for (int i = 0; i < plan.size(); ++i) read.push_back(plan.at(i));
    return read;
  }
  for (int i = 0; i < plan.n_forced(); ++i) read.push_back(plan.at(i));
  while (static_cast<int>(read.size()) < plan.size()) {
    const int n = std::min(m, plan.size() - static_cast<int>(read.size()));
    std::vector<float> l_blocks, l;
    for (int i = 0; i < n; ++i) {
      const int b = plan.at(static_cast<int>(read.size()));
      read.push_back(b);
      for (int h = 0; h < scene.g; ++h) l_blocks.push_back(static_cast<float>(scene.mass(h, b)));
    }
    for (int h = 0; h < scene.g; ++h) l.push_back(static_cast<float>(scene.mass(h, read)));
    if (selector.done(scene.row, plan, static_cast<int>(read.size()), l.data(), l_blocks.data(), n))
      break;
  }
  return read;
}

double coverage(const Scene& scene, int h, const std::vector<int>& read) {
  return std::exp(scene.mass(h, read) - scene.mass(h, scene.all()));
}

}  // namespace

TEST_CASE("dense reads every block in order", "[select]") {
  const Scene scene(4, 1000, 1, {});
  CHECK(read_blocks(*make_selector(settings(SelectorKind::DENSE)), scene) == scene.all());
  auto s = settings(SelectorKind::PSA);
  s.epsilon = 1;
  CHECK(read_blocks(*make_selector(s), scene) == scene.all());
}

TEST_CASE("every selector reads the forced blocks, each block once, within its budget",
          "[select]") {
  for (int tokens : {1, 31, 32, 33, 64, 100, 129, 2000})
    for (SelectorKind kind : {SelectorKind::PSA, SelectorKind::TOPK}) {
      INFO("tokens " << tokens << " selector " << kind);
      const Scene scene(2, tokens, 3, {});
      const auto read = read_blocks(*make_selector(settings(kind)), scene);
      const std::set<int> set(read.begin(), read.end());
      CHECK(set.size() == read.size());
      CHECK(set.count(0));
      for (int b = std::max(0, scene.n_blocks - 3); b < scene.n_blocks; ++b) CHECK(set.count(b));
      CHECK(*set.rbegin() < scene.n_blocks);
      if (kind == SelectorKind::TOPK) {
        const int budget =
            std::min(scene.n_blocks, static_cast<int>(std::ceil(0.25 * tokens / kB)));
        CHECK(static_cast<int>(read.size()) == std::max(budget, std::min(scene.n_blocks, 4)));
      }
    }
}

TEST_CASE("blocks are ranked by the combined score of their digests", "[select]") {
  for (BlockDigest digest : {BlockDigest::MEAN, BlockDigest::QUEST, BlockDigest::CUBOID_MEAN})
    for (HeadRule gqa : {HeadRule::MEAN, HeadRule::SOFT_SUM, HeadRule::UNION})
      for (int g : {1, 4}) {
        INFO("digest " << digest << " gqa " << gqa << " g " << g);
        auto s = settings(SelectorKind::TOPK);
        s.digest = digest;
        s.gqa = gqa;
        const Scene scene(g, 1500, 11, digest_spec(s));
        // Scores by the formula, in float64, from the f16 digests.
        const int first = 1, n = scene.n_blocks - 1 - 2 - 1;
        std::vector<std::vector<double>> score(g, std::vector<double>(n));
        std::vector<float> v(2 * kD);
        for (int i = 0; i < n; ++i) {
          scene.row.kernels->attention.kv_load(
              &scene.digests[(first + i) * scene.row.digest_stride], 2 * kD, KvType::F16, v.data());
          for (int h = 0; h < g; ++h)
            for (int j = 0; j < kD; ++j)
              score[h][i] += double(scene.q[h * kD + j]) * v[j] +
                             std::fabs(double(scene.q[h * kD + j])) * v[kD + j];
        }
        std::vector<double> combined(n, gqa == HeadRule::UNION ? -1e300 : 0.0);
        for (int h = 0; h < g; ++h) {
          if (gqa == HeadRule::MEAN)
            for (int i = 0; i < n; ++i) combined[i] += score[h][i] / g;
          if (gqa == HeadRule::SOFT_SUM) {
            double sum = 0;
            for (double x : score[h]) sum += std::exp(x);
            for (int i = 0; i < n; ++i) combined[i] += std::exp(score[h][i]) / sum;
          }
          if (gqa == HeadRule::UNION)
            for (int i = 0; i < n; ++i) {
              int rank = 0;
              for (int o = 0; o < n; ++o)
                rank += score[h][o] > score[h][i] || (score[h][o] == score[h][i] && o < i);
              combined[i] = std::max(combined[i], -double(rank));
            }
        }
        s.budget = 1;
        const auto read = read_blocks(*make_selector(s), scene);
        REQUIRE(static_cast<int>(read.size()) == scene.n_blocks);
        for (size_t i = 5; i < read.size(); ++i) {
          const double before = combined[read[i - 1] - first], after = combined[read[i] - first];
          CHECK(before >= after - 1e-5 * std::max(1.0, std::fabs(after)));
        }
      }
}

TEST_CASE("psa reads no fewer blocks for a larger epsilon, in every stop mode", "[select]") {
  riffle::test::OneIn one(3);
  for (StopRule stop : {StopRule::PAPER, StopRule::LAST, StopRule::BOUND, StopRule::VETO})
    for (unsigned seed = 0; seed < 5; ++seed) {
      if (one.skips()) continue;
      size_t last = 0;
      for (float epsilon : {0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 0.95f, 0.99f, 0.999f, 1.0f}) {
        auto s = settings(SelectorKind::PSA);
        s.stop = stop;
        s.epsilon = epsilon;
        const Scene scene(4, 3000, seed, digest_spec(s), 3.0f);
        const size_t n = read_blocks(*make_selector(s), scene).size();
        CHECK(n >= last);
        last = n;
      }
    }
}

TEST_CASE("psa stops by the rule of its mode and not a microbatch later", "[select]") {
  for (StopRule stop : {StopRule::PAPER, StopRule::LAST})
    for (unsigned seed = 0; seed < 10; ++seed) {
      auto s = settings(SelectorKind::PSA);
      s.stop = stop;
      const int g = 2;
      const Scene scene(g, 4000, seed, digest_spec(s), 6.0f);
      const auto read = read_blocks(*make_selector(s), scene);
      const int forced = 4;
      // Replays the printed algorithm with plain sums of exponentials.
      std::vector<double> acc(g, 0), least(g, 1e300);
      for (int i = 0; i < forced; ++i)
        for (int h = 0; h < g; ++h) acc[h] += std::exp(scene.mass(h, read[i]));
      const int n_ranked = scene.n_blocks - forced;
      int at = forced;
      bool done = false;
      while (!done && at < scene.n_blocks) {
        REQUIRE(at < static_cast<int>(read.size()));
        std::vector<double> largest(g, 0);
        const int end = std::min(at + 4, scene.n_blocks);
        for (; at < end; ++at)
          for (int h = 0; h < g; ++h) {
            const double mass = std::exp(scene.mass(h, read[at]));
            acc[h] += mass;
            least[h] = std::min(least[h], mass);
            largest[h] = std::max(largest[h], mass);
          }
        const int left = n_ranked - (at - forced);
        done = true;
        for (int h = 0; h < g; ++h) {
          const double each = stop == StopRule::PAPER ? least[h] : largest[h];
          done = done && (left == 0 || acc[h] / (acc[h] + each * left) > 0.9);
        }
      }
      CHECK(at == static_cast<int>(read.size()));
    }
}

TEST_CASE("BOUND covers at least epsilon for every head, whatever the ranking", "[select]") {
  for (BlockDigest digest : {BlockDigest::QUEST, BlockDigest::CUBOID_MEAN})
    for (HeadRule gqa : {HeadRule::MEAN, HeadRule::SOFT_SUM, HeadRule::UNION})
      for (unsigned seed = 0; seed < 4; ++seed)
        for (float epsilon : {0.5f, 0.9f, 0.99f}) {
          auto s = settings(SelectorKind::PSA);
          s.digest = digest;
          s.gqa = gqa;
          s.stop = StopRule::BOUND;
          s.epsilon = epsilon;
          const Scene scene(4, 2000, seed, digest_spec(s), 8.0f);
          const auto read = read_blocks(*make_selector(s), scene);
          for (int h = 0; h < scene.g; ++h) CHECK(coverage(scene, h, read) >= epsilon - 1e-5);
        }
}

TEST_CASE("VETO never stops where Jensen's bound says that too little is covered", "[select]") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    auto paper = settings(SelectorKind::PSA), veto = paper;
    veto.stop = StopRule::VETO;
    const Scene scene(4, 3000, seed, digest_spec(veto), 5.0f);
    const auto a = read_blocks(*make_selector(paper), scene),
               b = read_blocks(*make_selector(veto), scene);
    CHECK(b.size() >= a.size());
    if (b.size() == static_cast<size_t>(scene.n_blocks)) continue;
    // Lower bound of the unread blocks: log n_b + q.mean.
    const std::set<int> read(b.begin(), b.end());
    for (int h = 0; h < scene.g; ++h) {
      double left = 0;
      for (int blk = 0; blk < scene.n_blocks; ++blk) {
        if (read.count(blk)) continue;
        double dot = 0;
        for (int t = blk * kB; t < (blk + 1) * kB; ++t)
          for (int j = 0; j < kD; ++j)
            dot += double(scene.q[h * kD + j]) * scene.keys[size_t(t) * kD + j] / kB;
        left += kB * std::exp(dot);
      }
      const double covered = std::exp(scene.mass(h, b));
      CHECK(covered / (covered + left) > 0.9 - 2e-3);  // means are kept in f16
    }
  }
}

TEST_CASE("selection settings out of range are refused by name", "[select]") {
  const auto refused = [](auto&& change, const char* field) {
    auto s = settings(SelectorKind::PSA);
    change(s);
    try {
      check_selection(s);
    } catch (const Error& e) {
      CHECK(e.status() == RIFFLE_BAD_ARGUMENT);
      CHECK(std::string(e.what()).find(field) != std::string::npos);
      return;
    }
    FAIL("accepted a bad " << field);
  };
  refused([](auto& s) { s.selector = static_cast<SelectorKind>(99); }, "selector");
  refused([](auto& s) { s.epsilon = 0; }, "epsilon");
  refused([](auto& s) { s.epsilon = 1.5f; }, "epsilon");
  refused([](auto& s) { s.epsilon = std::nanf(""); }, "epsilon");
  refused([](auto& s) { s.microbatch = 0; }, "microbatch");
  refused([](auto& s) { s.budget = -1; }, "budget");
  refused([](auto& s) { s.budget = std::nanf(""); }, "budget");
  refused([](auto& s) { s.sink_blocks = -1; }, "sink-blocks");
  refused([](auto& s) { s.recent_blocks = -1; }, "recent-blocks");
  refused([](auto& s) { s.dense_layers = -1; }, "dense-layers");
  refused([](auto& s) { s.lookahead = 9; }, "lookahead");
  refused([](auto& s) { s.top_p = 0; }, "top-p-attn");
  refused([](auto& s) { s.top_p = 1.01f; }, "top-p-attn");
  refused([](auto& s) { s.top_p = std::nanf(""); }, "top-p-attn");
  refused([](auto& s) { s.base = static_cast<BaseSelection>(3); }, "base");
  refused([](auto& s) { s.base_budget = 0; }, "base-budget");
  refused([](auto& s) { s.share = 1; }, "share");
  refused([](auto& s) { s.share = -0.1f; }, "share");
  refused([](auto& s) { s.select_tokens = 0; }, "select-tokens");
  refused([](auto& s) { s.init_tokens = -1; }, "init-tokens");
  refused([](auto& s) { s.local_tokens = 0; }, "local-tokens");
  refused([](auto& s) { s.vote = static_cast<VoteRule>(3); }, "vote");
  refused([](auto& s) { s.cache_threshold = -1.5f; }, "cache-threshold");
  refused([](auto& s) { s.cache_threshold = 2.5f; }, "cache-threshold");
  refused([](auto& s) { s.positions = static_cast<PositionRule>(2); }, "positions");
  refused([](auto& s) { s.top_tokens = 0; }, "top-tokens");
  refused([](auto& s) { s.alpha = -1; }, "alpha");
  refused([](auto& s) { s.decay = 1; }, "decay");
  refused([](auto& s) { s.bypass = 0; }, "bypass");
  refused([](auto& s) { s.stop = StopRule::BOUND, s.digest = BlockDigest::MEAN; }, "stop");
}

// Tries values on either side of the ends of each range in the table: the library and the C
// interface refuse the same values.
TEST_CASE(
    "each setting is taken up to the ends of its range, and refused beyond by name, value and "
    "range",
    "[select]") {
  int fields = 0;
  std::set<size_t> offsets;
  for (const Setting& f : riffle::settings()) {
    if (f.options != OptionsKind::SELECTION) continue;
    ++fields;
    offsets.insert(f.offset);
    INFO(f.id << ": " << f.range);
    const bool whole = f.type == MemberType::INT32;
    const auto check = [&](double v) {
      Selection s;
      char* at = reinterpret_cast<char*>(&s) + f.offset;
      const auto i = static_cast<int32_t>(v);
      const auto x = static_cast<float>(v);
      std::memcpy(at, whole ? static_cast<const void*>(&i) : &x, 4);
      if (v == v) CHECK(setting_value(f, &s) == (whole ? double(i) : double(x)));
      try {
        check_selection(s);
      } catch (const Error& e) {
        return std::string(e.what());
      }
      return std::string();
    };
    const auto next = [&](double v, int way) {
      return whole ? v + way : double(std::nextafter(static_cast<float>(v), way * 3e38f));
    };
    const auto refused = [&](double v) {
      const std::string text = check(v);
      CHECK(text.find(std::string(f.name) + " is ") == 0);
      CHECK(text.find(std::string("expected ") + f.range) != std::string::npos);
      Selection s;
      const double held = setting_value(f, &s);
      const std::string given = whole ? format("%.0f", v) : format("%.9g", v);
      CHECK_THROWS_AS(set_setting_text(f, &s, given), Error);
      CHECK(setting_value(f, &s) == held);
    };
    CHECK(f.low < f.high);
    refused(next(f.low, -1));
    refused(next(f.high, 1));
    if (f.above_low) refused(f.low);
    CHECK(check(f.above_low ? next(f.low, 1) : f.low).empty());
    if (f.below_high) refused(f.high);
    CHECK(check(f.below_high || !whole ? next(f.high, -1) : f.high).empty());
    if (!whole) refused(std::nan(""));
    CHECK(f.selectors != 0);
    CHECK((f.bases != 0) == ((f.selectors >> int(SelectorKind::TWILIGHT) & 1) != 0));
  }
  // Every member is in the table, each at its own offset: all members have 4 bytes.
  CHECK(sizeof(Selection) == 4 * size_t(fields));
  CHECK(offsets.size() == size_t(fields));
}

TEST_CASE("defaults of all options lie in the ranges of the table, and names are unique",
          "[select]") {
  const riffle_options defaults;
  std::set<std::string> ids, names, flags;
  for (const Setting& f : riffle::settings()) {
    INFO(f.id);
    riffle_options other;
    const std::string text = setting_text(f, defaults.part(f.options));
    if (f.type != MemberType::TEXT)
      CHECK(setting_allows(f, setting_value(f, defaults.part(f.options))));
    set_setting_text(f, other.part(f.options), text);
    CHECK(setting_text(f, other.part(f.options)) == text);
    CHECK(ids.insert(f.id).second);
    CHECK(names.insert(f.name).second);
    CHECK(setting_named(f.name) == &f);
    if (*f.help) CHECK(flags.insert(f.flag).second);
  }
  const Selection selection;
  CHECK(selection.epsilon == 0.9f);
  CHECK(selection.share == 0.002f);
  CHECK(ContextOptions().block_size == 16);
  CHECK(SchedulerOptions().working_set_steps == 0);
}

TEST_CASE("a setting out of its range is shown with all its digits", "[select]") {
  SchedulerOptions o;
  o.max_inject_tokens = (int64_t{1} << 53) + 1;
  std::string text;
  try {
    check_settings(OptionsKind::SCHEDULER, &o);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(text ==
        "scheduler options: max-inject-tokens is 9007199254740993, expected 0 to 1099511627776");
}

TEST_CASE("texts call settings as the caller does", "[select]") {
  const auto flag = [](const char* id) -> const char* {
    return std::string(id) == "gpu-mem" ? "--gpu-mem" : nullptr;
  };
  CHECK(name_settings("`gpu_mem` is 1, and `slots` 2", flag) == "--gpu-mem is 1, and slots 2");
  CHECK(name_settings("`selection.epsilon`", nullptr) == "epsilon");
  CHECK(name_settings("a ` in `file` of `n_ctx", flag) == "a ` in `file` of `n_ctx");
  CHECK(name_settings("`file` `gpu_mem`", flag) == "`file` --gpu-mem");
  const Error e(RIFFLE_BAD_ARGUMENT, "`gpu_mem` is short", Error::Text::NAMES_SETTINGS);
  CHECK(std::string(e.what()) == "gpu-mem is short");
  CHECK(e.text(flag) == "--gpu-mem is short");
  const std::string file = "a`slots`.gguf";
  try {
    fail(RIFFLE_IO, "%s: not there", file.c_str());
  } catch (const Error& plain) {
    CHECK(plain.text(flag) == "a`slots`.gguf: not there");
    CHECK(std::string(plain.what()) == "a`slots`.gguf: not there");
  }
}

TEST_CASE("settings that the table keeps from a selector change nothing of its plan", "[select]") {
  const Scene scene(4, 900, 3, {});
  for (const SelectorKind kind : {SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK}) {
    Selection s = settings(kind);
    const std::vector<int> want = read_blocks(*make_selector(s), scene);
    for (const Setting& f : riffle::settings()) {
      if (f.options != OptionsKind::SELECTION) continue;
      const bool whole = f.type == MemberType::INT32;
      if (f.selectors >> int(kind) & 1 || f.offset == offsetof(Selection, digest)) continue;
      INFO("selector " << kind << ", " << f.id);
      Selection other = s;
      char* at = reinterpret_cast<char*>(&other) + f.offset;
      const double held = setting_value(f, &s);
      const double v = held == f.low ? f.low + 1 : (f.low + held) / 2;
      const auto i = static_cast<int32_t>(whole ? std::max(f.low, std::floor(v)) : 0);
      const auto x = static_cast<float>(v);
      std::memcpy(at, whole ? static_cast<const void*>(&i) : &x, 4);
      CHECK(read_blocks(*make_selector(other), scene) == want);
    }
  }
}
