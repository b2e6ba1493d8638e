// The share selector against float64: it reads the blocks that hold a share of some head's weight,
// and samples of the others.
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

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

// The blocks that a plan reads for their weight, forced ones included, and its samples.
struct Read {
  std::vector<int> ranked, samples;
  std::vector<double> factors;  // number of times that each sample counts
  explicit Read(const Selection& s, const CodedScene& scene) {
    RowPlan plan;
    plan_row(*make_selector(s), scene.row, plan);
    for (int i = 0; i < plan.size(); ++i) {
      if (i < plan.size() - plan.n_sampled()) {
        CHECK(plan.log_weight(i) == 0);
        ranked.push_back(plan.at(i));
        continue;
      }
      samples.push_back(plan.at(i));
      factors.push_back(std::exp(double(plan.log_weight(i))));
    }
  }
  std::set<int> set() const { return {ranked.begin(), ranked.end()}; }
};

// The estimate that is expected of a block's mass, and the largest error. A residual r (a key less
// its block's mean) is coded as r' with |r - r'|^2 about 0.135 |r|^2, and r' r = |r|^2, by the
// choice of the scale. So a score q.r is right on average, with a standard deviation of about
// sqrt(0.135) |q| |r| / sqrt(d).
struct Expected {
  double log_mass = 0, tolerance = 0;
  Expected(const CodedScene& scene, int h, int b) {
    const int first = b * kB, n = scene.row.tokens_in(b);
    std::vector<double> mean(kD);
    for (int t = 0; t < n; ++t)
      for (int j = 0; j < kD; ++j) mean[j] += double(scene.key(first + t)[j]) / n;
    double norm = 0, exact = 0, sum = 0, variance = 0, curve = 0;
    for (int j = 0; j < kD; ++j) norm += double(scene.row.q[h * kD + j]) * scene.row.q[h * kD + j];
    std::vector<double> weight(n), deviation(n);
    for (int t = 0; t < n; ++t) {
      const bool coded = b < scene.row.n_full;
      double square = 0;
      for (int j = 0; j < kD; ++j) {
        const double r = double(scene.key(first + t)[j]) - mean[j];
        square += r * r;
      }
      const double score = scene.score(h, first + t);
      exact += std::exp(score);
      sum += weight[t] = std::exp(score);
      deviation[t] = coded ? std::sqrt(0.135 * norm * square / kD) : 0;
    }
    for (int t = 0; t < n; ++t) {
      const double x = weight[t] / sum * deviation[t];
      variance += x * x;
      curve += weight[t] / sum * deviation[t] * deviation[t] / 2;
    }
    log_mass = std::log(sum);
    tolerance = 4.5 * std::sqrt(variance) + curve + 0.05;
  }
};

// Checks that blocks are read for their weight if even the least estimate of it reaches the share,
// and are not if even the largest does not, and counts both kinds.
struct Decided {
  int read = 0, unread = 0;
  Decided(const CodedScene& scene, double share, const std::set<int>& ranked) {
    const int sinks = std::min(1, scene.row.n_full), window = std::min(2, scene.row.n_full - sinks);
    std::vector<double> least(scene.n_blocks), most(scene.n_blocks);
    for (int h = 0; h < scene.row.g; ++h) {
      std::vector<Expected> blocks;
      double all = 0, low = 0, high = 0;
      for (int b = 0; b < scene.n_blocks; ++b) blocks.emplace_back(scene, h, b);
      for (const Expected& e : blocks) all += std::exp(e.log_mass);
      for (const Expected& e : blocks) {  // errors of blocks are independent; the curve is not
        const double part = std::exp(e.log_mass) / all;
        low += part * part * e.tolerance * e.tolerance;
        high += part * 0.06;
      }
      const double slack = std::sqrt(low) + high;
      for (int b = 0; b < scene.n_blocks; ++b) {
        const double log_part = blocks[b].log_mass - std::log(all),
                     off = blocks[b].tolerance + slack;
        least[b] = std::max(least[b], std::exp(log_part - off));
        most[b] = std::max(most[b], std::exp(log_part + off));
      }
    }
    for (int b = 0; b < scene.n_blocks; ++b) {
      INFO("block " << b << " holds between " << least[b] << " and " << most[b]);
      if (b < sinks || b >= scene.row.n_full - window) {
        CHECK(ranked.count(b) == 1);
      } else if (least[b] > share) {
        CHECK(ranked.count(b) == 1);
        ++read;
      } else if (most[b] < share) {
        CHECK(ranked.count(b) == 0);
        ++unread;
      }
    }
  }
};

