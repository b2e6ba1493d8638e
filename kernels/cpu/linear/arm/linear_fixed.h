// Activations in fixed point, for the integer products: 32 neighbouring activations become integers
// of 8 or 16 bits times a scale (linear_common.h).
#pragma once
#include "kernels/cpu/linear/linear_common.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
namespace {

// Returns kLarge times the root mean square of k values; k is a multiple of 32. If the squares
// leave f32's range, the result is 0 or infinite, so that every group exceeds it or none does.
inline float large_of(const float* x, int64_t k) {
  float32x4_t sum[8] = {};
  for (int64_t j = 0; j < k; j += 32)
    for (int i = 0; i < 8; ++i) {
      const float32x4_t v = vld1q_f32(x + j + 4 * i);
      sum[i] = vfmaq_f32(sum[i], v, v);
    }
  for (int half = 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sum[i] = vaddq_f32(sum[i], sum[i + half]);
  return kLarge * __builtin_sqrtf(vaddvq_f32(sum[0]) / static_cast<float>(k));
}

// 32 activations and the largest magnitude among them.
struct Group32 : GroupTop {
  float32x4_t value[8];
};
inline Group32 group32(const float* x) {
  Group32 g;
  // Magnitudes are in the order of their bits, and NaN comes after infinity.
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) {
    g.value[i] = vld1q_f32(x + 4 * i);
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(g.value[i])));
  }
  g.top = float_of_bits(vmaxvq_u32(largest));
  return g;
}

// A group as integers within +-limit times a scale, each rounded to the nearest.
struct Rounded32 : GroupScale {
  int32x4_t integer[8];
};
inline Rounded32 rounded32(const Group32& g, float limit) {
  Rounded32 r;
  static_cast<GroupScale&>(r) = scale_of(g, limit);
  for (int i = 0; i < 8; ++i)
    r.integer[i] = g.broken() ? vdupq_n_s32(0) : vcvtnq_s32_f32(vmulq_n_f32(g.value[i], r.inverse));
  return r;
}
inline int16x8_t packed16(const Rounded32& r, int i) {
  return vcombine_s16(vqmovn_s32(r.integer[2 * i]), vqmovn_s32(r.integer[2 * i + 1]));
}
// The integers of 8 bits of one half of the group.
inline int8x16_t packed8(const Rounded32& r, int half) {
  return vcombine_s8(vqmovn_s16(packed16(r, 2 * half)), vqmovn_s16(packed16(r, 2 * half + 1)));
}

}  // namespace
}  // namespace riffle::cpu
