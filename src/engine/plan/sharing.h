// Number of sessions that share a context, if the caller leaves it to riffle.
#pragma once
#include "engine/plan/memory_plan.h"

namespace riffle {

struct Sharing {
  // The most sessions, n_sessions at most and halved from there, such that each still gets its full
  // context and the pool keeps most of its slots.
  int sessions = 1;
  // `host_mem` if it is given, else the bytes that the KV of these sessions may take together.
  uint64_t host_mem = 0;
};

// planned: the plan for these options, whether it fits or not. Plans again only if several sessions
// are allowed. Throws as resolve_options does.
Sharing plan_sharing(const Model& model, ContextOptions options, const MemoryPlan& planned);

}  // namespace riffle
