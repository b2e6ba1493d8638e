// IEEE half precision in plain integer arithmetic, for the scalar kernels and for directed
// rounding. Static on purpose: files compiled for different instruction sets must not share one
// copy.
#pragma once
#include <cstdint>

namespace riffle::cpu {

// Exact for every f16: normal, subnormal, infinity. NaN stays NaN.
static constexpr float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, exponent = h >> 10 & 31,
                 fraction = h & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in f32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000 : (exponent + 112) << 23) | fraction << 13;
  return __builtin_bit_cast(float, bits);
}

// Round to nearest, ties to even; beyond 65520 infinity; NaN stays NaN (quiet, top payload bits
// kept, as F16C does).
static inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), sign = bits >> 16 & 0x8000,
                 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude <
      0x38800000) {  // below 2^-14: the f32 adder rounds at the weight of f16's last subnormal bit
    const float sum = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, sum) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000) >> 13);
}

// Smallest f16 >= x, for x >= 0.
static inline uint16_t f16_ceil(double x) {
  uint16_t h = f32_to_f16(static_cast<float>(x));
  if (static_cast<double>(f16_to_f32(h)) < x) h++;  // the next value up; 0x7bff + 1 is infinity
  return h;
}

}  // namespace riffle::cpu
