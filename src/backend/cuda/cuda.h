// The CUDA backend as the engine sees it. This header needs no CUDA; without the toolkit at build
// time no_cuda.cpp stands in and says so.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "riffle.h"

namespace riffle {

struct CudaBackendOptions {
  BlockLayout layout;
  cpu::Isa isa = cpu::Isa::Scalar;  // of what the host computes (embedding rows)
  int64_t n_ctx = 0;
  int n_sessions = 1;
  int prefill_chunk = 0;
  int64_t slots = 0;
  uint64_t gpu_mem = 0;   // 0: no limit but the device's
  uint64_t host_mem = 0;  // of HostStore
  EvictPolicy evict = EvictPolicy::Lru;
  bool pool_per_layer = false;
  riffle_residency residency = RIFFLE_RESIDENCY_AUTO;
  bool no_pin = false;
  DigestSpec digest;          // what sessions will be created with
  bool codes = false;         // ... and whether they keep INT4 keys
  bool votes = false;         // ... or the last selections by vote
  bool token_scores = false;  // a step scores single tokens
  LoadProgress progress;      // of the weights' upload

  // Why the host decides residency from the start, in the words of the option that says so; null:
  // the device decides unless the system refuses to pin memory.
  const char* why_host_residency() const {
    return residency == RIFFLE_RESIDENCY_HOST ? "`residency` is host"
           : no_pin                           ? "`no_pin` is set"
           : evict != EvictPolicy::Lru        ? "`evict` is fifo"
           : pool_per_layer                   ? "`pool_per_layer` is set"
                                              : nullptr;
  }
};

// Whether a GPU can be used now; text: its name, or what is missing.
bool cuda_usable(std::string& text);

// Whether the kernels have this model's shape; else text says what they lack.
bool cuda_shape_supported(const Config& config, const BlockLayout& layout, std::string& text);

// What a context would take of the device, in bytes, and what the device has.
struct CudaPlan {
  uint64_t weights = 0, activations = 0, digests = 0, prefill_kv = 0;
  uint64_t free = 0;      // of the device, now
  uint64_t per_slot = 0;  // a slot and its bookkeeping
  int64_t min_slots = 0;
};
CudaPlan plan_cuda(const Model& model, const CudaBackendOptions& options);

// Uploads the weights. Throws RIFFLE_UNSUPPORTED (no usable GPU, a shape the kernels do not have),
// RIFFLE_OUT_OF_MEMORY.
std::unique_ptr<Backend> make_cuda_backend(const Model& model, const CudaBackendOptions& options,
                                           ThreadPool* threads);

}  // namespace riffle
