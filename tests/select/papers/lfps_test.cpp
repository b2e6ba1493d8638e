// LFPS's choices and attention against brute force in float64: properties 1, 3, 8 and 13 of
// src/select/README.md.
#include "select/papers/papers.h"
#include "tests/engine/steps.h"
#include "tests/select/dropped.h"
#include "tests/select/papers/lfps_scene.h"

using namespace riffle;
using namespace riffle::test::lfps;

TEST_CASE("lfps: hundreds of steps choose what an eager LFPS in float64 chooses",
          "[select][lfps][arithmetic]") {
  for (const int last : {40, 5}) {  // queries at the prompt's end: more and fewer than LFPS uses
    Scene scene;
    const Selection s = settings(0.05, 0.2, 1);
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
      const auto keep =
          std::min<size_t>(ranked.size(), static_cast<size_t>(std::ceil(double(s.top_tokens) * n)));
      shrunk += keep < ranked.size();
      std::vector<int32_t> kept;
      for (size_t i = 0; i < ranked.size(); ++i)
        if (i < keep || ranked[i].second >= n - kRecent) kept.push_back(ranked[i].second);
      std::sort(kept.begin(), kept.end());
      std::vector<double> w(kept.size(), 0.0);
      for (int h = 0; h < Scene::kG; ++h) {
        double sum = 0;
        for (int32_t i : kept) sum += std::exp(scene.score(h, i));
        for (size_t i = 0; i < kept.size(); ++i)
          w[i] += std::exp(scene.score(h, kept[i])) / sum / Scene::kG;
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
      // The selector has attended to the tokens itself.
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

TEST_CASE("lfps: a first step, whose candidates are all tokens, is dense if it keeps everything",
          "[select][lfps][arithmetic]") {
  Scene scene;
  const std::unique_ptr<Selector> lfps = make_lfps(settings(1, 0.2, 1));
  RowPlan plan;
  for (int i = 0; i < 150; ++i) {  // from nothing, past the sinks and the recent tokens
    scene.token();
    const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape());
    const Row& row = scene.view(state.get());
    lfps->begin(row, plan);
    CHECK(static_cast<int>(tokens_of(row, plan).size()) == scene.n);
    CHECK(plan.index_bytes == 0);
    CHECK(!plan.attended);  // exactly the arithmetic of dense
  }
}

TEST_CASE("lfps: a bypassed step reads sinks and recent tokens and leaves the tables alone",
          "[select][lfps][arithmetic]") {
  Scene scene, twin;
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 0.85));
  const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape()),
                                       other = lfps->make_state(scene.shape());
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
      for (int h = 0; h < Scene::kG; ++h)
        CHECK(std::fabs(plan.stand_in[h * Scene::kD + j] - mean) <= 1e-5);
    }
    for (int h = 0; h < Scene::kG; ++h) {
      // The log-normal estimate for the tokens left out is near their mass, since the queries are
      // like the prompt's.
      double mass = 0;
      for (int k = kSinks; k < scene.n - kRecent; ++k) mass += std::exp(scene.score(h, k));
      CHECK(std::fabs(plan.stand_in_l[h] - std::log(mass)) <= 3);
    }
  }
  // The twin had none of these steps, and now chooses the same tokens.
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
  CHECK(make_lfps(settings(0.05, 0.2, 1))->host_only());
}