// Returns the exact output of a head, or with counts that of a plan, in float64.
std::vector<double> output(const CodedScene& scene, int h, const std::vector<double>* counts) {
  std::vector<double> out(kD);
  double all = 0;
  for (int t = 0; t < scene.n_tokens; ++t) {
    const double w = std::exp(scene.score(h, t)) * (counts ? (*counts)[t] : 1);
    all += w;
    for (int j = 0; j < kD; ++j) out[j] += w * double(scene.key(t)[kB * kD + j]);
  }
  for (double& x : out) x /= all;
  return out;
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
  int decided_read = 0, decided_unread = 0;
  for (int g : {1, 3, 4, 8})
    for (int tokens : {1, 31, 32, 33, 150, 1000, 5000})
      for (float share : {0.003f, 0.01f, 0.05f}) {
        const CodedScene scene(g, tokens, static_cast<unsigned>(17 * tokens + g));
        INFO("g " << g << " tokens " << tokens << " share " << share);
        const Read read(settings(share), scene);
        const std::set<int> set = read.set();
        CHECK(set.size() == read.ranked.size());
        const Decided decided(scene, double(share), set);
        decided_read += decided.read, decided_unread += decided.unread;
        // Against the estimates there is no doubt, and the most critical block comes first.
        const std::vector<double> shares = CodedScene::shares_of(scene.estimated_masses());
        const int full = scene.row.n_full, sinks = std::min(1, full),
                  window = std::min(2, full - sinks);
        for (int b = sinks; b < full - window; ++b) {
          INFO("block " << b << " seems to hold " << shares[b]);
          if (std::fabs(shares[b] - double(share)) > 1e-4 * double(share))
            CHECK(set.count(b) == (shares[b] > double(share)));
        }
        for (size_t i = sinks + window + 2; i < read.ranked.size(); ++i)
          CHECK(shares[read.ranked[i - 1]] > shares[read.ranked[i]] * (1 - 1e-4));
      }
  CHECK(decided_read > 30);
  CHECK(decided_unread > 300);
}

TEST_CASE("the share falls in contexts beyond 1,024 blocks", "[select][share][arithmetic]") {
  const CodedScene scene(2, 2048 * kB, 7);
  const std::vector<double> shares = CodedScene::shares_of(scene.estimated_masses());
  std::vector<double> sorted(shares.begin() + 1, shares.end() - 3);
  std::sort(sorted.rbegin(), sorted.rend());
  const auto share =
      static_cast<float>(sorted[4] / 0.75);  // so the fifth block holds three quarters of it
  const std::set<int> set = Read(settings(share), scene).set();
  int between =
      0;  // blocks above half of the share, which counts for 2,048 blocks, but below the share
  for (int b = 1; b < scene.n_blocks - 3; ++b) {
    INFO("block " << b << " seems to hold " << shares[b]);
    if (std::fabs(shares[b] - double(share) / 2) > 1e-4 * double(share))
      CHECK(set.count(b) == (shares[b] > double(share) / 2));
    between += shares[b] > 1.001 * share / 2 && shares[b] < share / 1.001;
  }
  CHECK(between > 0);
}

TEST_CASE("share knows what it leaves unread", "[select][share][arithmetic]") {
  for (int g : {1, 4})
    for (int tokens : {150, 1000, 20000}) {
      const CodedScene scene(g, tokens, static_cast<unsigned>(tokens + g));
      INFO("g " << g << " tokens " << tokens);
      RowPlan plan;
      plan_row(*make_selector(settings(0.01f)), scene.row, plan);
      std::vector<bool> read(scene.n_blocks);
      const int n_ranked = plan.size() - plan.n_sampled();
      for (int i = 0; i < n_ranked; ++i) read[plan.at(i)] = true;
      if (n_ranked == scene.n_blocks) {
        CHECK(plan.unread.empty());
        CHECK(plan.n_sampled() == 0);
        continue;
      }
      REQUIRE(plan.unread.size() == size_t(g));
      const CodedScene::Masses exact = scene.exact_masses(), estimated = scene.estimated_masses();
      for (int h = 0; h < g; ++h) {
        const auto unread_of = [&](const std::vector<double>& masses) {
          double all = 0, unread = 0;
          for (int b = 0; b < scene.n_blocks; ++b) {
            all += masses[b];
            if (!read[b]) unread += masses[b];
          }
          return unread / all;
        };
        CHECK(plan.unread[h] == Approx(unread_of(estimated[h])).margin(1e-5));
        // Blocks are left unread because they seem small, so more is unread than seems.
        CHECK(plan.unread[h] == Approx(unread_of(exact[h])).margin(0.08));
      }
    }
}

