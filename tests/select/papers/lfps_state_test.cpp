// The state that LFPS keeps of a sequence, through failed steps, follow-up prompts, cuts and other
// settings.
#include <stdexcept>

#include "riffle_measure.h"
#include "select/papers/papers.h"
#include "tests/engine/steps.h"
#include "tests/select/papers/lfps_scene.h"

using namespace riffle;
using namespace riffle::test::lfps;

TEST_CASE("lfps: a step that failed leaves nothing behind", "[select][lfps][arithmetic]") {
  // At a decay of 0 every step rescales all entries, at 0.6 some steps do. Both can be undone.
  for (const double decay : {0.95, 0.6, 0.0}) {
    INFO("decay " << decay);
    Scene scene;
    Selection s = settings(0.05, 0.2, 1);
    s.decay = static_cast<float>(decay);
    const std::unique_ptr<Selector> lfps = make_lfps(s);
    const std::unique_ptr<SelectorState> one = lfps->make_state(scene.shape()),
                                         other = lfps->make_state(scene.shape());
    prompt(scene, *one, 400, 32, nullptr, decay);
    Scene twin;  // the same tokens again
    prompt(twin, *other, 400, 32, nullptr, decay);
    RowPlan plan, plan_other;
    int harmed = 0;
    for (int step = 0; step < 300; ++step) {
      scene.token();
      if (step % 3 == 1) {  // first a step with a query that attends to other tokens
        std::vector<float> wanted = scene.q;
        for (float& x : scene.q) x = -3 * x;
        lfps->begin(scene.view(one.get()), plan);
        if (step % 2) one->truncate(scene.n - 1);
        else
          lfps->begin(scene.view(other.get()), plan_other), other->truncate(scene.n - 1),
              one->truncate(scene.n - 1);
        scene.q = wanted;
      }
      lfps->begin(scene.view(one.get()), plan);
      lfps->begin(scene.view(other.get()), plan_other);
      harmed += tokens_of(scene.row, plan) != tokens_of(scene.row, plan_other);
    }
    CHECK(harmed == 0);
  }
}

TEST_CASE("lfps: candidates made ahead are not used with other settings",
          "[select][lfps][arithmetic]") {
  // Two states see the same steps. Then other settings begin: one state still has candidates of the
  // earlier settings, the other has dropped them.
  for (const double alpha : {0.8, 0.05, 0.0}) {
    INFO("alpha " << alpha);
    Scene scene;
    const std::unique_ptr<Selector> first = make_lfps(settings(12, 0.2, 1)),
                                    then = make_lfps(settings(12, alpha, 1));
    const std::unique_ptr<SelectorState> state = first->make_state(scene.shape());
    prompt(scene, *state, 400, 32, nullptr, 0.95);
    RowPlan plan;
    for (int i = 0; i < 20; ++i) {
      scene.token();
      first->begin(scene.view(state.get()), plan);
    }
    CHECK(then->fits(state.get()));
    scene.token();
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
  }
}

TEST_CASE("lfps: a short follow-up prompt keeps what was learnt; one that fails changes nothing",
          "[select][lfps][arithmetic]") {
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 1));
  Scene scene;
  scene.steady = 1;
  // One state gets the follow-up as a prompt, one as steps, and one (`fresh`) without the prompt
  // before it.
  const auto make = [&] { return lfps->make_state(scene.shape()); };
  const std::unique_ptr<SelectorState> state = make(), steps = make(), fresh = make(),
                                       twin = make();
  prompt(scene, *state, 600, 32, nullptr, 0.95);
  PromptEnd end;
  end.stride = Scene::kG * Scene::kD;
  const float up = std::sqrt(float(Scene::kD));
  const auto replay = [&](SelectorState& to) {  // gives `to` the same first prompt
    Scene own;
    own.steady = 1;
    prompt(own, to, 600, 32, nullptr, 0.95);
  };
  replay(*steps), replay(*twin);
  std::vector<float> queries;
  RowPlan plan;
  for (int i = 0; i < 3; ++i) {  // queries that attend to other tokens than all others
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

static void fail_in_layer_1(void*, const riffle_row_report* report) {
  if (report->layer == 1) throw std::runtime_error("made to fail");
}

TEST_CASE("lfps through the engine: a step that fails can be made again",
          "[select][lfps][engine][arithmetic]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), steps = test::some_tokens(30, 6);
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(0.05, 0.2, 0.85);
  test::Runtime straight(o), broken(o);
  const auto want = test::run(straight, straight.session(), prompt, steps);
  riffle_session* s = broken.session(prompt);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i % 4 == 2) {
      broken.check(riffle_set_row_report(broken.context, fail_in_layer_1, nullptr, false));
      const int32_t other = prompt[i];
      CHECK(riffle_step(broken.context, &s, &other, 1) == RIFFLE_INTERNAL);
      broken.check(riffle_set_row_report(broken.context, nullptr, nullptr, false));
    }
    broken.check(riffle_step(broken.context, &s, &steps[i], 1));
    CHECK(test::same_bits({broken.logits(s)}, {want[i + 1]}));
  }
}

