// The tables of LFPS against brute force in float64 (src/select/README.md, property 13), and their
// kernels.
#include <bit>
#include <numeric>
#include <string>

#include "kernels/cpu/attention/gather.h"
#include "kernels/cpu/select/papers/score_table.h"
#include "tests/isa_limit.h"
#include "tests/select/papers/lfps_scene.h"

using namespace riffle;
using namespace riffle::test::lfps;

namespace {

// A head's tables and their eager twin, fed with the same random weights.
struct Pair {
  std::mt19937 random;
  LfpsTables tables;
  LfpsTables::Scratch scratch;
  Eager eager;
  int n;

  Pair(int tokens, unsigned seed, double decay) : random(seed), eager(tokens), n(tokens) {
    tables.reserve(4096);
    tables.start(n);
    for (int r = 0; r < 8; ++r) {
      const int at = n - 8 + r;
      std::vector<double> w = weights(at + 1 - kSinks);
      const std::vector<float> f(w.begin(), w.end());
      w.assign(f.begin(), f.end());
      tables.add(f.data(), at);
      eager.add(w, at, 1 / (2 * (1 - decay) * 8));
    }
    tables.begin(decay);
  }
  std::vector<double> weights(int count) {  // heavy-tailed, sum 1
    std::normal_distribution<double> normal(0, 2);
    std::vector<double> w(count);
    for (double& x : w) x = std::exp(normal(random));
    const double sum = std::accumulate(w.begin(), w.end(), 0.0);
    for (double& x : w) x /= sum;
    return w;
  }
  void step(double decay, bool active) {
    ++n;
    tables.grow(n);
    eager.grow(n);
    if (!active) return;
    std::set<int32_t> set;
    for (int i = 0; i < 24; ++i) set.insert(kSinks + static_cast<int32_t>(random() % (n - kSinks)));
    for (int i = 0; i < 8; ++i)
      set.insert(std::max(kSinks, n - 1 - static_cast<int>(random() % 12)));
    for (int i = 40; i < 44; ++i) set.insert(i);
    const std::vector<int32_t> ids(set.begin(), set.end());
    std::vector<double> w = weights(static_cast<int>(ids.size()));
    const std::vector<float> f(w.begin(), w.end());
    w.assign(f.begin(), f.end());
    tables.update(decay, n - 1, ids.data(), f.data(), static_cast<int>(ids.size()));
    eager.update(decay, n - 1, ids, w);
  }
  void compare(double alpha) {
    double worst = 0;
    for (int i = 0; i < n; ++i) {
      worst = std::max(worst, std::fabs(tables.vertical(i) - eager.v[i]) / (eager.v[i] + 1e-12));
      worst = std::max(worst, std::fabs(tables.slash(i) - eager.s[i]) / (eager.s[i] + 1e-12));
    }
    CHECK(worst <= 1e-4);
    const LfpsTables::Thresholds got = tables.thresholds(n - 1, alpha),
                                 want = eager.thresholds(n - 1, alpha);
    CHECK(std::fabs(got.v - want.v) <= 1e-4 * want.v);
    CHECK(std::fabs(got.s - want.s) <= 1e-4 * want.s);
    CHECK(std::fabs(got.v_mean - want.v_mean) <= 1e-5 * want.v_mean);
    CHECK(std::fabs(got.s_mean - want.s_mean) <= 1e-5 * want.s_mean);
    check_candidates(n - 1, alpha);
    check_candidates(n, alpha);
  }
  void check_candidates(int t, double alpha) {
    std::vector<int32_t> got;
    tables.prepare(t, alpha, scratch, got);
    CHECK(std::is_sorted(got.begin(), got.end()));
    std::set<int> init, near, want = eager.candidates(t, alpha, &init, &near),
                              have(got.begin(), got.end());
    CHECK(have.size() == got.size());
    int wrong = 0;
    for (int i : want) wrong += !have.count(i) && !near.count(i);
    for (int i : have) wrong += !want.count(i) && !near.count(i);
    for (int i : init) wrong += !have.count(i) && !near.count(i);
    CHECK(wrong == 0);
    CHECK(near.size() < 40);
    CHECK(want.size() > 0);
  }
};

}  // namespace

