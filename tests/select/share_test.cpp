// The share selector against float64: it reads the blocks that hold a share of some head's weight,
// and no other blocks.
#include <catch2/catch.hpp>
#include <cmath>
#include <random>
#include <set>

#include "select/int4_keys.h"
#include "select/selector.h"
#include "tests/engine/steps.h"
#include "tests/select/coded_scene.h"
#include "tests/select/dropped.h"
#include "tests/select/plan_row.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;
using riffle::test::plan_row;
using riffle::test::run;
using riffle::test::same_bits;

namespace {

Selection settings(float share) {
  Selection s;
  s.selector = SelectorKind::SHARE;
  s.share = share;
  return s;
}

std::vector<int> read_blocks(const Selection& s, const CodedScene& scene) {
  RowPlan plan;
  plan_row(*make_selector(s), scene.row, plan);
  std::vector<int> read;
  for (int i = 0; i < plan.size(); ++i) read.push_back(plan.at(i));
  return read;
}

ContextOptions engine_options(float share) {
  ContextOptions o = riffle::test::options();
  o.n_ctx = 4096;
  o.selection = settings(share);
  return o;
}

}  // namespace

TEST_CASE("share reads the blocks that hold a share of some head's weight",
          "[select][share][arithmetic]") {
  for (int g : {1, 3, 4, 8})
    for (int tokens : {1, 31, 32, 33, 150, 1000, 5000})
      for (float share : {0.003f, 0.01f, 0.05f}) {
        CodedScene scene(g, tokens, static_cast<unsigned>(17 * tokens + g));
        INFO("g " << g << " tokens " << tokens << " share " << share);
        const std::vector<int> read = read_blocks(settings(share), scene);
        const std::set<int> set(read.begin(), read.end());
        CHECK(set.size() == read.size());
        const std::vector<double> shares = scene.shares();
        const int full = scene.n_blocks - 1, sinks = std::min(1, full),
                  window = std::min(2, full - sinks);
        for (int b = 0; b < scene.n_blocks; ++b) {
          INFO("block " << b << " holds " << shares[b]);
          if (b < sinks || b >= full - window) CHECK(set.count(b) == 1);
          else if (shares[b] > 1.3 * share) CHECK(set.count(b) == 1);
          else if (shares[b] < share / 1.3) CHECK(set.count(b) == 0);
        }
        // The most critical block comes first.
        for (size_t i = sinks + window + 2; i < read.size(); ++i)
          CHECK(shares[read[i - 1]] > shares[read[i]] / 3);
      }
}

TEST_CASE("the share falls in contexts beyond 1,024 blocks", "[select][share][arithmetic]") {
  CodedScene scene(2, 2048 * kB, 7);
  const std::vector<double> shares = scene.shares();
  std::vector<double> sorted(shares.begin() + 1, shares.end() - 3);
  std::sort(sorted.rbegin(), sorted.rend());
  const auto share =
      static_cast<float>(sorted[4] / 0.75);  // so the fifth block holds three quarters of it
  const std::vector<int> read = read_blocks(settings(share), scene);
  const std::set<int> set(read.begin(), read.end());
  int between =
      0;  // blocks above half of the share, which counts for 2,048 blocks, but below the share
  for (int b = 1; b < scene.n_blocks - 3; ++b) {
    INFO("block " << b << " holds " << shares[b]);
    if (shares[b] > 1.3 * share / 2) CHECK(set.count(b) == 1);
    if (shares[b] < share / 2 / 1.3) CHECK(set.count(b) == 0);
    between += shares[b] > 1.3 * share / 2 && shares[b] < share / 1.3;
  }
  CHECK(between > 0);
}

