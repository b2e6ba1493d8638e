// The memory that the CPU device would take, with or without a pool.
#pragma once
#include "backend/device_options.h"

namespace riffle {

DeviceNeeds plan_cpu(const Model& model, const BackendOptions& options);

}  // namespace riffle