TEST_CASE("lfps: a sequence without a prompt starts from exact top tokens; so does a cut one",
          "[select][lfps][arithmetic]") {
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
  std::unique_ptr<SelectorState> fresh = lfps->make_state(scene.shape());
  RowPlan plan_fresh;
  for (int i = 0; i < 5; ++i) {
    scene.token();
    lfps->begin(scene.view(state.get()), plan);
    const std::vector<int32_t> got = tokens_of(scene.row, plan);
    for (int32_t token : got) CHECK(token < scene.n);
    lfps->begin(scene.view(fresh.get()), plan_fresh);
    CHECK(got == tokens_of(scene.row, plan_fresh));
    CHECK(plan.index_bytes == plan_fresh.index_bytes);
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

TEST_CASE("lfps through the engine: emu is cpu, threads do not matter, everything is dense",
          "[select][lfps][engine][arithmetic]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), steps = test::some_tokens(24, 6);
  const auto logits = [&](const Selection& s, DeviceKind device, int threads) {
    ContextOptions o = test::options();
    o.device = device;
    o.n_ctx = 1024;
    o.n_threads = threads;
    o.selection = s;
    test::Runtime r(o);
    return test::run(r, r.session(), prompt, steps);
  };
  // Runs the first step after a prompt that was read with dense attention.
  const auto first = [&](const Selection& s) {
    ContextOptions o = test::options();
    o.n_ctx = 1024;
    o.selection.selector = SelectorKind::DENSE;
    test::Runtime r(o);
    riffle_session* session = r.session(prompt);
    r.check(test::set_selection(r.context, &s));
    r.check(riffle_step(r.context, &session, &steps[0], 1));
    return std::vector<std::vector<float>>{r.logits(session)};
  };
  Selection dense;
  dense.selector = SelectorKind::DENSE;
  const auto all = logits(dense, DeviceKind::CPU, 2),
             some = logits(settings(0.05, 0.2, 0.85), DeviceKind::CPU, 1);
  CHECK(test::same_bits(first(dense), first(settings(1, 0.2, 1))));
  CHECK(!test::same_bits(all, some));
  CHECK(test::same_bits(some, logits(settings(0.05, 0.2, 0.85), DeviceKind::CPU, 3)));
  CHECK(test::same_bits(some, logits(settings(0.05, 0.2, 0.85), DeviceKind::EMU, 2)));
}

TEST_CASE("what lfps drops errs by the identity and within the bounds of dropped.h",
          "[select][lfps][arithmetic]") {
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 1));
  Scene scene;
  const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape());
  prompt(scene, *state, 500, 32, nullptr, 0.95);
  RowPlan plan;
  for (int i = 0; i < 40; ++i) {
    scene.token();
    lfps->begin(scene.view(state.get()), plan);
    REQUIRE(plan.attended);
    test::check_dropped(scene.row, plan);
  }
}

TEST_CASE("lfps over a group whose heads look alike is that over one head",
          "[select][lfps][arithmetic]") {
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 0.85));
  Scene scene, twin;
  scene.alike = twin.alike = true;
  StateShape one = scene.shape();
  one.g = 1;
  const std::unique_ptr<SelectorState> group = lfps->make_state(scene.shape()),
                                       single = lfps->make_state(one);
  prompt(scene, *group, 500, 32, nullptr, 0.95);
  prompt(twin, *single, 500, 32, nullptr, 0.95);
  RowPlan plan, plan_one;
  int bypassed = 0;
  for (int i = 0; i < 60; ++i) {
    scene.sink_gain = i % 5 == 4 ? 1.5f : 0;
    scene.token();
    lfps->begin(scene.view(group.get()), plan);
    Row row = scene.view(single.get());
    row.g = 1;
    lfps->begin(row, plan_one);
    CHECK(tokens_of(scene.row, plan) == tokens_of(row, plan_one));
    CHECK(plan.attended == plan_one.attended);
    CHECK(plan.index_bytes == plan_one.index_bytes);
    bypassed += !plan.attended;
    REQUIRE(plan.stand_in.size() == size_t(Scene::kG) * Scene::kD);
    REQUIRE(plan_one.stand_in.size() == size_t(Scene::kD));
    for (size_t j = 0; j < plan.stand_in.size(); ++j)
      CHECK(std::fabs(plan.stand_in[j] - plan_one.stand_in[j % Scene::kD]) <= 1e-5f);
  }
  CHECK(bypassed > 5);
  CHECK(bypassed < 30);
}