TEST_CASE("share knows what it leaves unread, and the mean value that stands for it",
          "[select][share][arithmetic]") {
  for (int g : {1, 4})
    for (int tokens : {150, 1000, 20000}) {
      const CodedScene scene(g, tokens, static_cast<unsigned>(tokens + g));
      INFO("g " << g << " tokens " << tokens);
      RowPlan plan;
      plan_row(*make_selector(settings(0.01f)), scene.row, plan);
      std::vector<bool> read(scene.n_blocks);
      for (int i = 0; i < plan.size(); ++i) read[plan.at(i)] = true;
      if (plan.size() == scene.n_blocks) {
        CHECK(plan.unread.empty());
        continue;
      }
      REQUIRE(plan.unread.size() == size_t(g));
      for (int h = 0; h < g; ++h) {
        double all = 0, unread = 0;
        for (int t = 0; t < tokens; ++t) {
          double dot = 0;
          for (int j = 0; j < kD; ++j)
            dot += double(scene.q[h * kD + j]) * const_cast<CodedScene&>(scene).key(t)[j];
          all += std::exp(dot);
          if (!read[t / kB]) unread += std::exp(dot);
        }
        CHECK(plan.unread[h] == Approx(unread / all).margin(0.02));
      }
      // The mean of at most 256 blocks' mean values, each rounded to f16.
      const int n_full = scene.n_blocks - 1, stride = (n_full + 255) / 256;
      std::vector<double> mean(kD);
      int n = 0;
      for (int b = stride - 1; b < n_full; b += stride, ++n)
        for (int t = 0; t < kB; ++t)
          for (int j = 0; j < kD; ++j)
            mean[j] += scene.keys[(size_t(b) * 2 * kB + kB + t) * kD + j] / kB;
      REQUIRE(plan.mean_value.size() == size_t(kD));
      for (int j = 0; j < kD; ++j) CHECK(plan.mean_value[j] == Approx(mean[j] / n).margin(1e-3));
    }
}

TEST_CASE("plans by codes do not depend on the order of parts",
          "[select][share][rank][invariance][arithmetic]") {
  for (const int g : {1, 4})
    for (const int tokens : {2048 + 52, 4096 + 33, 4096 + 64, 9000}) {
      const CodedScene scene(g, tokens, static_cast<unsigned>(3 * tokens + g));
      const auto selectors = here({SelectorKind::SHARE, SelectorKind::PSA, SelectorKind::TOPK});
      for (const SelectorKind selector : selectors) {
        INFO("g " << g << " tokens " << tokens << " selector " << selector);
        Selection s = settings(0.01f);
        s.selector = selector;
        s.rank = RankBy::CODES;
        const auto made = make_selector(s);
        RowPlan forwards, backwards, probe;
        CHECK(made->prepare(scene.row, probe) > 1);
        plan_row(*made, scene.row, forwards);
        plan_row(*made, scene.row, backwards, true);
        REQUIRE(forwards.size() == backwards.size());
        for (int i = 0; i < forwards.size(); ++i) REQUIRE(forwards.at(i) == backwards.at(i));
        CHECK(forwards.scores == backwards.scores);
        CHECK(forwards.unread == backwards.unread);
        CHECK(forwards.index_bytes == backwards.index_bytes);
      }
    }
}

TEST_CASE("the mean value follows blocks that go and come", "[select][share][arithmetic]") {
  const CodedScene one(1, 3000, 8), other(1, 3000, 9);
  Int4Keys& keys = *one.codes;
  const auto mean = [](Int4Keys& of, int n) {
    const float* m = of.mean_value(0, 0, n);
    return std::vector<float>(m, m + kD);
  };
  const int n = one.n_blocks - 1;
  const std::vector<float> before = mean(keys, n);
  CHECK(before == mean(keys, n));
  CHECK(before != mean(*other.codes, n));
  keys.truncate(0);
  keys.add_blocks(0, 0, n, other.blocks.data());
  CHECK(mean(keys, n) == mean(*other.codes, n));
  CHECK(mean(keys, n / 2) == mean(*other.codes, n / 2));
}

TEST_CASE("share reads more for a smaller share, and everything for none",
          "[select][share][arithmetic]") {
  CodedScene scene(4, 3000, 5);
  std::set<int> before;
  for (float share : {0.2f, 0.05f, 0.01f, 0.002f, 0.0f}) {
    const std::vector<int> read = read_blocks(settings(share), scene);
    const std::set<int> now(read.begin(), read.end());
    for (int b : before) CHECK(now.count(b) == 1);
    before = now;
  }
  CHECK(static_cast<int>(before.size()) == scene.n_blocks);
}

TEST_CASE("what share drops errs by the identity and within the bounds of dropped.h",
          "[select][share][arithmetic]") {
  for (const float share : {0.02f, 0.05f, 0.1f}) {
    INFO("share " << share);
    const CodedScene scene(2, 1500, 6);
    RowPlan plan;
    plan_row(*make_selector(settings(share)), scene.row, plan);
    CHECK(plan.size() < scene.n_blocks);
    riffle::test::check_dropped(scene.row, plan);
  }
}

