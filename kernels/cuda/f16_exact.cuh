// Rounding to f16 exactly as kernels/common/half.h does, NaN payloads included (the hardware's
// differ there).
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda {

__device__ inline uint16_t to_f16(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 16 & 0x8000,
                 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  return __half_as_ushort(__float2half_rn(x));
}
__device__ inline float from_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  if ((h & 0x7c00) == 0x7c00)
    return __uint_as_float(sign | 0x7f800000 | static_cast<uint32_t>(h & 0x3ff) << 13);
  return f16_bits_to_f32(h);
}
// Smallest f16 >= x, for x >= 0.
__device__ inline uint16_t f16_ceil(double x) {
  uint16_t h = to_f16(static_cast<float>(x));
  if (static_cast<double>(from_f16(h)) < x) h++;
  return h;
}

}  // namespace riffle::cuda
