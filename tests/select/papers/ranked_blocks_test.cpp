// Selectors that rank blocks (psa, topk) against brute force in float64, on synthetic keys:
// properties 3 to 5 and 8 of src/select/README.md.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "tests/option_text.h"
#include "tests/rounds.h"
#include "tests/select/coded_scene.h"
#include "tests/select/plan_row.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("psa at epsilon 1 reads every block in dense's order", "[select]") {
  const KeyScene scene(4, 1000, 1, {});
  auto s = settings(SelectorKind::PSA);
  s.epsilon = 1;
  CHECK(read_blocks(*make_selector(s), scene) == scene.all());
}

TEST_CASE("every selector reads the forced blocks, each block once, within its budget",
          "[select]") {
  for (int tokens : {1, 31, 32, 33, 64, 100, 129, 2000})
    for (SelectorKind kind : {SelectorKind::PSA, SelectorKind::TOPK}) {
      INFO("tokens " << tokens << " selector " << kind);
      const KeyScene scene(2, tokens, 3, {});
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
        const KeyScene scene(g, 1500, 11, digest_spec(s));
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
  OneIn one(3);
  for (StopRule stop : {StopRule::PAPER, StopRule::LAST, StopRule::BOUND, StopRule::VETO})
    for (unsigned seed = 0; seed < 5; ++seed) {
      if (one.skips()) continue;
      size_t last = 0;
      for (float epsilon : {0.1f, 0.3f, 0.5f, 0.7f, 0.9f, 0.95f, 0.99f, 0.999f, 1.0f}) {
        auto s = settings(SelectorKind::PSA);
        s.stop = stop;
        s.epsilon = epsilon;
        const KeyScene scene(4, 3000, seed, digest_spec(s), 3.0f);
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
      const KeyScene scene(g, 4000, seed, digest_spec(s), 6.0f);
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
          const KeyScene scene(4, 2000, seed, digest_spec(s), 8.0f);
          const auto read = read_blocks(*make_selector(s), scene);
          for (int h = 0; h < scene.g; ++h) CHECK(coverage(scene, h, read) >= epsilon - 1e-5);
        }
}

TEST_CASE("VETO never stops where Jensen's bound says that too little is covered", "[select]") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    auto paper = settings(SelectorKind::PSA), veto = paper;
    veto.stop = StopRule::VETO;
    const KeyScene scene(4, 3000, seed, digest_spec(veto), 5.0f);
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

TEST_CASE("settings of papers' selectors out of range are refused by name", "[select]") {
  const auto refused = [](auto&& change, const char* field) {
    check_refused(SelectorKind::PSA, change, field);
  };
  refused([](auto& s) { s.epsilon = 0; }, "epsilon");
  refused([](auto& s) { s.epsilon = 1.5f; }, "epsilon");
  refused([](auto& s) { s.epsilon = std::nanf(""); }, "epsilon");
  refused([](auto& s) { s.microbatch = 0; }, "microbatch");
  refused([](auto& s) { s.budget = -1; }, "budget");
  refused([](auto& s) { s.budget = std::nanf(""); }, "budget");
  refused([](auto& s) { s.lookahead = 9; }, "lookahead");
  refused([](auto& s) { s.top_p = 0; }, "top-p-attn");
  refused([](auto& s) { s.top_p = 1.01f; }, "top-p-attn");
  refused([](auto& s) { s.top_p = std::nanf(""); }, "top-p-attn");
  refused([](auto& s) { s.base = static_cast<BaseSelection>(3); }, "base");
  refused([](auto& s) { s.base_budget = 0; }, "base-budget");
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

TEST_CASE("psa and topk rank by codes as by the blocks' true masses",
          "[select][rank][arithmetic]") {
  for (int g : {1, 3})
    for (HeadRule gqa : {HeadRule::MEAN, HeadRule::SOFT_SUM, HeadRule::UNION}) {
      const CodedScene scene(g, 5000, static_cast<unsigned>(31 * g));
      INFO("g " << g << " gqa " << gqa);
      std::vector<std::vector<double>> masses(g, std::vector<double>(scene.n_blocks));
      for (int h = 0; h < g; ++h)
        for (int t = 0; t < scene.n_tokens; ++t) {
          double dot = 0;
          for (int j = 0; j < kD; ++j)
            dot += double(scene.q[h * kD + j]) * const_cast<CodedScene&>(scene).key(t)[j];
          masses[h][t / kB] += std::exp(dot);
        }
      // Each block's score in float64, as the setting combines heads.
      const int first = 1,
                last = scene.n_blocks - 3;  // candidates lie between the sink and the window of two
      std::vector<double> score(scene.n_blocks, gqa == HeadRule::UNION ? -1e9 : 0);
      for (int h = 0; h < g; ++h) {
        std::vector<int> order;
        double all = 0;
        for (int b = first; b < last; ++b) order.push_back(b), all += masses[h][b];
        std::sort(order.begin(), order.end(),
                  [&](int a, int b) { return masses[h][a] > masses[h][b]; });
        for (size_t r = 0; r < order.size(); ++r) {
          const int b = order[r];
          if (gqa == HeadRule::MEAN) score[b] += std::log(masses[h][b]);
          if (gqa == HeadRule::SOFT_SUM) score[b] += masses[h][b] / all;
          if (gqa == HeadRule::UNION) score[b] = std::max(score[b], -double(r));
        }
      }
      std::vector<int> best;
      for (int b = first; b < last; ++b) best.push_back(b);
      std::sort(best.begin(), best.end(), [&](int a, int b) { return score[a] > score[b]; });
      for (SelectorKind selector : {SelectorKind::PSA, SelectorKind::TOPK}) {
        Selection s;
        s.selector = selector;
        s.rank = RankBy::CODES;
        s.gqa = gqa;
        s.budget = 0.2f;
        RowPlan plan;
        plan_row(*make_selector(s), scene.row, plan);
        // Codes change a score by a few tenths, so only neighbours may change places: the first ten
        // are all among the true best twenty.
        const std::set<int> twenty(best.begin(), best.begin() + 20);
        for (int i = 0; i < 10; ++i) CHECK(twenty.count(plan.at(plan.n_forced() + i)) == 1);
        CHECK(plan.index_bytes > 0);
      }
    }
}
