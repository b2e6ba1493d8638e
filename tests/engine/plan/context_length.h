// A default context length under a memory limit: it is the longest that fits, says so, and runs as
// if it had been given.
#pragma once
#include <algorithm>

#include "engine/plan/memory_plan.h"
#include "tests/engine/steps.h"
#include "util/settings.h"

namespace riffle::test {

inline MemoryPlan plan_with(const Model& model, ResolvedOptions& r, uint64_t host_memory) {
  MemoryPlan plan;
  r.host_memory = host_memory;
  plan_memory(model, r, plan);
  plan.context_note = name_settings(plan.context_note, nullptr);  // as the API does
  return plan;
}

inline std::string plan_error(riffle_model* model, const ContextOptions& o, riffle_status expected,
                              MemoryPlan* plan) {
  char err[1024] = "";
  *plan = {};
  const riffle_status status = plan_memory(model, &o, plan, err, sizeof err);
  INFO(err);
  CHECK(status == expected);
  return err;
}

// o: of a device with a pool. The shipped model was trained with 32768 tokens; gpu_mem is enough
// for 10000. own_index: each session has an index of its own, which gpu_mem has to hold too.
inline void check_default_length_in_budget(ContextOptions o, bool own_index = true) {
  constexpr int kTrained = 32768, kEnough = 10000, kFits = 9216;
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  MemoryPlan plan{};
  o.n_ctx = kEnough;
  o.gpu_mem = 0;
  plan_error(model, o, RIFFLE_OK, &plan);
  CHECK(std::string(plan.context_note).empty());
  o.gpu_mem = plan.min_gpu_mem;
  // An explicit length stays an error, and so is every length beyond the one chosen.
  riffle_context* none = nullptr;
  char err[1024] = "";
  for (const int n : {kTrained, kFits + 1024, kEnough + o.block_size}) {
    INFO(n);
    o.n_ctx = n;
    CHECK(plan_error(model, o, RIFFLE_OUT_OF_MEMORY, &plan)
              .find(std::to_string(n) + " tokens of context need") != std::string::npos);
    CHECK(plan.n_ctx == n);
    CHECK(std::string(plan.context_note).empty());
    CHECK(context_create(model, &o, &none, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
    CHECK(none == nullptr);
  }
  const auto prompt = some_tokens(900, 5), steps = some_tokens(5, 6);
  o.n_ctx = 0;
  plan_error(model, o, RIFFLE_OK, &plan);
  CHECK(plan.n_ctx == kFits);
  CHECK(plan.total <= o.gpu_mem);
  std::vector<std::vector<float>> want, got;
  {
    Runtime r(o);
    CHECK(riffle_context_length(r.context) == kFits);
    const std::string notice = riffle_context_notice(r.context);
    INFO(notice);
    CHECK(notice == plan.context_note);
    CHECK(notice.find("holds 9216 of the 32768") != std::string::npos);
    CHECK(notice.find("gpu-mem") != std::string::npos);
    CHECK(notice.find("dynamic") ==
          std::string::npos);  // this model's RoPE is the same for any length
    riffle_session* s = r.session();
    const auto long_prompt = some_tokens(kFits + 1, 7);
    CHECK(riffle_prefill(s, long_prompt.data(), long_prompt.size(), nullptr, nullptr) ==
          RIFFLE_CONTEXT_FULL);
    got = run(r, s, prompt, steps);
  }
  o.n_ctx = kFits;
  plan_error(model, o, RIFFLE_OK, &plan);
  CHECK(std::string(plan.context_note).empty());
  {
    Runtime r(o);
    CHECK(std::string(riffle_context_notice(r.context)).empty());
    want = run(r, r.session(), prompt, steps);
  }
  CHECK(same_bits(got, want));
  // Sessions share the budget, if they have something in it.
  o.n_ctx = 0;
  o.n_sessions = 8;
  plan_error(model, o, RIFFLE_OK, &plan);
  if (own_index) CHECK(plan.n_ctx < kFits);
  else CHECK(plan.n_ctx == kFits);
  CHECK(plan.n_ctx % 1024 == 0);
  o.n_sessions = 1;
  // Memory that is too small for 1024 tokens is an error that names an amount that is enough.
  o.gpu_mem = 1 << 20;
  const std::string text = plan_error(model, o, RIFFLE_OUT_OF_MEMORY, &plan);
  INFO(text);
  CHECK(text.find("1024 tokens of context need at least") != std::string::npos);
  CHECK(context_create(model, &o, &none, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  o.gpu_mem = plan.min_gpu_mem;
  plan_error(model, o, RIFFLE_OK, &plan);
  CHECK(plan.n_ctx == 1024);
  o.gpu_mem -= 1;
  plan_error(model, o, RIFFLE_OUT_OF_MEMORY, &plan);
  // Enough for all: nothing to say.
  o.gpu_mem = 0;
  o.n_ctx = kTrained;
  plan_error(model, o, RIFFLE_OK, &plan);
  o.gpu_mem = plan.min_gpu_mem;
  o.n_ctx = 0;
  plan_error(model, o, RIFFLE_OK, &plan);
  CHECK(plan.n_ctx == kTrained);
  CHECK(std::string(plan.context_note).empty());
  riffle_model_free(model);
}

}  // namespace riffle::test
