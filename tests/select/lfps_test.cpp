// LFPS against brute force in float64: properties 1 and 13 of algorithms.md 8.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>

#include "../engine/steps.h"
#include "kernels/cpu/gather.h"
#include "kernels/cpu/score_table.h"
#include "select/lfps_tables.h"
#include "select/selector.h"

using namespace riffle;

namespace {

constexpr int kSinks = LfpsTables::kSinks, kRecent = LfpsTables::kRecent;

// The tables as the paper has them: every entry decays in every active step, everything is looked at.
struct Eager {
  std::vector<double> v, s;

  explicit Eager(int n) : v(n, 0.0), s(n, 0.0) {}
  void grow(int n) { v.resize(n, 0.0), s.resize(n, 0.0); }
  void add(const std::vector<double>& w, int at, double c) {  // w[i - kSinks]
    for (int i = kSinks; i <= at; ++i) v[i] += c * w[i - kSinks], s[at - i] += c * w[i - kSinks];
  }
  void update(double decay, int t, const std::vector<int32_t>& ids, const std::vector<double>& w) {
    for (double& x : v) x *= decay;
    for (double& x : s) x *= decay;
    for (size_t i = 0; i < ids.size(); ++i) v[ids[i]] += w[i] / 2, s[t - ids[i]] += w[i] / 2;
  }
  static void moments(const std::vector<double>& x, int n, double* mean, double* sd, double* kurtosis) {
    // n entries: x without those that never hold anything (the sinks, the last distances), or with zeros to come.
    double m = 0, m2 = 0, m4 = 0;
    for (double y : x) m += y;
    m /= n;
    for (double y : x) m2 += (y - m) * (y - m), m4 += std::pow(y - m, 4);
    const int more = n - static_cast<int>(x.size());
    m2 += more * m * m, m4 += more * std::pow(m, 4);
    m2 /= n, m4 /= n;
    *mean = m, *sd = std::sqrt(m2), *kurtosis = m4 / (m2 * m2);
  }
  LfpsTables::Thresholds thresholds(int t, double alpha) const {
    double mv, sv, kv, ms, ss, ks;
    moments(v, t + 1 - kSinks, &mv, &sv, &kv);
    moments(s, t + 1 - kSinks, &ms, &ss, &ks);
    return {mv + 2 * alpha * sv * 2 * ks / (kv + ks), ms + 2 * alpha * ss * 2 * kv / (kv + ks), mv, ms};
  }
  double at_v(int i) const { return i < static_cast<int>(v.size()) ? v[i] : 0; }
  double at_s(int d) const { return d < static_cast<int>(s.size()) ? s[d] : 0; }
  // I_init and I_cand within kSinks..t - kRecent. near: positions whose scores are too near a threshold to tell.
  std::set<int> candidates(int t, double alpha, std::set<int>* init, std::set<int>* near) const {
    const LfpsTables::Thresholds th = thresholds(t, alpha);
    const auto close = [](double x, double y) { return std::fabs(x - y) <= 1e-4 * y; };
    std::set<int> all;
    init->clear();
    for (int i = 0; i <= t; ++i) {
      const double x = at_v(i), y = at_s(t - i);
      if (close(x, th.v) || close(y, th.s) || close(x, th.v_mean) || close(y, th.s_mean))
        for (int o = -2; o <= 2; ++o) near->insert(i + o);
      if (x > th.v || y > th.s) init->insert(i);
    }
    for (int i : *init)
      for (int o = -1; o <= 2; ++o) {
        const int j = i + o;
        if (j < 0 || j > t) continue;
        if (o == 0 || at_v(j) > th.v_mean || at_s(t - j) > th.s_mean) all.insert(j);
      }
    const auto clip = [&](std::set<int>& x) { std::erase_if(x, [&](int i) { return i < kSinks || i > t - kRecent; }); };
    clip(*init), clip(all);
    return all;
  }
};

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
    for (int i = 0; i < 8; ++i) set.insert(std::max(kSinks, n - 1 - static_cast<int>(random() % 12)));
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
    const LfpsTables::Thresholds got = tables.thresholds(n - 1, alpha), want = eager.thresholds(n - 1, alpha);
    CHECK(std::fabs(got.v - want.v) <= 1e-4 * want.v);
    CHECK(std::fabs(got.s - want.s) <= 1e-4 * want.s);
    CHECK(std::fabs(got.v_mean - want.v_mean) <= 1e-5 * want.v_mean);
    CHECK(std::fabs(got.s_mean - want.s_mean) <= 1e-5 * want.s_mean);
    check_candidates(n - 1, alpha);
    check_candidates(n, alpha);
  }
  void check_candidates(int t, double alpha) {
    std::vector<int32_t> got;
    tables.prepare(t, alpha, 0, scratch, got);
    CHECK(std::is_sorted(got.begin(), got.end()));
    std::set<int> init, near, want = eager.candidates(t, alpha, &init, &near), have(got.begin(), got.end());
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

TEST_CASE("lfps tables: what is kept up step by step is what a full pass would find", "[select][lfps]") {
  for (const double decay : {0.95, 0.6, 0.0}) {
    INFO("decay " << decay);
    Pair pair(300, 7, decay);
    pair.compare(0.2);
    double sum_v = pair.tables.sum_vertical(), sum_s = pair.tables.sum_slash();
    for (int i = 0; i < 400; ++i) {
      const bool active = i % 5 != 3 && !(i > 100 && i < 160);  // a long bypass, in which the means fall
      pair.step(decay, active);
      const double want_v = active ? decay * sum_v + 0.5 : sum_v, want_s = active ? decay * sum_s + 0.5 : sum_s;
      sum_v = pair.tables.sum_vertical(), sum_s = pair.tables.sum_slash();
      CHECK(std::fabs(sum_v - want_v) <= 1e-5 * want_v);
      CHECK(std::fabs(sum_s - want_s) <= 1e-5 * want_s);
      if (i % 7 == 0 || (i > 155 && i < 165)) pair.compare(0.1 + 0.1 * (i % 4));
    }
    // (15): the sum that a step keeps is the sum that the start gives.
    CHECK(std::fabs(sum_v - 0.5 / (1 - decay)) <= 1e-4);
    // Cut: positions and distances beyond are forgotten, the rest stays.
    pair.n = 350;
    pair.tables.truncate(350);
    pair.eager.v.resize(350), pair.eager.s.resize(350);
    pair.compare(0.2);
    for (int i = 0; i < 20; ++i) pair.step(decay, true);
    pair.compare(0.3);
  }
}

TEST_CASE("lfps tables: the start's sum is the fixed point, 10 at a decay of 0.95", "[select][lfps]") {
  Pair pair(500, 3, 0.95);
  CHECK(std::fabs(pair.tables.sum_vertical() - 10) <= 1e-4);
  CHECK(std::fabs(pair.tables.sum_slash() - 10) <= 1e-4);
  for (int i = 0; i < 50; ++i) pair.step(0.95, true);
  CHECK(std::fabs(pair.tables.sum_vertical() - 10) <= 1e-4);
  CHECK(std::fabs(pair.tables.sum_slash() - 10) <= 1e-4);
}

TEST_CASE("lfps tables: fewer candidates with a larger alpha, as many as the rate says", "[select][lfps]") {
  Pair pair(1000, 5, 0.95);
  for (int i = 0; i < 60; ++i) pair.step(0.95, true);
  const int t = pair.n;
  std::vector<int32_t> before, got;
  pair.tables.prepare(t, 0, 0, pair.scratch, before);
  for (const double alpha : {0.05, 0.1, 0.2, 0.3, 0.4, 1.0, 10.0}) {
    pair.tables.prepare(t, alpha, 0, pair.scratch, got);
    CHECK(got.size() <= before.size());
    CHECK(std::includes(before.begin(), before.end(), got.begin(), got.end()));
    before = got;
  }
  // By rank of the larger of the two scores, few and many, to all.
  std::vector<std::pair<double, int>> ranked;
  for (int i = kSinks; i <= t - kRecent; ++i)
    ranked.push_back({-std::max(pair.eager.at_v(i), pair.eager.at_s(t - i)), i});
  std::sort(ranked.begin(), ranked.end());
  for (const double rate : {0.001, 0.02, 0.1, 0.3, 0.9, 1.0}) {
    pair.tables.prepare(t, 0.2, rate, pair.scratch, got);
    const auto want = std::min<size_t>(ranked.size(), static_cast<size_t>(std::ceil(rate * (t + 1 - kSinks))));
    REQUIRE(got.size() == want);
    CHECK(std::is_sorted(got.begin(), got.end()));
    const double last = -ranked[want - 1].first;
    for (int32_t i : got) CHECK(std::max(pair.eager.at_v(i), pair.eager.at_s(t - i)) >= last * (1 - 1e-4));
  }
}

TEST_CASE("lfps tables: the sinks' share lies in [0, 1] and rises with their mass", "[select][lfps]") {
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

namespace {

// One KV head's growing KV in f32, attended to by brute force.
struct Scene {
  static constexpr int kB = 32, kD = 16, kG = 2;
  std::mt19937 random{11};
  std::vector<std::vector<std::byte>> store;
  std::vector<std::byte*> blocks;
  std::vector<float> q;
  std::vector<double> drift = std::vector<double>(size_t(kG) * kD, 0.0);
  int n = 0;
  float sink_gain = 0, steady = 0;  // steady: of a look that never changes
  Row row;

  float* key(int i) { return reinterpret_cast<float*>(blocks[i / kB]) + i % kB * kD; }
  float* value(int i) { return key(i) + kB * kD; }
  void token() {
    std::normal_distribution<float> normal;
    if (n % kB == 0) {
      store.emplace_back(size_t(2) * kB * kD * sizeof(float));
      blocks.push_back(store.back().data());
    }
    for (int j = 0; j < kD; ++j) key(n)[j] = normal(random), value(n)[j] = normal(random);
    key(n)[0] = n < kSinks ? 10 : 0;  // along this axis a query looks at the sinks alone
    ++n;
    // Queries wander, so that past weights tell something.
    q.resize(drift.size());
    for (size_t j = 0; j < drift.size(); ++j)
      q[j] = static_cast<float>(drift[j] = 0.97 * drift[j] + 0.2 * double(normal(random)));
    for (size_t j = 0; j < q.size(); ++j) q[j] += steady * std::cos(1.7f * static_cast<float>(j));
    for (int h = 0; h < kG; ++h) q[h * kD] = sink_gain;
  }
  const Row& view(SelectorState* state) {
    row.q = q.data();
    row.g = kG, row.d = kD, row.block_size = kB;
    row.n_tokens = n;
    row.n_blocks = (n + kB - 1) / kB;
    row.n_full = row.n_blocks - 1;
    row.kernels = cpu::kernels(cpu::Isa::Scalar);
    row.blocks = blocks.data();
    row.tail = blocks.back();
    row.type = KvType::F32;
    row.state = state;
    return row;
  }
  StateShape shape() const {
    StateShape s;
    s.n_layers = s.n_kv_heads = 1;
    s.g = kG;
    s.layout = {kB, kD, KvType::F32};
    s.n_ctx = 4096;
    s.kernels = cpu::kernels(cpu::Isa::Scalar);
    return s;
  }
  double score(int h, int i) {
    double sum = 0;
    for (int j = 0; j < kD; ++j) sum += double(q[h * kD + j]) * key(i)[j];
    return sum;
  }
};

riffle_selection settings(double top, double alpha, double bypass, double rate = 0) {
  riffle_selection s;
  riffle_selection_defaults(&s);
  s.selector = RIFFLE_SELECTOR_LFPS;
  s.top_tokens = static_cast<float>(top);
  s.alpha = static_cast<float>(alpha);
  s.bypass = static_cast<float>(bypass);
  s.rate = static_cast<float>(rate);
  return s;
}

std::vector<int32_t> tokens_of(const Row& row, RowPlan& plan) {
  std::vector<int32_t> out;
  for (int p = 0; p < plan.size(); ++p)
    for (int t = 0; t < row.block_size; ++t)
      if (plan.mask(p) >> t & 1 && plan.at(p) * row.block_size + t < row.n_tokens)
        out.push_back(plan.at(p) * row.block_size + t);
  return out;
}

// Prompts a state with the scene's next `n` tokens; the last `last` queries are handed over. Their weights go to eager.
void prompt(Scene& scene, SelectorState& state, int n, int last, Eager* eager, double decay) {
  std::vector<float> queries;
  std::vector<std::vector<double>> weights;
  const int used = std::min(last, 32);
  for (int i = 0; i < n; ++i) {
    scene.token();
    if (i < n - last) continue;
    const float up = std::sqrt(float(Scene::kD));
    for (float x : scene.q) queries.push_back(x * up);
    if (i < n - used) continue;
    std::vector<double> mean(scene.n - kSinks, 0.0);
    for (int h = 0; h < Scene::kG; ++h) {
      double sum = 0;
      for (int k = kSinks; k < scene.n; ++k) sum += std::exp(scene.score(h, k));
      for (int k = kSinks; k < scene.n; ++k) mean[k - kSinks] += std::exp(scene.score(h, k)) / sum / Scene::kG;
    }
    weights.push_back(mean);
  }
  if (eager) {
    *eager = Eager(scene.n);
    for (int r = 0; r < used; ++r) eager->add(weights[r], scene.n - used + r, 1 / (2 * (1 - decay) * used));
  }
  PromptEnd end;
  end.q = queries.data();
  end.stride = Scene::kG * Scene::kD;
  end.n = last;
  end.pos0 = scene.n - last;
  end.blocks = scene.blocks.data();
  state.end_prompt(end);
}

}  // namespace

TEST_CASE("lfps: hundreds of steps choose what an eager LFPS in float64 chooses", "[select][lfps]") {
  for (const int last : {40, 5}) {  // queries at the prompt's end: more and fewer than are used
    Scene scene;
    const riffle_selection s = settings(0.05, 0.2, 1);
    const std::unique_ptr<Selector> lfps = make_lfps(s);
    const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape());
    CHECK(lfps->fits(state.get()));
    CHECK(!lfps->fits(nullptr));
    Eager eager(0);
    prompt(scene, *state, 400, last, &eager, 0.95);
    RowPlan plan;
    int wrong = 0, shrunk = 0;
    for (int step = 0; step < 300; ++step) {
      scene.token();
      const int n = scene.n, t = n - 1;
      eager.grow(n);
      std::set<int> init, near, candidates = eager.candidates(t, s.alpha, &init, &near);
      for (int i = n - kRecent; i < n; ++i) candidates.insert(i);
      std::vector<std::pair<double, int>> ranked;
      std::vector<double> sums(Scene::kG, 0.0);
      for (int h = 0; h < Scene::kG; ++h)
        for (int i : candidates) sums[h] += std::exp(scene.score(h, i));
      for (int i : candidates) {
        double c = 0;
        for (int h = 0; h < Scene::kG; ++h) c += std::exp(scene.score(h, i)) / sums[h];
        ranked.push_back({-c, i});
      }
      std::sort(ranked.begin(), ranked.end());
      const auto keep = std::min<size_t>(ranked.size(), static_cast<size_t>(std::ceil(double(s.top_tokens) * n)));
      shrunk += keep < ranked.size();
      std::vector<int32_t> kept;
      for (size_t i = 0; i < ranked.size(); ++i)
        if (i < keep || ranked[i].second >= n - kRecent) kept.push_back(ranked[i].second);
      std::sort(kept.begin(), kept.end());
      std::vector<double> w(kept.size(), 0.0);
      for (int h = 0; h < Scene::kG; ++h) {
        double sum = 0;
        for (int32_t i : kept) sum += std::exp(scene.score(h, i));
        for (size_t i = 0; i < kept.size(); ++i) w[i] += std::exp(scene.score(h, kept[i])) / sum / Scene::kG;
      }
      eager.update(double(s.decay), t, kept, w);
      std::set<int32_t> want(kept.begin(), kept.end());
      for (int i = 0; i < kSinks; ++i) want.insert(i);
      for (int i = n - kRecent; i < n; ++i) want.insert(i);

      const Row& row = scene.view(state.get());
      lfps->begin(row, plan);
      const std::vector<int32_t> got = tokens_of(row, plan);
      wrong += std::vector<int32_t>(want.begin(), want.end()) != got;
      CHECK(plan.index_bytes == int64_t(candidates.size() - kept.size()) * Scene::kD * 4);
      // It has attended to them itself.
      REQUIRE(plan.attended);
      for (int h = 0; h < Scene::kG; ++h) {
        double sum = 0, worst = 0;
        for (int32_t i : got) sum += std::exp(scene.score(h, i));
        for (int j = 0; j < Scene::kD; ++j) {
          double o = 0;
          for (int32_t i : got) o += std::exp(scene.score(h, i)) / sum * scene.value(i)[j];
          worst = std::max(worst, std::fabs(o - plan.stand_in[h * Scene::kD + j]));
        }
        CHECK(worst <= 1e-4);
        CHECK(std::fabs(plan.stand_in_l[h] - std::log(sum)) <= 1e-4);
      }
    }
    CHECK(wrong == 0);
    CHECK(shrunk > 100);
  }
}

TEST_CASE("lfps: everything a candidate and everything kept is dense", "[select][lfps]") {
  Scene scene;
  const std::unique_ptr<Selector> lfps = make_lfps(settings(1, 0.2, 1, 1));
  const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape());
  RowPlan plan;
  for (int i = 0; i < 150; ++i) {  // from nothing, past the sinks and the recent window
    scene.token();
    const Row& row = scene.view(state.get());
    lfps->begin(row, plan);
    CHECK(static_cast<int>(tokens_of(row, plan).size()) == scene.n);
    CHECK(plan.index_bytes == 0);
    CHECK(!plan.attended);  // the very arithmetic of dense
  }
}

