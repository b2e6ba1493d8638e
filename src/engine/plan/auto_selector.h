// Chooses the selector that AUTO stands for in a context: dense for short sessions, share for long
// ones.
#pragma once
#include <cstdint>
#include <string>

#include "engine/plan/memory_plan.h"

namespace riffle {

// Tells whether auto may be share: not in models with recurrent layers or multi-head latent
// attention and not in Gemma 4, where no answers with share were measured.
bool auto_may_share(const Config& config);

// Returns the length below which auto reads everything, in tokens of a session, if all of its KV
// can be read without a copy from host memory: dense is faster than share there or, in those
// models, no answers with share were measured. It depends only on the kinds of device and model.
int64_t dense_is_better_below(const Config& config, const ResolvedOptions& r);

// Returns the same limit for this context (BackendOptions::everything_below). If the pool holds
// fewer tokens of each of n_sessions sessions, the limit is that number, rounded down to a multiple
// of 1,024. r has the slots of the plan.
int64_t everything_below(const Config& config, const ResolvedOptions& r);

// Returns the factor by which auto multiplies the share: 0.25 if most layers, but not all, have a
// sliding window shorter than the context, else 1. With few full-attention layers an error in one
// of them changes the output more.
float auto_share(const Config& config, const ResolvedOptions& r);

// Returns "selector auto: share; sessions below 16,384 tokens are read whole" or the like; empty if
// s is not AUTO.
std::string selector_note(const BackendOptions& options, const Selection& s);

}  // namespace riffle
