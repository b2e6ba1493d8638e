// The CUDA backend as the engine sees it. This header needs no CUDA; without the toolkit at build
// time no_cuda.cpp stands in and says so.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "backend/device.h"
#include "riffle.h"
#include "util/options.h"

namespace riffle {

// Why the host decides residency from the start, in the words of the option that says so; null: the
// device decides unless the system refuses to pin memory.
inline const char* why_host_residency(const ContextOptions& o) {
  return o.residency == ResidencyKind::HOST ? "`residency` is host"
         : o.no_pin                         ? "`no_pin` is set"
         : o.evict != EvictRule::LRU        ? "`evict` is fifo"
         : o.pool_per_layer                 ? "`pool_per_layer` is set"
                                            : nullptr;
}

// Whether a GPU can be used now; text: its name, or what is missing.
bool cuda_usable(std::string& text);
// Whether no NVIDIA driver is installed. False if this riffle was built without the CUDA toolkit.
bool cuda_driver_missing();

// Whether the kernels have this model's shape; else text says what they lack.
bool cuda_shape_supported(const Config& config, const BlockLayout& layout, std::string& text);

// What a context would take of the device, and what the device has.
DeviceNeeds plan_cuda(const Model& model, const BackendOptions& options);

// Uploads the weights. Throws RIFFLE_UNSUPPORTED (no usable GPU, a shape the kernels do not have),
// RIFFLE_OUT_OF_MEMORY.
std::unique_ptr<Device> make_cuda_device(const Model& model, const BackendOptions& options,
                                         ThreadPool* threads);

}  // namespace riffle