TEST_CASE("lfps: a bypassed step reads sinks and recent tokens and leaves the tables alone", "[select][lfps]") {
  Scene scene, twin;
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 0.85));
  const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape()), other = lfps->make_state(scene.shape());
  prompt(scene, *state, 300, 32, nullptr, 0.95);
  prompt(twin, *other, 300, 32, nullptr, 0.95);
  RowPlan plan;
  for (int i = 0; i < 3; ++i) {
    scene.sink_gain = twin.sink_gain = 1.5f;
    scene.token(), twin.token();
    const Row& row = scene.view(state.get());
    lfps->begin(row, plan);
    std::vector<int32_t> want{0, 1, 2, 3};
    for (int k = scene.n - kRecent; k < scene.n; ++k) want.push_back(k);
    CHECK(tokens_of(row, plan) == want);
    CHECK(plan.index_bytes == 0);
    REQUIRE(plan.stand_in.size() == size_t(Scene::kG) * Scene::kD);
    REQUIRE(plan.stand_in_l.size() == size_t(Scene::kG));
    for (int j = 0; j < Scene::kD; ++j) {
      double mean = 0;
      for (int k = kSinks; k < 300; ++k) mean += scene.value(k)[j] / double(300 - kSinks);
      for (int h = 0; h < Scene::kG; ++h) CHECK(std::fabs(plan.stand_in[h * Scene::kD + j] - mean) <= 1e-5);
    }
    for (int h = 0; h < Scene::kG; ++h) {
      // The log-normal estimate of what is left out lies near its mass where queries are like the prompt's.
      double mass = 0;
      for (int k = kSinks; k < scene.n - kRecent; ++k) mass += std::exp(scene.score(h, k));
      CHECK(std::fabs(plan.stand_in_l[h] - std::log(mass)) <= 3);
    }
  }
  // The twin saw none of these steps. It chooses the same now.
  scene.sink_gain = twin.sink_gain = 0;
  RowPlan plan_twin;
  for (int i = 0; i < 3; ++i) {
    scene.token(), twin.token();
    lfps->begin(scene.view(state.get()), plan);
    lfps->begin(twin.view(other.get()), plan_twin);
    const std::vector<int32_t> got = tokens_of(scene.row, plan);
    CHECK(got.size() > size_t(kSinks + kRecent));
    CHECK(got == tokens_of(twin.row, plan_twin));
  }
  CHECK(make_lfps(settings(0.05, 0.2, 1))->rule().host_only);
}

