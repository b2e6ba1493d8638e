// Functions that the kernels of prompt attention share: queries as operands, the maximum of a row's
// scores, its window, its sink, its result.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Returns the factor of a query that makes its scores exponents of two: log2(e) / sqrt(d).
inline float query_scale(int head_dim) {
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(head_dim)));
}

// Returns a window that an int holds. Positions stay below 2^31 - 2^29, so the longest one leaves
// out no key, and differences are ints. 0: all keys.
inline int window_keys(int64_t window) {
  constexpr int kAll = 3 << 29;
  return window > 0 && window < kAll ? static_cast<int>(window) : kAll;
}

// Position of the first key that a query at `position` sees with this window, or below 0.
__device__ __forceinline__ int window_begin(int window, int position) {
  return position - window + 1;
}

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

// Loads 8 values of a query, scaled, as f16 (saturating); null: zeros. aligned: q is a multiple of
// 16 bytes.
__device__ __forceinline__ uint4 load_query(const float* q, bool aligned, float scale) {
  float x[8] = {};
  if (q != nullptr && aligned) {
    const float4 a = *reinterpret_cast<const float4*>(q),
                 b = *reinterpret_cast<const float4*>(q + 4);
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else if (q != nullptr) {
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = q[j];
  }
  uint32_t h[4];
#pragma unroll
  for (int j = 0; j < 4; j++)
    h[j] = pack_f16(saturated_f16(x[2 * j] * scale), saturated_f16(x[2 * j + 1] * scale));
  return make_uint4(h[0], h[1], h[2], h[3]);
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
