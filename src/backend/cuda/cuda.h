// The CUDA backend as the engine sees it. This header needs no CUDA; in builds without the toolkit
// no_cuda.cpp replaces it and reports that.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "backend/device.h"
#include "riffle.h"
#include "util/options.h"

namespace riffle {

// Names the option that makes the host decide residency from the start; null: the device decides
// unless the system refuses to pin memory.
inline const char* why_host_residency(const ContextOptions& o) {
  return o.residency == ResidencyKind::HOST ? "`residency` is host"
         : !o.pin                           ? "`pin` is off"
         : o.evict != EvictRule::LRU        ? "`evict` is fifo"
         : o.pool_per_layer                 ? "`pool_per_layer` is set"
                                            : nullptr;
}

// Tells whether a GPU can be used now; text: its name, or the missing part. Empty: no GPU was
// looked for (kBuiltForCpu).
bool cuda_usable(std::string& text);
inline constexpr const char* kBuiltForCpu =
    "this riffle was built for the CPU alone (make found no NVIDIA GPU, or no CUDA toolkit); build "
    "it again on the machine with the GPU, or with make CUARCH=all";
// Tells whether the GPU is integrated (cuda::DeviceInfo::integrated).
bool cuda_integrated();
// Returns true if no NVIDIA driver is installed. False if this riffle was built without the CUDA
// toolkit.
bool cuda_driver_missing();

// Tells whether the kernels support this model's shape; if not, text names the reason.
bool cuda_shape_supported(const Config& config, const BlockLayout& layout, std::string& text);
// Tells whether the GPU's kernels choose key tiles of prompts (PrefillSelector::TILES). If not,
// text says why. Requires: cuda_usable.
bool cuda_chooses_tiles(const Config& config, std::string& text);

// Returns the device memory that a context would take, and the device's memory.
DeviceNeeds plan_cuda(const Model& model, const BackendOptions& options);

// Uploads the weights. Throws RIFFLE_UNSUPPORTED (no usable GPU, a shape that the kernels lack),
// RIFFLE_OUT_OF_MEMORY.
std::unique_ptr<Device> make_cuda_device(const Model& model, const BackendOptions& options,
                                         ThreadPool* threads);

}  // namespace riffle