TEST_CASE("lfps: a sequence without a prompt starts from exact top tokens; a cut one goes on", "[select][lfps]") {
  Scene scene;
  const std::unique_ptr<Selector> lfps = make_lfps(settings(20, 0.2, 1));
  std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape());
  for (int i = 0; i < 300; ++i) scene.token();
  RowPlan plan;
  lfps->begin(scene.view(state.get()), plan);
  std::vector<std::pair<double, int>> ranked;
  std::vector<double> sums(Scene::kG, 0.0);
  for (int h = 0; h < Scene::kG; ++h)
    for (int i = kSinks; i < scene.n; ++i) sums[h] += std::exp(scene.score(h, i));
  for (int i = kSinks; i < scene.n; ++i) {
    double c = 0;
    for (int h = 0; h < Scene::kG; ++h) c += std::exp(scene.score(h, i)) / sums[h];
    ranked.push_back({-c, i});
  }
  std::sort(ranked.begin(), ranked.end());
  std::set<int32_t> want{0, 1, 2, 3};
  for (int i = 0; i < 20; ++i) want.insert(ranked[i].second);
  for (int i = scene.n - kRecent; i < scene.n; ++i) want.insert(i);
  CHECK(tokens_of(scene.row, plan) == std::vector<int32_t>(want.begin(), want.end()));
  CHECK(plan.index_bytes == int64_t(scene.n - int(want.size())) * Scene::kD * 4);
  for (int i = 0; i < 50; ++i) {
    scene.token();
    lfps->begin(scene.view(state.get()), plan);
  }
  const uint64_t bytes = state->bytes();
  state->truncate(200);
  CHECK(state->bytes() < bytes);
  scene.n = 200;
  scene.blocks.resize((200 + Scene::kB - 1) / Scene::kB);
  for (int i = 0; i < 5; ++i) {
    scene.token();
    lfps->begin(scene.view(state.get()), plan);
    for (int32_t token : tokens_of(scene.row, plan)) CHECK(token < scene.n);
  }
  state->truncate(0);
  scene.n = 0;
  scene.blocks.clear(), scene.store.clear();
  for (int i = 0; i < 3; ++i) {
    scene.token();
    lfps->begin(scene.view(state.get()), plan);
    CHECK(static_cast<int>(tokens_of(scene.row, plan).size()) == scene.n);
  }
}