TEST_CASE("lfps: of a cut by a few tokens nothing is left", "[select][lfps][arithmetic]") {
  const std::unique_ptr<Selector> lfps = make_lfps(settings(0.05, 0.2, 1));
  for (const int cut : {2, 3, 20, 25}) {  // within the steps, to the prompt's end, into the prompt
    INFO("cut by " << cut);
    Scene scene;
    const std::unique_ptr<SelectorState> state = lfps->make_state(scene.shape()),
                                         fresh = lfps->make_state(scene.shape());
    prompt(scene, *state, 400, 32, nullptr, 0.95);
    RowPlan plan, plan_fresh;
    for (int i = 0; i < 20; ++i) {
      scene.token();
      lfps->begin(scene.view(state.get()), plan);
    }
    scene.n -= cut;
    scene.blocks.resize((scene.n + Scene::kB - 1) / Scene::kB);
    scene.store.resize(scene.blocks.size());
    state->truncate(scene.n);
    for (int i = 0; i < 30; ++i) {
      scene.token();
      lfps->begin(scene.view(state.get()), plan);
      const std::vector<int32_t> got = tokens_of(scene.row, plan);
      lfps->begin(scene.view(fresh.get()), plan_fresh);
      CHECK(got == tokens_of(scene.row, plan_fresh));
      CHECK(plan.index_bytes == plan_fresh.index_bytes);
    }
  }
}

TEST_CASE("lfps through the engine: an answer does not depend on what was answered before it",
          "[select][lfps][engine][arithmetic]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), steps = test::some_tokens(12, 6);
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection.selector = SelectorKind::DENSE;
  // Like riffle eval: goes back into the prompt, reads its end again, and runs other steps with
  // another setting.
  const auto answer = [&](const std::vector<Selection>& before, size_t reread) {
    test::Runtime r(o);
    riffle_session* s = r.session(prompt);
    std::vector<std::vector<float>> out;
    std::vector<Selection> all = before;
    all.push_back(settings(0.05, 0.2, 0.85));
    for (size_t k = 0; k < all.size(); ++k) {
      r.check(test::set_selection(r.context, &all[k]));
      const size_t keep = prompt.size() - reread;
      r.check(riffle_session_truncate(s, keep));
      if (reread > 0) r.check(riffle_prefill(s, prompt.data() + keep, reread, nullptr, nullptr));
      const bool last = k + 1 == all.size();
      for (size_t i = 0; i < steps.size(); ++i) {
        const int32_t token = last ? steps[i] : prompt[7 * i + 1];
        r.check(riffle_step(r.context, &s, &token, 1));
        if (last) out.push_back(r.logits(s));
      }
    }
    return out;
  };
  for (const size_t reread : {0, 5, 64}) {
    INFO(reread << " tokens read again");
    const auto alone = answer({}, reread);
    CHECK(test::same_bits(alone, answer({settings(0.1, 0.05, 0.85)}, reread)));
    CHECK(test::same_bits(alone, answer({settings(0.02, 0.6, 1), settings(0.2, 0.2, 1)}, reread)));
  }
}

TEST_CASE(
    "lfps through the engine: a follow-up prompt is taken back whole, also after a step that "
    "failed",
    "[select][lfps][engine][arithmetic]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 5), more = test::some_tokens(40, 8),
                             steps = test::some_tokens(30, 6);
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection = settings(0.05, 0.2, 1);
  test::Runtime straight(o), broken(o);
  riffle_session *a = straight.session(), *b = broken.session();
  const auto step = [&](int32_t token) {
    straight.check(riffle_step(straight.context, &a, &token, 1));
    broken.check(riffle_step(broken.context, &b, &token, 1));
    return test::same_bits({straight.logits(a)}, {broken.logits(b)});
  };
  straight.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  broken.check(riffle_prefill(b, prompt.data(), prompt.size(), nullptr, nullptr));
  for (int i = 0; i < 15; ++i) REQUIRE(step(steps[i]));
  const size_t held = riffle_session_length(b);
  broken.check(riffle_prefill(b, more.data(), more.size(), nullptr, nullptr));
  broken.check(riffle_set_row_report(broken.context, fail_in_layer_1, nullptr, false));
  CHECK(riffle_step(broken.context, &b, &steps[15], 1) == RIFFLE_INTERNAL);
  broken.check(riffle_set_row_report(broken.context, nullptr, nullptr, false));
  broken.check(riffle_session_truncate(b, held));
  for (int i = 15; i < 30; ++i) CHECK(step(steps[i]));
}
