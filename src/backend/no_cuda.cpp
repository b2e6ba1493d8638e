// Built where the CUDA toolkit is missing: the CUDA device exists by name only.
#include "backend/cuda/cuda.h"
#include "util/error.h"

namespace riffle {

bool cuda_usable(std::string& text) {
  text.clear();
  return false;
}

bool cuda_integrated() { return false; }
bool cuda_driver_missing() { return false; }

bool cuda_shape_supported(const Config&, const BlockLayout&, std::string&) { return false; }
bool cuda_chooses_tiles(const Config&, std::string&) { return false; }

DeviceNeeds plan_cuda(const Model&, const BackendOptions&) {
  fail(RIFFLE_UNSUPPORTED, "device cuda: %s", kBuiltForCpu);
}

std::unique_ptr<Device> make_cuda_device(const Model&, const BackendOptions&, ThreadPool*) {
  fail(RIFFLE_UNSUPPORTED, "device cuda: %s", kBuiltForCpu);
}

}  // namespace riffle
