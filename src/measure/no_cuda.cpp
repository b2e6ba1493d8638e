// Stands in for the kernels for measuring in a build without the CUDA toolkit.
#include "measure/on_device.h"

namespace riffle {

std::shared_ptr<const cuda::DeviceAttentionSource> synthetic_on_device(const SyntheticSpec&) {
  return nullptr;
}
const cuda::DeviceTensorSource* synthetic_weights_on_device() { return nullptr; }

}  // namespace riffle
