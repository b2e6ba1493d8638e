// The MTP layer as a model of its own, and the memory that it takes on a CPU device.
#pragma once
#include <memory>

#include "backend/draft_store.h"
#include "engine/plan/memory_plan.h"

namespace riffle {

// Returns a model of the one layer, whose tensors are those of `whole`. Requires: it has an MTP
// layer, and outlives the result.
std::unique_ptr<Model> draft_model(const Model& whole);

// Returns the options of the layer's CPU device.
ResolvedOptions draft_options(const ResolvedOptions& whole);

// Adds the buffers of the layer's CPU device to a plan. Returns the bytes that one session keeps
// for its guesses in host memory.
uint64_t plan_drafts(const Model& whole, const ResolvedOptions& options, MemoryList* buffers);

}  // namespace riffle