TEST_CASE("lfps tables: what is kept up step by step is what a full pass would find",
          "[select][lfps]") {
  for (const double decay : {0.95, 0.6, 0.0}) {
    INFO("decay " << decay);
    Pair pair(300, 7, decay);
    pair.compare(0.2);
    double sum_v = pair.tables.sum_vertical(), sum_s = pair.tables.sum_slash();
    for (int i = 0; i < 400; ++i) {
      const bool active =
          i % 5 != 3 && !(i > 100 && i < 160);  // a long bypass, in which the means fall
      pair.step(decay, active);
      const double want_v = active ? decay * sum_v + 0.5 : sum_v,
                   want_s = active ? decay * sum_s + 0.5 : sum_s;
      sum_v = pair.tables.sum_vertical(), sum_s = pair.tables.sum_slash();
      CHECK(std::fabs(sum_v - want_v) <= 1e-5 * want_v);
      CHECK(std::fabs(sum_s - want_s) <= 1e-5 * want_s);
      if (i % 7 == 0 || (i > 155 && i < 165)) pair.compare(0.1 + 0.1 * (i % 4));
    }
    // (15): the steady sum of the steps is the sum that the start gives.
    CHECK(std::fabs(sum_v - 0.5 / (1 - decay)) <= 1e-4);
    // A cut undoes the last update, and drops steps that added nothing.
    const Eager before = pair.eager;
    const int n = pair.n;
    pair.step(decay, false);
    pair.step(decay, true);
    CHECK(pair.tables.learnt() == n + 2);
    for (const int cut : {n + 1, n}) {
      REQUIRE(pair.tables.truncate(cut));
      CHECK(pair.tables.learnt() == n);
      CHECK(pair.tables.size() == cut);
      pair.n = cut;
      pair.eager = before;
      pair.eager.grow(cut);
      pair.compare(0.2);
    }
    for (int i = 0; i < 20; ++i) pair.step(decay, true);
    pair.compare(0.3);
    // More than one update cannot be undone: the tables are empty.
    CHECK(!pair.tables.truncate(n + 10));
    CHECK(pair.tables.size() == 0);
    CHECK(pair.tables.sum_vertical() == 0);
    CHECK(pair.tables.sum_slash() == 0);
  }
}

TEST_CASE("lfps tables: they take the memory they say, and what undoes a step", "[select][lfps]") {
  constexpr int kTokens = 5000;
  const uint64_t entries = uint64_t(2) * kTokens * sizeof(float);
  CHECK(LfpsTables::table_bytes(kTokens) == entries);
  LfpsTables tables;
  tables.grow(kTokens);
  CHECK(tables.bytes() == entries);
  const int32_t id = 100;
  const float weight = 1;
  tables.start(kTokens - 1);
  tables.begin(0.95);
  tables.grow(kTokens);
  tables.update(0.95, kTokens - 1, &id, &weight, 1);
  const uint64_t one = tables.bytes();  // includes the undo data of one entry
  CHECK(one < entries + 2000);
  tables.start(kTokens - 1);
  tables.begin(0);
  tables.grow(kTokens);
  tables.update(0, kTokens - 1, &id, &weight, 1);  // rescales, so all entries are in the undo data
  CHECK(tables.bytes() == one + entries);
}

TEST_CASE("lfps tables: the start's sum is the fixed point, 10 at a decay of 0.95",
          "[select][lfps]") {
  Pair pair(500, 3, 0.95);
  CHECK(std::fabs(pair.tables.sum_vertical() - 10) <= 1e-4);
  CHECK(std::fabs(pair.tables.sum_slash() - 10) <= 1e-4);
  for (int i = 0; i < 50; ++i) pair.step(0.95, true);
  CHECK(std::fabs(pair.tables.sum_vertical() - 10) <= 1e-4);
  CHECK(std::fabs(pair.tables.sum_slash() - 10) <= 1e-4);
}

