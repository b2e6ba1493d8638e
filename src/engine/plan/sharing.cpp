#include "engine/plan/sharing.h"

#include <algorithm>

#include "util/error.h"

namespace riffle {

// Plans with these options. Returns false if the plan does not fit.
static bool fits(const Model& model, const ContextOptions& options, MemoryPlan& plan) {
  ResolvedOptions resolved = resolve_options(model.config, options);
  plan = {};
  try {
    plan_memory(model, resolved, plan);
  } catch (const Error& e) {
    if (e.status() != RIFFLE_OUT_OF_MEMORY && e.status() != RIFFLE_NO_SLOT) throw;
    return false;
  }
  return true;
}

// Three quarters of the host's memory are for the KV and its index (key codes, digests), which
// grows with it and which `host_mem` does not count. A GPU has digests in its own memory.
// For an integrated GPU, the GPU's total is subtracted first.
static uint64_t shared_host_mem(const MemoryPlan& one) {
  const double kv = static_cast<double>(one.host_kv);
  const double digests = one.device_memory ? 0 : static_cast<double>(one.digests);
  const double index = static_cast<double>(one.selector_state) + digests;
  const double share = kv > 0 ? kv / (kv + index) : 1;
  const uint64_t gpu = one.integrated ? std::min(one.total, one.host_memory) : 0;
  return std::max(static_cast<uint64_t>(0.75 * share * static_cast<double>(one.host_memory - gpu)),
                  one.host_kv);
}

Sharing plan_sharing(const Model& model, ContextOptions options, const MemoryPlan& planned) {
  const int most = options.n_sessions;
  Sharing sharing;
  MemoryPlan one = planned, many;
  options.n_sessions = 1;
  const bool one_fits = most <= 1 || fits(model, options, one);
  if (options.host_mem == 0) options.host_mem = shared_host_mem(one);
  sharing.host_mem = options.host_mem;
  if (!one_fits) return sharing;  // creating the context reports the reason
  for (int n = most; n > 1; n /= 2) {
    options.n_sessions = n;
    if (fits(model, options, many) && many.n_ctx == one.n_ctx && many.slots >= one.slots / 4 * 3) {
      sharing.sessions = n;
      break;
    }
  }
  return sharing;
}

}  // namespace riffle
