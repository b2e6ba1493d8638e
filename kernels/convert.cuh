// Number formats on the device: weights to f32, f32 to 16 bits, and the few sums every kernel needs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda.h"

namespace riffle::cuda {

inline constexpr int kQ8Group = 32;  // values per Q8_0 scale

__device__ inline float f16_bits_to_f32(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline float bf16_bits_to_f32(uint32_t bits) { return __uint_as_float(bits << 16); }

// Beyond +-65504 the largest finite f16, not infinity; NaN stays NaN.
__device__ inline uint16_t f32_to_f16_saturating(float x) {
  const float cut = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
  return __half_as_ushort(__float2half_rn(cut));
}
__device__ inline uint16_t f32_to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// Element i of an array of a plain type (not Q8_0).
__device__ inline float load_as_f32(const void* p, WType type, int64_t i) {
  if (type == WType::F32) return static_cast<const float*>(p)[i];
  const uint32_t bits = static_cast<const uint16_t*>(p)[i];
  return type == WType::F16 ? f16_bits_to_f32(bits) : bf16_bits_to_f32(bits);
}
__device__ inline void store_f32_as(void* p, WType type, int64_t i, float x) {
  if (type == WType::F32) static_cast<float*>(p)[i] = x;
  else static_cast<uint16_t*>(p)[i] = type == WType::F16 ? f32_to_f16_saturating(x) : f32_to_bf16(x);
}

// Element (row, col) of a weight matrix of any type.
__device__ inline float weight_at(const Matrix& w, int64_t row, int64_t col) {
  const int64_t i = row * w.cols + col;
  if (w.type != WType::Q8_0) return load_as_f32(w.data, w.type, i);
  const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(w.scales)[i / kQ8Group]);
  return scale * static_cast<float>(static_cast<const int8_t*>(w.data)[i]);
}

// The sum over a warp, in every lane, in a fixed order.
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// g / (1 + e^-g), written with e = e^-|g| so that nothing overflows; silu(-inf) = 0. As kernels/cpu/linear_scalar.cpp.
__device__ inline float silu(float g) {
  const float e = expf(-fabsf(g));
  return (g < 0 ? fmaxf(g, -3.402823466e38f) * e : g) / (1.0f + e);
}

// Whether 16-byte accesses of elements of `type` at p are possible for every multiple of `stride` elements.
inline bool vector_aligned(const void* p, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride * element_bytes % 16 == 0;
}
inline int64_t element_bytes(WType type) { return type == WType::F32 ? 4 : type == WType::Q8_0 ? 1 : 2; }

}  // namespace riffle::cuda
