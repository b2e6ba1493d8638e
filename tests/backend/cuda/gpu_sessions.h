// Sessions of the shipped model on a GPU: their settings, and the least memory that they need.
#pragma once
#include "tests/engine/steps.h"
#include "tests/select/selectors_here.h"

namespace riffle::test {

inline ContextOptions gpu_options(SelectorKind selector = psa_or_share()) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.selection.selector = selector;
  o.selection.microbatch = 4;
  return o;
}

// For answers with tokens computed ahead.
inline ContextOptions gpu_lookup_options(SelectorKind selector, int lookup = 0) {
  ContextOptions o = gpu_options(selector);
  o.selection.budget = 0.3f;
  o.lookup = lookup;
  return o;
}

inline void prefill(Runtime& r, riffle_session* s, const std::vector<int32_t>& prompt) {
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
}
using StepLogits = std::vector<std::vector<float>>;
inline void step(Runtime& r, riffle_session* s, int32_t token, StepLogits& out) {
  r.check(riffle_step(r.context, &s, &token, 1));
  out.push_back(r.logits(s));
}
inline void select(Runtime& r, const Selection& selection) {
  r.check(set_selection(r.context, &selection));
}

// Returns the plan that is refused for a budget of one byte. It says how much these options need.
inline MemoryPlan plan_of_least_memory(riffle_model* model, ContextOptions o) {
  o.gpu_mem = 1;
  MemoryPlan plan{};
  char err[1024] = "";
  CHECK(plan_memory(model, &o, &plan, err, sizeof err) == RIFFLE_OUT_OF_MEMORY);
  INFO(err);
  REQUIRE(plan.min_gpu_mem > 0);
  return plan;
}

// Returns the smallest budget that these options of the shipped model are planned to work with.
inline uint64_t least_memory(const ContextOptions& o) {
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  const uint64_t least = plan_of_least_memory(model, o).min_gpu_mem;
  riffle_model_free(model);
  return least;
}

}  // namespace riffle::test
