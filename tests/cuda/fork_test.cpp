// Forked sessions on a GPU: same bits as sessions of their own that went through the same prompts, steps and cuts.
#include "../engine/forks.h"
#include "device.h"

using namespace riffle::test;

namespace {

riffle_context_options small(riffle_selector selector) {
  riffle_context_options o = options();
  o.device = RIFFLE_DEVICE_CUDA;
  o.n_ctx = 1024;
  o.block_size = 16;
  o.selection.selector = selector;
  o.selection.epsilon = 0.8f;
  o.selection.microbatch = 2;
  o.selection.budget = 0.4f;
  o.selection.select_tokens = 60;
  o.selection.init_tokens = 8;
  o.selection.local_tokens = 40;
  o.selection.cache_threshold = 2;
  return o;
}

constexpr riffle_selector kSelectors[] = {RIFFLE_SELECTOR_DENSE,    RIFFLE_SELECTOR_PSA,         RIFFLE_SELECTOR_TOPK,
                                          RIFFLE_SELECTOR_TWILIGHT, RIFFLE_SELECTOR_TOKENSELECT, RIFFLE_SELECTOR_RIFFLE};
constexpr riffle_selector kHosted[] = {RIFFLE_SELECTOR_DENSE, RIFFLE_SELECTOR_PSA, RIFFLE_SELECTOR_TOPK};

}  // namespace

TEST_CASE("cuda: a fork goes on as a session that read the same by itself", "[cuda][fork]") {
  if (skip()) return;
  for (riffle_selector selector : kSelectors)
    for (const int64_t slots : {0, 40, 600}) {
      INFO("selector " << selector << ", " << slots << " slots");
      riffle_context_options o = small(selector);
      o.slots = slots;
      fork_cases(o, false);
    }
  for (riffle_selector selector : kHosted) {
    INFO("selector " << selector << ", the host decides");
    riffle_context_options o = small(selector);
    o.residency = RIFFLE_RESIDENCY_HOST;
    o.slots = 120;
    fork_cases(o, false);
  }
}

TEST_CASE("cuda: random histories of forked sessions are those of sessions of their own", "[cuda][fork]") {
  if (skip()) return;
  uint32_t seed = 100;
  for (riffle_selector selector : kSelectors)
    for (const int64_t slots : {16, 120, 3000}) {
      INFO("selector " << selector << ", " << slots << " slots");
      riffle_context_options o = small(selector);
      o.slots = slots;
      Forks(o, ++seed).play(150);
    }
  for (riffle_selector selector : kHosted)
    for (const bool no_pin : {false, true}) {
      INFO("selector " << selector << ", the host decides, no_pin " << no_pin);
      riffle_context_options o = small(selector);
      o.residency = RIFFLE_RESIDENCY_HOST;
      o.no_pin = no_pin;
      o.slots = 120;
      Forks(o, ++seed).play(150);
    }
}

TEST_CASE("cuda: a fork that finds no device memory leaves its donor as it was", "[cuda][fork][memory]") {
  if (skip()) return;
  riffle_context_options o = small(RIFFLE_SELECTOR_PSA);
  o.gpu_mem = 1;
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  char err[1024] = "";
  CHECK(riffle_plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  riffle_model_free(model);
  o.gpu_mem = plan.min_gpu_mem;
  Runtime r(o);
  riffle_context_options roomy = o;
  roomy.gpu_mem = 0;
  Runtime alone(roomy);
  riffle_session *s = r.session(), *a = alone.session();
  const auto prompt = some_tokens(500, 1), tokens = some_tokens(20, 2);
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  alone.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  std::vector<riffle_session*> forks;
  riffle_status status = RIFFLE_OK;
  riffle_stats before{}, after{};
  before.struct_size = after.struct_size = sizeof before;
  while (forks.size() < 2000 && status == RIFFLE_OK) {
    r.check(riffle_get_stats(r.context, &before));
    riffle_session* one = nullptr;
    status = riffle_session_fork(s, 333, &one);
    if (one) forks.push_back(one);
  }
  CHECK(status == RIFFLE_OUT_OF_MEMORY);
  r.check(riffle_get_stats(r.context, &after));
  CHECK(after.host_kv_bytes == before.host_kv_bytes);
  CHECK(after.device_bytes == before.device_bytes);
  for (const int32_t t : tokens) {
    r.check(riffle_step(r.context, &s, &t, 1));
    alone.check(riffle_step(alone.context, &a, &t, 1));
    REQUIRE(r.logits(s) == alone.logits(a));
  }
  for (riffle_session* one : forks) riffle_session_free(one);
}
