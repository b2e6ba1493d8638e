// xIELU (Huang and Schlag, arXiv 2411.13010): the activation of FFNs without a gate, with factors
// that each layer has learned.
#pragma once
#include <cmath>

#include "kernels/common/host_device.h"
#include "kernels/common/softplus.h"

namespace riffle {

struct XieluFactors {
  float positive = 0, negative = 0;  // factors of the two halves
  float beta = 0, eps = 0;
};

// values: the parameters as a Xielu (model/model.h) has them: alpha_p, alpha_n, beta, eps.
inline XieluFactors xielu_factors(const float* values) {
  return {softplus(values[0]), values[2] + softplus(values[1]), values[2], values[3]};
}

RIFFLE_HOST_DEVICE inline float xielu(float x, const XieluFactors& f) {
  if (x > 0) return f.positive * x * x + f.beta * x;
  return (std::expm1(f.eps < x ? f.eps : x) - x) * f.negative + f.beta * x;
}

}  // namespace riffle