TEST_CASE("lfps tables: fewer candidates with a larger alpha", "[select][lfps]") {
  Pair pair(1000, 5, 0.95);
  for (int i = 0; i < 60; ++i) pair.step(0.95, true);
  const int t = pair.n;
  std::vector<int32_t> before, got;
  pair.tables.prepare(t, 0, pair.scratch, before);
  for (const double alpha : {0.05, 0.1, 0.2, 0.3, 0.4, 1.0, 10.0}) {
    pair.tables.prepare(t, alpha, pair.scratch, got);
    CHECK(got.size() <= before.size());
    CHECK(std::includes(before.begin(), before.end(), got.begin(), got.end()));
    before = got;
  }
}

TEST_CASE("lfps tables: the sinks' share lies in [0, 1] and rises with their mass",
          "[select][lfps]") {
  float before = 0;
  for (float sinks = -200; sinks <= 200; sinks += 5) {
    const float r = LfpsTables::sink_share(sinks, 3, -2);
    CHECK(r >= before);
    CHECK(r <= 1);
    before = r;
  }
  CHECK(std::fabs(LfpsTables::sink_share(1, 1, -50) - 0.5f) <= 1e-6f);
  CHECK(std::fabs(LfpsTables::sink_share(1, -50, 1) - 0.5f) <= 1e-6f);
}

TEST_CASE("lfps tables: a prompt that follows adds to them, the more the longer it is",
          "[select][lfps]") {
  for (const int tokens : {1, 5, 32, 200}) {
    INFO(tokens << " tokens");
    constexpr double kDecay = 0.95;
    Pair pair(500, 21, kDecay);
    for (int i = 0; i < 30; ++i) pair.step(kDecay, true);
    const double keep = std::pow(kDecay, tokens);
    const int queries = std::min(tokens, 32);
    const Eager before = pair.eager;
    pair.n += tokens;
    pair.eager.grow(pair.n);
    for (double& x : pair.eager.v) x *= keep;
    for (double& x : pair.eager.s) x *= keep;
    pair.tables.resume(pair.n, keep, queries, kDecay);
    for (int r = 0; r < queries; ++r) {
      const int at = pair.n - queries + r;
      std::vector<double> w = pair.weights(at + 1 - kSinks);
      const std::vector<float> f(w.begin(), w.end());
      w.assign(f.begin(), f.end());
      pair.tables.add(f.data(), at);
      pair.eager.add(w, at, (1 - keep) / (2 * (1 - kDecay) * queries));
    }
    pair.tables.begin(kDecay);
    pair.compare(0.2);
    CHECK(std::fabs(pair.tables.sum_vertical() - 10) <= 1e-4);
    CHECK(std::fabs(pair.tables.sum_slash() - 10) <= 1e-4);
    double held = 0;  // part of the total
    for (int i = kSinks; i < pair.n - tokens; ++i)
      held += std::min(before.v[i], pair.tables.vertical(i));
    if (tokens == 5) CHECK(held >= 7);
    for (int i = 0; i < 20; ++i) pair.step(kDecay, true);
    pair.compare(0.2);
  }
}

