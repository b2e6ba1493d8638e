// Chooses the selector that AUTO stands for in a context: dense for short sessions, share for long
// ones.
#pragma once
#include <cstdint>
#include <string>

#include "engine/plan/memory_plan.h"

namespace riffle {

// Dense is faster than share in sessions of fewer tokens than this, if all of their KV can be read
// without a copy from host memory. It depends only on the kind of device.
int64_t dense_is_faster_below(const ResolvedOptions& r);

// The same limit for this context (BackendOptions::everything_below). If the pool holds less of
// each of n_sessions sessions, the limit is what it holds, rounded down to a multiple of 1,024. r
// has the slots of the plan.
int64_t everything_below(const Config& config, const ResolvedOptions& r);

// "selector auto: share; contexts below 16,384 tokens are read whole". Empty: s is not AUTO.
std::string selector_note(const BackendOptions& options, const Selection& s);

}  // namespace riffle