// Systematic importance sampling, in float64 and from estimated masses alone: each head lays its
// unread blocks end to end, and samples the block at the middle of each of its equal stretches.
TEST_CASE("share samples unread blocks by their weight", "[select][share][arithmetic]") {
  int with = 0, without = 0, several = 0;
  for (int g : {1, 2, 3, 5, 8, 16, 20})
    for (int tokens : {150, 1000, 5000})
      for (float share : {0.002f, 0.01f, 0.05f, 0.4f, 0.9f})
        for (float sharpness : {0.5f, 1.0f, 3.0f}) {
          CodedScene scene(g, tokens, static_cast<unsigned>(13 * tokens + g));
          for (float& x : scene.q) x *= sharpness;
          INFO("g " << g << " tokens " << tokens << " share " << share << " times " << sharpness);
          const Read read(settings(share), scene);
          const std::set<int> ranked = read.set();
          const CodedScene::Masses masses = scene.estimated_masses();
          const int each = (16 + g - 1) / g;
          std::vector<int> times(scene.n_blocks);
          std::vector<double> expected(scene.n_blocks);
          double most = 0;  // samples
          for (int h = 0; h < g; ++h) {
            double whole = 0, end = 0;
            std::vector<double> ends;
            for (int b = 0; b < scene.n_blocks; ++b) {
              whole += masses[h][b];
              if (ranked.count(b) == 0) end += masses[h][b];
              ends.push_back(end);
            }
            const double unread = end / whole;
            REQUIRE(std::fabs(unread - double(share) / 2) > 1e-6);  // no tie decides the test
            const double stretch = std::max(unread / each, double(share)) * whole;
            for (int b = 0; b < scene.n_blocks; ++b)
              if (ranked.count(b) == 0) expected[b] += masses[h][b] / stretch;
            if (unread < double(share) / 2) continue;
            most += std::min<double>(each, std::floor(unread / double(share) + 0.5));
            for (double at = stretch / 2; at < end; at += stretch)
              ++times[std::upper_bound(ends.begin(), ends.end(), at) - ends.begin()];
          }
          std::vector<int> want;
          for (int b = 0; b < scene.n_blocks; ++b)
            if (times[b] > 0) want.push_back(b);
          REQUIRE(read.samples == want);  // in token order, each once
          for (size_t i = 0; i < want.size(); ++i) {
            CHECK(ranked.count(want[i]) == 0);
            CHECK(want[i] > 0);
            CHECK(want[i] < scene.row.n_full - 2);
            CHECK(read.factors[i] == Approx(times[want[i]] / expected[want[i]]).epsilon(1e-4));
            several += times[want[i]] > 1;
          }
          CHECK(double(want.size()) <= most);
          CHECK(most <= each * g);
          if (ranked.size() == size_t(scene.n_blocks)) continue;
          (want.empty() ? without : with) += 1;
        }
  CHECK(with > 50);
  CHECK(without > 10);
  CHECK(several > 10);
}

