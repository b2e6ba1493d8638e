// The Walsh-Hadamard transform of a head's vector, scaled so that it keeps lengths and undoes
// itself. Queries and keys are transformed alike, so their products stay. A few dimensions of real
// models' keys are a hundred times as large as the rest. The transform spreads them over all, so
// that one scale serves 32 numbers well (QuaRot, arXiv 2404.00456, section 4, applies it to keys
// after RoPE).
//
// A head dimension that is no power of two is transformed in equal blocks, each of the largest
// power of two that divides it. CPU and GPU add in the same order, so both make the same bits.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

RIFFLE_HOST_DEVICE constexpr int hadamard_block(int head_dim) { return head_dim & -head_dim; }

// 1 / sqrt(block), for a power of two.
RIFFLE_HOST_DEVICE constexpr float hadamard_scale(int block) {
  float scale = 1;
  for (; block >= 4; block /= 4) scale /= 2;
  return block == 2 ? scale * 0.70710678f : scale;
}

// Static on purpose: files compiled for different instruction sets must not share one copy.
static inline void hadamard(float* x, int head_dim) {
  const int block = hadamard_block(head_dim);
  for (int half = 1; half < block; half *= 2)
    for (int i = 0; i < head_dim; i += 2 * half)
      for (int j = i; j < i + half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b;
        x[j + half] = a - b;
      }
  const float scale = hadamard_scale(block);
  for (int j = 0; j < head_dim; ++j) x[j] *= scale;
}

}  // namespace riffle