TEST_CASE("lfps through the engine: emu is cpu, threads do not matter, everything is dense", "[select][lfps][engine]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), steps = test::some_tokens(24, 6);
  const auto logits = [&](const riffle_selection& s, riffle_device device, int threads) {
    riffle_context_options o = test::options();
    o.device = device;
    o.n_ctx = 1024;
    o.n_threads = threads;
    o.selection = s;
    test::Runtime r(o);
    return test::run(r, r.session(), prompt, steps);
  };
  riffle_selection dense;
  riffle_selection_defaults(&dense);
  dense.selector = RIFFLE_SELECTOR_DENSE;
  const auto all = logits(dense, RIFFLE_DEVICE_CPU, 2), some = logits(settings(0.05, 0.2, 0.85), RIFFLE_DEVICE_CPU, 1);
  CHECK(test::same_bits(all, logits(settings(1, 0.2, 1, 1), RIFFLE_DEVICE_CPU, 2)));
  CHECK(!test::same_bits(all, some));
  CHECK(test::same_bits(some, logits(settings(0.05, 0.2, 0.85), RIFFLE_DEVICE_CPU, 3)));
  CHECK(test::same_bits(some, logits(settings(0.05, 0.2, 0.85), RIFFLE_DEVICE_EMU, 2)));
}

