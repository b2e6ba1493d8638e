// Decode attention that the host drives when it decides residency: blocks are streamed to the
// kernels that read them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/device.h"
#include "backend/cuda/step_selection.h"

namespace riffle::cuda {

class HostDrivenAttention {
 public:
  virtual ~HostDrivenAttention() = default;

  struct Counts {
    int lookups = 0, misses = 0;
  };
  // Attends for one token of a sequence in one layer. step: for n = 1; its pool, scratch, order and
  // counts are not used. counts: [n_kv_heads]. order (may be null): [n_kv_heads][max_blocks], host
  // memory. Adds the events that the host waited for to syncs.
  virtual void attend(DecodeStep step, const StepSelection& selection, const SequenceKv& sequence,
                      int64_t position, int lookahead, Counts* counts, int32_t* order,
                      uint64_t* syncs) = 0;
};

// Returns null if this build has none (no_papers.cpp): the device then always decides residency.
std::unique_ptr<HostDrivenAttention> make_host_driven(const Config& config,
                                                      const DeviceInfo& device, DeviceHeap* heap,
                                                      Stream* compute, CudaKv* kv);
bool has_host_driven();
// Returns the bytes of each of its buffers on the device. step: for n = 1.
std::vector<uint64_t> host_driven_buffers(const DecodeStep& step);

}  // namespace riffle::cuda
