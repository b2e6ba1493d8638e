// Synthetic data that a GPU generates, for measuring.
#pragma once
#include <memory>

#include "kernels/common/measure/synthetic_spec.h"

namespace riffle {

namespace cuda {
class DeviceAttentionSource;
class DeviceTensorSource;
}  // namespace cuda

// Both return null if this build has no kernels.
std::shared_ptr<const cuda::DeviceAttentionSource> synthetic_on_device(const SyntheticSpec& spec);
const cuda::DeviceTensorSource* synthetic_weights_on_device();

}  // namespace riffle