TEST_CASE("lfps: a step that failed leaves nothing behind", "[select][lfps]") {
  // At a decay of 0 every step takes all entries anew, at 0.6 some do: undone all the same.
  for (const double decay : {0.95, 0.6, 0.0}) {
    INFO("decay " << decay);
    Scene scene;
    riffle_selection s = settings(0.05, 0.2, 1);
    s.decay = static_cast<float>(decay);
    const std::unique_ptr<Selector> lfps = make_lfps(s);
    const std::unique_ptr<SelectorState> one = lfps->make_state(scene.shape()), other = lfps->make_state(scene.shape());
    prompt(scene, *one, 400, 32, nullptr, decay);
    Scene twin;  // the same tokens again
    prompt(twin, *other, 400, 32, nullptr, decay);
    RowPlan plan, plan_other;
    int harmed = 0;
    for (int step = 0; step < 300; ++step) {
      scene.token();
      if (step % 3 == 1) {  // first for a query that looks elsewhere
        std::vector<float> wanted = scene.q;
        for (float& x : scene.q) x = -3 * x;
        lfps->begin(scene.view(one.get()), plan);
        if (step % 2) one->truncate(scene.n - 1);
        else lfps->begin(scene.view(other.get()), plan_other), other->truncate(scene.n - 1), one->truncate(scene.n - 1);
        scene.q = wanted;
      }
      lfps->begin(scene.view(one.get()), plan);
      lfps->begin(scene.view(other.get()), plan_other);
      harmed += tokens_of(scene.row, plan) != tokens_of(scene.row, plan_other);
    }
    CHECK(harmed == 0);
  }
}

