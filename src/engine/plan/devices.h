// Devices by name: which one a context runs on, what the context takes of it, and its backend. The
// rest of the engine asks the backend (backend/backend.h) and ResolvedOptions.
#pragma once
#include <memory>

#include "backend/backend.h"
#include "engine/plan/memory_plan.h"
#include "model/model.h"

namespace riffle {

// Settles r.options.device, prefill_chunk, r.has_pool, r.device_memory and r.device_note. Throws
// RIFFLE_UNSUPPORTED (the device cannot be used, or not with this selector) or
// RIFFLE_BAD_ARGUMENT (an option that the device does not have).
void choose_device(const Config& config, ResolvedOptions& r);

// "cpu", "emu" or "cuda".
const char* device_name(const ResolvedOptions& r);

// What a context of r.options.n_ctx tokens takes, in bytes. Of the GPU's memory where
// r.device_memory, else of the host's.
struct DeviceNeeds {
  uint64_t weights = 0, activations = 0;
  uint64_t digests = 0;         // of all sessions
  uint64_t prefill_kv = 0;      // KV on the device while a prompt is read
  uint64_t selector_state = 0;  // of one session, in host memory
  // With r.has_pool: bytes of a slot and its bookkeeping, and the fewest slots that work.
  uint64_t per_slot = 0;
  int64_t min_slots = 0;
  uint64_t free = 0;  // with r.device_memory: bytes that the GPU has free now
};
DeviceNeeds device_needs(const Model& model, const ResolvedOptions& r);

// planned: by plan_memory.
std::unique_ptr<Backend> make_backend(const Model& model, const ResolvedOptions& planned,
                                      ThreadPool* threads);

}  // namespace riffle