TEST_CASE("score tables and choosing: every instruction set gives what plain C++ gives",
          "[select][lfps][kernels]") {
  std::mt19937 random(9);
  const auto uniform = [&] { return static_cast<float>(random() % 1000003) / 1000003.0f; };
  for (const cpu::Isa isa : riffle::test::arch_isas()) {
    if (!cpu::isa_available(isa)) continue;
    const cpu::ScoreTableKernels &a = *cpu::score_table_kernels(isa), &b = cpu::kScoreTableScalar;
    for (const int n : {1, 15, 16, 17, 100, 513, 3000}) {
      INFO("isa " << int(isa) << " n " << n);
      const int64_t t = 4 * n + 70, words = t / 64 + 2;
      for (const bool by_distance : {false, true}) {
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < t && static_cast<int>(ids.size()) < n; i += 1 + random() % 5)
          ids.push_back(i);
        const auto count = static_cast<int64_t>(ids.size());
        std::vector<float> w(count), table(t + 1), twin, before(count), before_twin(count);
        for (float& x : w) x = uniform();
        for (float& x : table) x = uniform();
        twin = table;
        std::vector<int32_t> index(count + 16), index_twin(index);
        std::vector<float> value(count + 16), value_twin(value);
        double power[4] = {}, power_twin[4] = {};
        const cpu::TableAt at{by_distance, t};
        const int64_t live = a.lift(table.data(), at, ids.data(), w.data(), 0.7f, count, 0.6f,
                                    before.data(), index.data(), value.data(), power);
        REQUIRE(live == b.lift(twin.data(), at, ids.data(), w.data(), 0.7f, count, 0.6f,
                               before_twin.data(), index_twin.data(), value_twin.data(),
                               power_twin));
        CHECK(table == twin);
        CHECK(before == before_twin);
        for (int k = 0; k < 4; ++k)
          CHECK(std::fabs(power[k] - power_twin[k]) <= 1e-9 * std::fabs(power_twin[k]));
        index.resize(live), index_twin.resize(live), value.resize(live), value_twin.resize(live);
        CHECK(index == index_twin);
        CHECK(value == value_twin);
        for (const bool with_touched : {false, true}) {
          std::vector<uint64_t> touched(words), bits[4];
          for (uint64_t& x : touched) x = uint64_t(random()) << 32 | random();
          for (auto& x : bits) x.assign(words + 2, 0);
          const auto sift = [&](const cpu::ScoreTableKernels& k, std::vector<int32_t> i,
                                std::vector<float> v, int which) {
            cpu::Sift s{0.7f,
                        0.8f,
                        1.1f,
                        with_touched ? touched.data() : nullptr,
                        at,
                        {by_distance, t + 1},
                        bits[which].data() + 1,
                        bits[which + 1].data() + 1};
            const int64_t kept = k.sift(i.data(), v.data(), live, i.data(), v.data(), s);
            i.resize(kept), v.resize(kept);
            return std::pair{i, v};
          };
          CHECK(sift(a, index, value, 0) == sift(b, index, value, 2));
          CHECK(bits[0] == bits[2]);
          CHECK(bits[1] == bits[3]);
          CHECK(a.expand(bits[1].data() + 1, bits[0].data() + 1, words) ==
                b.expand(bits[3].data() + 1, bits[2].data() + 1, words));
          CHECK(bits[0] == bits[2]);
          std::vector<int32_t> out(words * 64 + 16), out_twin(out);
          const int64_t set = a.positions(bits[0].data() + 1, words, out.data());
          REQUIRE(set == b.positions(bits[0].data() + 1, words, out_twin.data()));
          out.resize(set), out_twin.resize(set);
          CHECK(out == out_twin);
        }
      }
      const cpu::GatherKernels &g = *cpu::kernels(isa)->gather, &h = cpu::kGatherScalar;
      std::vector<float> x(n);
      for (float& y : x) y = uniform();
      for (const float least : {0.0f, 0.3f, x[0], 2.0f})
        CHECK(g.count(x.data(), n, std::bit_cast<uint32_t>(least)) ==
              h.count(x.data(), n, std::bit_cast<uint32_t>(least)));
      std::vector<uint64_t> marks(n / 64 + 1);
      for (uint64_t& y : marks) y = uint64_t(random()) << 32 | random();
      std::vector<int32_t> ids(n), ids_twin;
      std::iota(ids.begin(), ids.end(), 0);
      ids_twin = ids;
      std::vector<const void*> rows, rows_twin;
      for (int i = 0; i < n; ++i) rows.push_back(&ids[i]);
      rows_twin = rows;
      const int64_t kept = g.pack(marks.data(), n, ids.data(), rows.data());
      REQUIRE(kept == h.pack(marks.data(), n, ids_twin.data(), rows_twin.data()));
      ids.resize(kept), ids_twin.resize(kept), rows.resize(kept), rows_twin.resize(kept);
      CHECK(ids == ids_twin);
      CHECK(rows == rows_twin);
      std::vector<float> twin = x;
      const float sum = g.pack_sum(marks.data(), n, x.data()),
                  want = h.pack_sum(marks.data(), n, twin.data());
      CHECK(std::fabs(sum - want) <= 1e-5f * want);
      x.resize(kept), twin.resize(kept);
      CHECK(x == twin);
    }
  }
}