TEST_CASE("lfps: candidates made ahead are not used with other settings", "[select][lfps]") {
  // Two states see the same steps; one is asked with other settings from the middle on, after its candidates are made.
  for (const auto& [alpha, rate] : {std::pair{0.8, 0.0}, {0.2, 0.3}, {0.0, 0.0}}) {
    INFO("alpha " << alpha << " rate " << rate);
    Scene scene;
    const std::unique_ptr<Selector> first = make_lfps(settings(12, 0.2, 1)),
                                    then = make_lfps(settings(12, alpha, 1, rate));
    const std::unique_ptr<SelectorState> state = first->make_state(scene.shape());
    prompt(scene, *state, 400, 32, nullptr, 0.95);
    RowPlan plan;
    for (int i = 0; i < 20; ++i) {
      scene.token();
      first->begin(scene.view(state.get()), plan);
    }
    CHECK(then->fits(state.get()));
    scene.token();
    // What was scored follows from the candidates: all but sinks, recent and (at most) those kept.
    const int64_t key = Scene::kD * 4;
    const std::unique_ptr<SelectorState> same = then->make_state(scene.shape());
    Scene again;
    prompt(again, *same, 400, 32, nullptr, 0.95);
    RowPlan plan_same;
    for (int i = 0; i < 20; ++i) {
      again.token();
      first->begin(again.view(same.get()), plan_same);
    }
    same->truncate(again.n + 1);  // candidates are dropped, nothing else
    again.token();
    then->begin(again.view(same.get()), plan_same);
    then->begin(scene.view(state.get()), plan);
    CHECK(plan.index_bytes == plan_same.index_bytes);
    CHECK(tokens_of(scene.row, plan) == tokens_of(again.row, plan_same));
    const auto scored = plan.index_bytes / key + static_cast<int64_t>(tokens_of(scene.row, plan).size());
    if (rate > 0) CHECK(scored == static_cast<int64_t>(std::ceil(rate * (scene.n - kSinks))) + kSinks + kRecent);
  }
}

