// The MTP layer as a model of its own on the CPU, and the memory that it takes.
#pragma once
#include <memory>

#include "engine/plan/memory_plan.h"

namespace riffle {

// The most guesses of a sequence in a step.
inline constexpr int kMostGuesses = 4;

// Returns a model of the one layer, whose tensors are those of `whole`. Requires: it has an MTP
// layer, and outlives the result.
std::unique_ptr<Model> draft_model(const Model& whole);

// Returns the options of the layer's device.
ResolvedOptions draft_options(const ResolvedOptions& whole);

// Adds the buffers of the layer's device to a plan. Returns the bytes that one session keeps for
// its guesses.
uint64_t plan_drafts(const Model& whole, const ResolvedOptions& options, MemoryList* buffers);

}  // namespace riffle
