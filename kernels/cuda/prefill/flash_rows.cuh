// Functions that the kernels of prompt attention share: the maximum of a row's scores, its sink,
// its result.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/types.h"

namespace riffle::cuda {

// The maximum to subtract. A row that has seen no key has -inf, and -inf - -inf would be NaN.
__device__ __forceinline__ float reference(float row_max) { return fmaxf(row_max, -3e38f); }

// Returns the term that a head's sink adds to the sum of a row whose maximum is row_max. sinks:
// scores of all heads, or null.
__device__ __forceinline__ float sink_weight(const float* sinks, int head, float row_max) {
  return sinks == nullptr ? 0.0f : exp2f(sinks[head] * 1.4426950408889634f - reference(row_max));
}

// Returns x as a query's value that f16 can hold; NaN stays NaN.
__device__ __forceinline__ float saturated_f16(float x) {
  return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}

// Stores x and y as two neighbouring values of `out`, `at` values after its beginning. Adding 0
// turns -0 into 0, so that the sign of a zero does not depend on the key tiles that were visited.
__device__ __forceinline__ void store_pair(void* out, WType type, int64_t at, float x, float y) {
  x += 0.0f, y += 0.0f;
  const bool aligned = at % 2 == 0;
  if (type == WType::F32) {
    float* p = static_cast<float*>(out) + at;
    if (aligned) *reinterpret_cast<float2*>(p) = make_float2(x, y);
    else p[0] = x, p[1] = y;
  } else if (type == WType::F16) {
    const __half2 h = __floats2half2_rn(x, y);
    __half* p = static_cast<__half*>(out) + at;
    if (aligned) *reinterpret_cast<__half2*>(p) = h;
    else p[0] = h.x, p[1] = h.y;
  } else {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    __nv_bfloat16* p = static_cast<__nv_bfloat16*>(out) + at;
    if (aligned) *reinterpret_cast<__nv_bfloat162*>(p) = h;
    else p[0] = h.x, p[1] = h.y;
  }
}

}  // namespace riffle::cuda
