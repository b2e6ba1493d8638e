// Memory that only prompts need: the pool lends it, and a long prompt's residual stream may be in
// host memory. No text depends on either.
#include "tests/engine/steps.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions cuda_options(SelectorKind selector) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.block_size = 16;
  o.prefill_chunk = 128;
  o.n_sessions = 2;
  o.selection.selector = selector;
  return o;
}

MemoryPlan plan_of(const ContextOptions& o, riffle_status expected = RIFFLE_OK) {
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  MemoryPlan plan{};
  char err[1024] = "";
  const riffle_status status = plan_memory(model, &o, &plan, err, sizeof err);
  riffle_model_free(model);
  INFO(err);
  REQUIRE(status == expected);
  return plan;
}

// Prompts and steps of two sessions in turn: blocks that were in lent slots come back when they are
// needed.
std::vector<std::vector<float>> play(Runtime& r) {
  riffle_session* s[2] = {r.session(), r.session()};
  auto out = run(r, s[0], some_tokens(1500, 1), some_tokens(20, 2));
  const auto add = [&](const std::vector<std::vector<float>>& more) {
    out.insert(out.end(), more.begin(), more.end());
  };
  add(run(r, s[1], some_tokens(1111, 3), some_tokens(20, 4)));
  add(run(r, s[0], some_tokens(300, 5), some_tokens(20, 6)));
  add(run(r, s[1], some_tokens(90, 7), some_tokens(20, 8)));
  return out;
}

}  // namespace

TEST_CASE("cuda: a prompt borrows the pool's memory, and its rows may be in host memory",
          "[cuda]") {
  if (skip()) return;
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::SHARE})) {
    INFO("selector " << selector);
    ContextOptions o = cuda_options(selector);
    const MemoryPlan roomy = plan_of(o);
    CHECK(roomy.lent == roomy.prompt + roomy.prefill_kv);
    CHECK(roomy.prompt_host == 0);
    CHECK(roomy.pool >= roomy.lent);
    Runtime free_of_limits(o);
    const auto want = play(free_of_limits);

    o.gpu_mem = roomy.min_gpu_mem;
    const MemoryPlan tight = plan_of(o);
    CHECK(tight.prompt_host == uint64_t(o.n_ctx) * 4 * 512);  // [n_ctx][dim] f32
    CHECK(tight.prompt < roomy.prompt);
    CHECK(tight.total <= o.gpu_mem);
    CHECK(tight.total == tight.weights + tight.activations + tight.digests + tight.prompt +
                             tight.prefill_kv + tight.pool - tight.lent);
    Runtime small(o);
    CHECK(same_bits(play(small), want));
    CHECK(small.stats().peak_device_bytes <= o.gpu_mem);
    // A byte less does not do, and the text names what a prompt takes.
    o.gpu_mem = roomy.min_gpu_mem - 1;
    plan_of(o, RIFFLE_OUT_OF_MEMORY);

    // With `slots` given, nothing is lent.
    o.gpu_mem = 0;
    o.slots = 3000;
    CHECK(plan_of(o).lent == 0);
    Runtime given(o);
    CHECK(same_bits(play(given), want));
  }
}

TEST_CASE("cuda: a prompt that is scored from host memory has the same scores", "[cuda]") {
  if (skip()) return;
  ContextOptions o = cuda_options(psa_or_share());
  const auto prompt = some_tokens(1000, 9);
  std::vector<TokenScore> scores[2];
  for (std::vector<TokenScore>& out : scores) {
    Runtime r(o);
    out.resize(prompt.size());
    r.context->engine->prefill(*r.session()->sequence, prompt, out.data(), {});
    o.gpu_mem = plan_of(o).min_gpu_mem;
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    REQUIRE(scores[0][i].logsumexp == scores[1][i].logsumexp);
    REQUIRE(scores[0][i].argmax == scores[1][i].argmax);
    REQUIRE(scores[0][i].next_logprob == scores[1][i].next_logprob);
  }
}
