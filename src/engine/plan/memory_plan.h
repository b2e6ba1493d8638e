// The memory plan of a context, computed before anything is allocated, and the choices that AUTO
// stands for.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "backend/device.h"
#include "model/model.h"
#include "riffle.h"

namespace riffle {

// Options with every AUTO and 0 replaced by what it stands for.
struct ResolvedOptions : BackendOptions {
  std::string device_note;   // of riffle_plan
  bool no_driver = false;    // of riffle_plan
  bool trained_ctx = false;  // n_ctx was 0: plan_memory may shorten it
  uint64_t host_memory = 0;  // bytes that this process may use (util/memory_limits.h) ...
  std::string host_owner = "this machine";  // ... and whose limit that is
  std::string context_note;  // of riffle_plan and riffle_context_notice; plan_memory's
  std::string experts_note;  // of riffle_context_notice; plan_memory's
  std::optional<SyntheticSpec> synthetic;
  bool synthetic_runs_prompts = false;
};

// Throws RIFFLE_BAD_ARGUMENT or RIFFLE_UNSUPPORTED. slots is left as given and n_ctx 0 becomes the
// trained length; plan_memory settles both.
ResolvedOptions resolve_options(const Config& config, const riffle_context_options& options);

// Throws if these settings cannot compute tokens ahead. lookup: of riffle_context_options.
void check_lookup(int lookup, const Selector& selector);

// Fills plan, resolved.slots and context_note. A trained length that does not fit the budget, the
// GPU's free memory or the host's becomes the longest multiple of 1024 that does. Throws
// RIFFLE_OUT_OF_MEMORY, naming the smallest budget that works (with the length given, or with 1024
// tokens), or RIFFLE_NO_SLOT, with plan filled.
void plan_memory(const Model& model, ResolvedOptions& resolved, riffle_plan& plan);

// The end of an error text, for a GPU whose memory does not hold the INT4 keys of the selector. It
// names the longest context below r's that fits, and a selector without INT4 keys if that fits.
// Empty if it has nothing to name. riffle names another selector but never takes it, since the
// other may not read the block with the answer. `fits` must be true for all lengths below one that
// fits.
std::string ways_out(const ResolvedOptions& r,
                     const std::function<bool(const ResolvedOptions&)>& fits);

// Slots that one row needs at once beside the tails: for psa its forced blocks and look-ahead + 1
// microbatches, otherwise one.
int64_t row_slots(const riffle_selection& selection);

}  // namespace riffle
