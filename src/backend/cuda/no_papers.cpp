// Stands in for the GPU parts of published papers' selectors, in a build of the core alone.
#include "backend/cuda/host_driven.h"
#include "backend/cuda/step_selection.h"

namespace riffle::cuda {

void add_papers(StepSelections&) {}

std::unique_ptr<HostDrivenAttention> make_host_driven(const Config&, const DeviceInfo&, DeviceHeap*,
                                                      Stream*, CudaKv*) {
  return nullptr;
}
bool has_host_driven() { return false; }
std::vector<uint64_t> host_driven_buffers(const DecodeStep&) { return {}; }

}  // namespace riffle::cuda