TEST_CASE("lfps tables: a prompt that follows adds to them, the more the longer it is", "[select][lfps]") {
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
    double held = 0;  // of what there was
    for (int i = kSinks; i < pair.n - tokens; ++i) held += std::min(before.v[i], pair.tables.vertical(i));
    if (tokens == 5) CHECK(held >= 7);
    for (int i = 0; i < 20; ++i) pair.step(kDecay, true);
    pair.compare(0.2);
  }
}

TEST_CASE("lfps: a short follow-up prompt keeps what was learnt; one that fails changes nothing", "[select][lfps]") {
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 1));
  Scene scene;
  scene.steady = 1;
  // One state sees the follow-up as a prompt, one as steps, one (`fresh`) nothing of what was before it.
  const auto make = [&] { return lfps->make_state(scene.shape()); };
  const std::unique_ptr<SelectorState> state = make(), steps = make(), fresh = make(), twin = make();
  prompt(scene, *state, 600, 32, nullptr, 0.95);
  PromptEnd end;
  end.stride = Scene::kG * Scene::kD;
  const float up = std::sqrt(float(Scene::kD));
  const auto replay = [&](SelectorState& to) {  // the prompt's tables, from a scene of its own
    Scene own;
    own.steady = 1;
    prompt(own, to, 600, 32, nullptr, 0.95);
  };
  replay(*steps), replay(*twin);
  std::vector<float> queries;
  RowPlan plan;
  for (int i = 0; i < 3; ++i) {  // queries that look at what no other does
    scene.token();
    for (float& x : scene.q) x = -x;
    for (float x : scene.q) queries.push_back(x * up);
    lfps->begin(scene.view(steps.get()), plan);
  }
  end.n = 3;
  end.begin = end.pos0 = 600;
  end.blocks = scene.blocks.data();
  std::vector<float> wrong = queries;  // a first try, which fails
  for (float& x : wrong) x = -3 * x;
  end.q = wrong.data();
  state->end_prompt(end);
  state->truncate(600);
  end.q = queries.data();
  for (SelectorState* to : {state.get(), twin.get(), fresh.get()}) to->end_prompt(end);
  RowPlan plan_twin;
  double held = 0, held_steps = 0, held_fresh = 0;  // shares of the weight
  for (int i = 0; i < 5; ++i) {
    scene.token();
    const auto share = [&](SelectorState& of) {
      lfps->begin(scene.view(&of), plan_twin);
      double some = 0, all = 0;
      for (int32_t k : tokens_of(scene.row, plan_twin)) some += std::exp(scene.score(0, k));
      for (int k = 0; k < scene.n; ++k) all += std::exp(scene.score(0, k));
      return some / all;
    };
    lfps->begin(scene.view(state.get()), plan);
    held += share(*twin);
    CHECK(tokens_of(scene.row, plan) == tokens_of(scene.row, plan_twin));
    held_steps += share(*steps);
    held_fresh += share(*fresh);
  }
  INFO(held << ", as steps " << held_steps << ", without what was before " << held_fresh);
  CHECK(held >= 0.9 * held_steps);
  CHECK(held >= 1.3 * held_fresh);
}

static void fail_in_layer_1(void*, const riffle_trace* trace) {
  if (trace->layer == 1) throw std::runtime_error("made to fail");
}

TEST_CASE("lfps through the engine: a step that fails can be made again", "[select][lfps][engine]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), steps = test::some_tokens(30, 6);
  riffle_context_options o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(0.05, 0.2, 0.85);
  test::Runtime straight(o), broken(o);
  const auto want = test::run(straight, straight.session(), prompt, steps);
  riffle_session* s = broken.session();
  broken.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i % 4 == 2) {
      broken.check(riffle_set_trace(broken.context, fail_in_layer_1, nullptr, false));
      const int32_t other = prompt[i];
      CHECK(riffle_step(broken.context, &s, &other, 1) == RIFFLE_INTERNAL);
      broken.check(riffle_set_trace(broken.context, nullptr, nullptr, false));
    }
    broken.check(riffle_step(broken.context, &s, &steps[i], 1));
    CHECK(test::same_bits({broken.logits(s)}, {want[i + 1]}));
  }
}

