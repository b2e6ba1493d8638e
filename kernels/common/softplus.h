// log(1 + e^x), without an overflow of e^x.
#pragma once
#include <cmath>

#include "kernels/common/host_device.h"

namespace riffle {

RIFFLE_HOST_DEVICE inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace riffle