TEST_CASE("gathered keys and values: every instruction set agrees with float64",
          "[select][lfps][kernels]") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const cpu::Isa isa : riffle::test::arch_isas()) {
    if (!cpu::isa_available(isa)) continue;
    const cpu::GatherKernels& k = *cpu::kernels(isa)->gather;
    for (const int d : {6, 64, 100, 128})
      for (const int g : {1, 3, 4, 7, 16, 21})
        for (const int n : {1, 5, 37}) {
          const cpu::KvType type = (d + g + n) % 2 ? cpu::KvType::F16 : cpu::KvType::F32;
          std::vector<float> q(size_t(g) * d), rows(size_t(n) * d), scores(size_t(g) * (n + 3)),
              out(size_t(g) * d);
          for (float& x : q) x = normal(random);
          for (float& x : rows) x = normal(random);
          std::vector<std::byte> stored(rows.size() * 4);
          cpu::kernels(isa)->attention.kv_store(rows.data(), rows.size(), type, stored.data());
          cpu::kernels(isa)->attention.kv_load(stored.data(), rows.size(), type,
                                               rows.data());  // rows become the rounded values
          std::vector<const void*> at;
          for (int i = 0; i < n; ++i)
            at.push_back(stored.data() + size_t(i) * d * (type == cpu::KvType::F16 ? 2 : 4));
          k.dot(q.data(), g, d, at.data(), n, type, 0, scores.data(), n + 3);
          k.values(scores.data(), n + 3, g, d, at.data(), n, type, out.data());
          double worst = 0;
          for (int h = 0; h < g; ++h) {
            std::vector<double> sum(d, 0.0);
            for (int i = 0; i < n; ++i) {
              double dot = 0;
              for (int j = 0; j < d; ++j) dot += double(q[h * d + j]) * rows[i * d + j];
              worst = std::max(worst, std::fabs(dot - scores[h * (n + 3) + i]));
              for (int j = 0; j < d; ++j)
                sum[j] += double(scores[h * (n + 3) + i]) * rows[i * d + j];
            }
            for (int j = 0; j < d; ++j) worst = std::max(worst, std::fabs(sum[j] - out[h * d + j]));
          }
          CHECK(worst <= 2e-3);
          float* s = scores.data();
          const std::vector<float> before(s, s + n);
          float total = 0;
          const float top = k.softmax(s, n, &total);
          CHECK(top == *std::max_element(before.begin(), before.end()));
          double want = 0;
          for (int i = 0; i < n; ++i) want += std::exp(double(before[i]) - top);
          CHECK(std::fabs(total - want) <= 1e-5 * want);
          const std::vector<float> weight(g, 0.5f);
          std::vector<float> mixed(n);
          k.combine(s, n + 3, weight.data(), g, n, mixed.data());
          for (int i = 0; i < n; ++i) {
            double sum = 0;
            for (int h = 0; h < g; ++h) sum += 0.5 * s[h * (n + 3) + i];
            CHECK(std::fabs(mixed[i] - sum) <= 1e-3);
          }
        }
  }
}
