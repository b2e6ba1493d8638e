// Devices by name: the one that a context runs on, the memory that the context takes, and the
// device itself. The rest of the engine asks the device (backend/device.h) and ResolvedOptions.
#pragma once
#include <memory>

#include "backend/device.h"
#include "engine/plan/memory_plan.h"
#include "model/model.h"

namespace riffle {

// Throws RIFFLE_UNSUPPORTED, naming a layer, unless the device can run these layers. Each layer
// must keep keys and values of its own, and layers in which blocks are chosen must be alike. Layers
// that differ in heads or head size must share one pool and, on device cuda, leave residency to the
// GPU.
void require_supported(const KvShape& shape, const ContextOptions& options);

// Tells whether the options ask for a pool on an integrated GPU. By default an integrated GPU has
// no pool, since the pool would hold copies of blocks that the GPU can read in place.
bool asks_for_pool(const ContextOptions& options);

// Sets r.options.device, prefill_chunk, r.has_pool, r.device_memory, r.integrated, r.device_note
// and r.no_driver. Throws RIFFLE_UNSUPPORTED (the device cannot be used, or not with this selector)
// or RIFFLE_BAD_ARGUMENT (an option that the device does not have).
void choose_device(const Config& config, ResolvedOptions& r);

// "cpu", "emu" or "cuda".
const char* device_name(const ResolvedOptions& r);

DeviceNeeds device_needs(const Model& model, const ResolvedOptions& r);

// Creates the device. planned: options that plan_memory has filled in.
std::unique_ptr<Device> make_device(const Model& model, const ResolvedOptions& planned,
                                    ThreadPool* threads);

}  // namespace riffle