TEST_CASE("score tables and choosing: every instruction set gives what plain C++ gives", "[select][lfps][kernels]") {
  std::mt19937 random(9);
  const auto uniform = [&] { return static_cast<float>(random() % 1000003) / 1000003.0f; };
  for (const cpu::Isa isa : {cpu::Isa::Avx2, cpu::Isa::Avx512, cpu::Isa::Amx}) {
    if (!cpu::isa_available(isa)) continue;
    const cpu::ScoreTableKernels &a = *cpu::score_table_kernels(isa), &b = cpu::kScoreTableScalar;
    for (const int n : {1, 15, 16, 17, 100, 513, 3000}) {
      INFO("isa " << int(isa) << " n " << n);
      const int64_t t = 4 * n + 70, words = t / 64 + 2;
      for (const bool by_distance : {false, true}) {
        std::vector<int32_t> ids;
        for (int64_t i = 0; i < t && static_cast<int>(ids.size()) < n; i += 1 + random() % 5) ids.push_back(i);
        const auto count = static_cast<int64_t>(ids.size());
        std::vector<float> w(count), table(t + 1), twin, before(count), before_twin(count);
        for (float& x : w) x = uniform();
        for (float& x : table) x = uniform();
        twin = table;
        std::vector<int32_t> index(count + 16), index_twin(index);
        std::vector<float> value(count + 16), value_twin(value);
        double power[4] = {}, power_twin[4] = {};
        const cpu::TableAt at{by_distance, t};
        const int64_t live = a.lift(table.data(), at, ids.data(), w.data(), 0.7f, count, 0.6f, before.data(),
                                    index.data(), value.data(), power);
        REQUIRE(live == b.lift(twin.data(), at, ids.data(), w.data(), 0.7f, count, 0.6f, before_twin.data(),
                               index_twin.data(), value_twin.data(), power_twin));
        CHECK(table == twin);
        CHECK(before == before_twin);
        for (int k = 0; k < 4; ++k) CHECK(std::fabs(power[k] - power_twin[k]) <= 1e-9 * std::fabs(power_twin[k]));
        index.resize(live), index_twin.resize(live), value.resize(live), value_twin.resize(live);
        CHECK(index == index_twin);
        CHECK(value == value_twin);
        for (const bool with_touched : {false, true}) {
          std::vector<uint64_t> touched(words), bits[4];
          for (uint64_t& x : touched) x = uint64_t(random()) << 32 | random();
          for (auto& x : bits) x.assign(words + 2, 0);
          const auto sift = [&](const cpu::ScoreTableKernels& k, std::vector<int32_t> i, std::vector<float> v,
                                int which) {
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
      const cpu::GatherKernels &g = *cpu::gather_kernels(isa), &h = cpu::kGatherScalar;
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
      const float sum = g.pack_sum(marks.data(), n, x.data()), want = h.pack_sum(marks.data(), n, twin.data());
      CHECK(std::fabs(sum - want) <= 1e-5f * want);
      x.resize(kept), twin.resize(kept);
      CHECK(x == twin);
    }
  }
}

TEST_CASE("gathered keys and values: every instruction set agrees with float64", "[select][lfps][kernels]") {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const cpu::Isa isa : {cpu::Isa::Scalar, cpu::Isa::Avx2, cpu::Isa::Avx512, cpu::Isa::Amx}) {
    if (!cpu::isa_available(isa)) continue;
    const cpu::GatherKernels& k = *cpu::gather_kernels(isa);
    for (const int d : {6, 64, 100, 128})
      for (const int g : {1, 3, 4, 7, 16, 21})
        for (const int n : {1, 5, 37}) {
          const cpu::KvType type = (d + g + n) % 2 ? cpu::KvType::F16 : cpu::KvType::F32;
          std::vector<float> q(size_t(g) * d), rows(size_t(n) * d), scores(size_t(g) * (n + 3)), out(size_t(g) * d);
          for (float& x : q) x = normal(random);
          for (float& x : rows) x = normal(random);
          std::vector<std::byte> stored(rows.size() * 4);
          cpu::kernels(isa)->attention.kv_store(rows.data(), rows.size(), type, stored.data());
          cpu::kernels(isa)->attention.kv_load(stored.data(), rows.size(), type, rows.data());  // as rounded
          std::vector<const void*> at;
          for (int i = 0; i < n; ++i) at.push_back(stored.data() + size_t(i) * d * (type == cpu::KvType::F16 ? 2 : 4));
          k.dot(q.data(), g, d, at.data(), n, type, 0, scores.data(), n + 3);
          k.values(scores.data(), n + 3, g, d, at.data(), n, type, out.data());
          double worst = 0;
          for (int h = 0; h < g; ++h) {
            std::vector<double> sum(d, 0.0);
            for (int i = 0; i < n; ++i) {
              double dot = 0;
              for (int j = 0; j < d; ++j) dot += double(q[h * d + j]) * rows[i * d + j];
              worst = std::max(worst, std::fabs(dot - scores[h * (n + 3) + i]));
              for (int j = 0; j < d; ++j) sum[j] += double(scores[h * (n + 3) + i]) * rows[i * d + j];
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
