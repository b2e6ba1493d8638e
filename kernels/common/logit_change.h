// Applies penalties and biases to one token's logit, on the CPU and in the sampling kernel.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

struct LogitChange {
  int32_t token;
  float bias;    // is added; -infinity forbids the token
  float divide;  // then divides positive logits and multiplies others; > 0
  float minus;   // then is subtracted
};

// Each operation rounds by itself, so that all devices get the same bits.
RIFFLE_HOST_DEVICE inline float changed_logit(float logit, const LogitChange& c) {
#ifdef __CUDA_ARCH__
  const float x = __fadd_rn(logit, c.bias);
  return __fsub_rn(x > 0 ? __fdiv_rn(x, c.divide) : __fmul_rn(x, c.divide), c.minus);
#else
  const float x = logit + c.bias;
  return (x > 0 ? x / c.divide : x * c.divide) - c.minus;
#endif
}

}  // namespace riffle