TEST_CASE("share reads the union of what its heads keep; one head is as multi-head attention",
          "[select][share][arithmetic]") {
  const CodedScene group(4, 1800, 4);
  const Selection s = settings(0.05f);
  const auto read = [&](const CodedScene& scene) {
    const std::vector<int> blocks = read_blocks(s, scene);
    return std::set<int>(blocks.begin(), blocks.end());
  };
  std::set<int> together;
  size_t most = 0;
  for (int h = 0; h < 4; ++h) {
    CodedScene one(4, 1800, 4);
    one.row.q += h * kD;
    one.row.g = 1;
    const std::set<int> own = read(one);
    most = std::max(most, own.size());
    together.insert(own.begin(), own.end());
    // Plans attention with one query head per KV head, from a scene that never had more.
    CodedScene alone(4, 1800, 4);
    const std::vector<float> q(alone.q.begin() + h * kD, alone.q.begin() + (h + 1) * kD);
    alone.g = alone.row.g = 1;
    alone.q = q;
    alone.row.q = alone.q.data();
    const std::vector<double> shares = alone.shares();
    for (int b = s.sink_blocks; b < alone.row.n_full - s.recent_blocks; ++b)
      if (std::fabs(shares[b] - double(s.share)) > 0.2 * double(s.share))
        CHECK((shares[b] > double(s.share)) == (own.count(b) > 0));
  }
  CHECK(read(group) == together);
  CHECK(together.size() > most);
}

TEST_CASE("share: the same bits for any pool and threads; dense for a share of none",
          "[select][share][invariance][arithmetic]") {
  const auto prompt = riffle::test::some_tokens(900, 3), steps = riffle::test::some_tokens(30, 4);
  std::vector<std::vector<float>> reference;
  for (int variant = 0; variant < 4; ++variant) {
    ContextOptions o = engine_options(0.02f);
    o.n_threads = variant == 1 ? 2 : 1;
    if (variant == 2) o.device = DeviceKind::EMU, o.slots = 120;
    if (variant == 3) o.device = DeviceKind::EMU, o.slots = 2000, o.n_threads = 3;
    INFO("variant " << variant);
    riffle::test::Runtime r(o);
    const auto got = run(r, r.session(), prompt, steps);
    if (variant == 0) reference = got;
    CHECK(same_bits(got, reference));
  }
  ContextOptions o = engine_options(0);
  o.kv_type = KvKind::F32;
  riffle::test::Runtime all(o);
  o.selection.selector = SelectorKind::DENSE;
  riffle::test::Runtime dense(o);
  const auto a = run(all, all.session(), prompt, steps),
             b = run(dense, dense.session(), prompt, steps);
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j) {
      const double diff = std::fabs(a[i][j] - b[i][j]);
      if (!(diff <= worst)) worst = diff;
    }
  // The order of sums differs, and decode may round the results to other 16-bit integers.
  CHECK(worst <= 5e-3);
  const Stats stats = all.stats();
  CHECK(stats.kv_tokens_read == stats.kv_tokens_total);
}

TEST_CASE("share can begin in the middle of a session, and go back",
          "[select][share][arithmetic]") {
  const auto prompt = riffle::test::some_tokens(700, 6), steps = riffle::test::some_tokens(40, 7);
  riffle::test::Runtime straight(engine_options(0.02f));
  const auto want = run(straight, straight.session(), prompt, steps);
  ContextOptions o = engine_options(0.02f);
  o.selection.selector = SelectorKind::DENSE;
  riffle::test::Runtime r(o);
  riffle_session* s = r.session(prompt);
  const Selection selection = settings(0.02f);
  for (int round = 0; round < 2; ++round) {  // the second time after a truncation
    r.check(set_selection(r.context, &selection));
    for (size_t i = 0; i < steps.size(); ++i) {
      r.check(riffle_step(r.context, &s, &steps[i], 1));
      CHECK(same_bits({r.logits(s)}, {want[i + 1]}));
    }
    r.check(riffle_session_truncate(s, prompt.size()));
  }
}