// The samples' masses, each times its weight, sum to the unread mass on average, although the
// weights come from estimates. Attention that counts the samples errs less than attention that
// leaves out what is unread.
TEST_CASE("samples of share stand for the unread weight without bias",
          "[select][share][arithmetic]") {
  for (const int g : {1, 4}) {
    const int rounds = 150 / g;
    double sum = 0, squares = 0, with_error = 0, without_error = 0;
    int n = 0;
    for (int round = 0; round < rounds; ++round) {
      CodedScene scene(g, 3000, static_cast<unsigned>(1000 * g + round));
      for (float& x : scene.q) x /= 2;  // the weight spreads over more blocks
      RowPlan plan;
      plan_row(*make_selector(settings(0.02f)), scene.row, plan);
      if (plan.n_sampled() == 0) continue;
      const CodedScene::Masses exact = scene.exact_masses();
      const std::vector<double> counts = counts_of_plan(scene.row, plan);
      std::vector<double> ranked_only = counts;
      const int n_ranked = plan.size() - plan.n_sampled();
      std::vector<bool> read(scene.n_blocks);
      for (int i = 0; i < plan.size(); ++i) {
        if (i < n_ranked) read[plan.at(i)] = true;
        else std::fill_n(&ranked_only[size_t(plan.at(i)) * kB], kB, 0.0);
      }
      for (int h = 0; h < g; ++h) {
        if (plan.unread[h] < 0.02f) continue;
        double unread = 0, stands = 0;
        for (int b = 0; b < scene.n_blocks; ++b) {
          if (read[b]) continue;
          unread += exact[h][b];
          stands += counts[size_t(b) * kB] * exact[h][b];
        }
        const double ratio = stands / unread;
        sum += ratio, squares += ratio * ratio, ++n;
        const std::vector<double> whole = output(scene, h, nullptr),
                                  with = output(scene, h, &counts),
                                  without = output(scene, h, &ranked_only);
        for (int j = 0; j < kD; ++j) {
          with_error += (with[j] - whole[j]) * (with[j] - whole[j]);
          without_error += (without[j] - whole[j]) * (without[j] - whole[j]);
        }
      }
    }
    REQUIRE(n > 100);
    const double mean = sum / n, deviation = std::sqrt((squares / n - mean * mean) / n);
    INFO("g " << g << ": ratio " << mean << " +- " << deviation << ", squared errors " << with_error
              << " and " << without_error << " without samples");
    CHECK(std::fabs(mean - 1) < 4 * deviation);
    CHECK(deviation < 0.05);
    CHECK(with_error < 0.5 * without_error);
  }
}

TEST_CASE("plans by codes do not depend on the order of parts",
          "[select][share][rank][invariance][arithmetic]") {
  int sampled = 0;
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
        REQUIRE(forwards.n_sampled() == backwards.n_sampled());
        sampled += forwards.n_sampled();
        for (int i = 0; i < forwards.size(); ++i) {
          REQUIRE(forwards.at(i) == backwards.at(i));
          REQUIRE(forwards.log_weight(i) == backwards.log_weight(i));
        }
        CHECK(forwards.scores == backwards.scores);
        CHECK(forwards.unread == backwards.unread);
        CHECK(forwards.index_bytes == backwards.index_bytes);
      }
    }
  CHECK(sampled > 10);
}

TEST_CASE("share reads more for a smaller share, and everything for none",
          "[select][share][arithmetic]") {
  const CodedScene scene(4, 3000, 5);
  std::set<int> before;
  for (float share : {0.2f, 0.05f, 0.01f, 0.002f, 0.0f}) {
    const Read read(settings(share), scene);
    const std::set<int> now = read.set();
    for (int b : before) CHECK(now.count(b) == 1);
    before = now;
    if (share == 0) CHECK(read.samples.empty());
  }
  CHECK(static_cast<int>(before.size()) == scene.n_blocks);
}

TEST_CASE("what share drops or samples errs by the identity and within the bounds of dropped.h",
          "[select][share][arithmetic]") {
  int sampled = 0;
  for (const float share : {0.02f, 0.05f, 0.1f}) {
    INFO("share " << share);
    const CodedScene scene(2, 1500, 6);
    RowPlan plan;
    plan_row(*make_selector(settings(share)), scene.row, plan);
    CHECK(plan.size() < scene.n_blocks);
    sampled += plan.n_sampled();
    riffle::test::check_dropped(scene.row, plan);
  }
  CHECK(sampled > 0);
}

TEST_CASE("share reads the union of what its heads keep; one head is as multi-head attention",
          "[select][share][arithmetic]") {
  const CodedScene group(4, 1800, 4);
  const Selection s = settings(0.05f);
  std::set<int> together;
  size_t most = 0;
  int decided = 0;
  for (int h = 0; h < 4; ++h) {
    CodedScene one(4, 1800, 4);
    one.row.q += h * kD;
    one.row.g = 1;
    const std::set<int> own = Read(s, one).set();
    most = std::max(most, own.size());
    together.insert(own.begin(), own.end());
    const Decided alone(one, double(s.share), own);
    decided += alone.read + alone.unread;
  }
  CHECK(Read(s, group).set() == together);
  CHECK(together.size() > most);
  CHECK(decided > 0);
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
