// Checks of a model on a GPU: its logits are close to the CPU's, its bits do not depend on the
// pool, and the planned memory is enough. model: as the constructors of Runtime take it.
#pragma once
#include <vector>

#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/window_model.h"
#include "tests/engine/working_sets.h"

namespace riffle::test {

inline ContextOptions on(DeviceKind device, SelectorKind selector, KvKind type = KvKind::F16) {
  ContextOptions o = sparse(selector);
  o.device = device;
  o.kv_type = type;
  o.block_size = type == KvKind::Q8 ? 32 : 16;
  return o;
}

// want: the CPU's logits.
inline void check_close(const std::vector<std::vector<float>>& got,
                        const std::vector<std::vector<float>>& want, KvKind type) {
  const TinyDifference worst = rows_difference(got, want);
  INFO("worst " << worst.relative << " at " << worst.where);
  // If the last bits of a key or value differ, it may get another 8-bit code.
  CHECK(worst.relative <= (type == KvKind::F32 ? 1e-4 : type == KvKind::F16 ? 2e-2 : 5e-2));
}

template <class ModelSource>
void check_any_pool(ContextOptions o, const ModelSource& model) {
  const auto prompt = ids(0, 400), steps = ids(400, 440);
  std::vector<std::vector<float>> want;
  for (const int slots : {0, 4, 20, 200}) {
    INFO(slots << " slots");
    o.slots = slots;
    Runtime r(o, model);
    const auto got = run(r, r.session(), prompt, steps);
    if (slots == 0) want = got;
    CHECK(same_bits(got, want));
  }
}

inline void check_working_sets(const ContextOptions& o, Model& model) {
  WorkingSetPlay p;
  p.options = o;
  p.options.n_sessions = 3;
  p.options.slots = 60;
  const auto want = play(model, p);
  p.reports = false;
  CHECK(play(model, p) == want);
}

// Three sessions with the least memory. plan_seen: called with the plan.
template <class ModelSource, class Seen>
void check_planned_memory(ContextOptions o, const ModelSource& model, const Seen& plan_seen) {
  o.n_ctx = 1024;
  o.n_sessions = 3;
  {
    Runtime r(on(DeviceKind::CPU, SelectorKind::SHARE), model);
    const MemoryPlan plan = plan_of_least_memory(r.model, o);
    plan_seen(plan);
    o.gpu_mem = plan.min_gpu_mem;
  }
  Runtime r(o, model);
  std::vector<riffle_session*> s;
  const auto prompt = ids(0, 1000);
  for (int i = 0; i < 3; ++i) s.push_back(r.session(prompt));
  const int32_t tokens[3] = {40, 50, 60};
  for (int i = 0; i < 20; ++i) r.check(riffle_step(r.context, s.data(), tokens, 3));
  CHECK(r.stats().peak_device_bytes <= static_cast<uint64_t>(o.gpu_mem));
}

}  // namespace riffle::test
