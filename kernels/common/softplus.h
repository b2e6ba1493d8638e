// log(1 + e^x), without an overflow of e^x: the scalar twin of kernels/cuda/recurrent/layer.cuh.
#pragma once
#include <cmath>

namespace riffle {

inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

}  // namespace riffle
