// The vocabulary of simd.h in NEON, which every 64-bit ARM has. A vector is two registers: the
// templates want eight lanes, and two registers at a time keep both vector units busy.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "kernels/common/agreed.h"
#include "kernels/cpu/simd/lane_order.h"
#include "kernels/cpu/simd/simd.h"

namespace riffle::cpu {
namespace {

struct NeonVec {
  float32x4_t lo, hi;
};
inline NeonVec operator+(NeonVec a, NeonVec b) {
  return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)};
}
inline NeonVec operator-(NeonVec a, NeonVec b) {
  return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)};
}
inline NeonVec operator*(NeonVec a, NeonVec b) {
  return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
inline NeonVec operator/(NeonVec a, NeonVec b) {
  return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)};
}
inline NeonVec operator-(NeonVec a) { return {vnegq_f32(a.lo), vnegq_f32(a.hi)}; }

struct Neon {
  using Vec = NeonVec;
  static constexpr int kLanes = 8, kRegisters = 16;

  static Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static Vec load_n(const float* p, int n) {
    float part[8] = {};
    for (int i = 0; i < n; i++) part[i] = p[i];
    return load(part);
  }
  static void store(float* p, Vec x) {
    vst1q_f32(p, x.lo);
    vst1q_f32(p + 4, x.hi);
  }
  static void store_n(float* p, Vec x, int n) {
    if (n >= 8) return store(p, x);
    float32x4_t part = x.lo;
    if (n & 4) {
      vst1q_f32(p, part);
      part = x.hi;
      p += 4;
    }
    float32x2_t two = vget_low_f32(part);
    if (n & 2) {
      vst1_f32(p, two);
      two = vget_high_f32(part);
      p += 2;
    }
    if (n & 1) vst1_lane_f32(p, two, 0);
  }
  static Vec of_f16(uint16x8_t halves) {
    const float16x8_t x = vreinterpretq_f16_u16(halves);
    return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
  }
  static Vec load_f16(const void* p) { return of_f16(vld1q_u16(static_cast<const uint16_t*>(p))); }
  static Vec load_f16_n(const uint16_t* p, int n) {
    uint16_t part[8] = {};
    for (int i = 0; i < n; i++) part[i] = p[i];
    return load_f16(part);
  }
  static void store_f16(uint16_t* p, Vec x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.lo), x.hi)));
  }
  static void store_f16_n(uint16_t* p, Vec x, int n) {
    uint16_t part[8];
    store_f16(part, x);
    for (int i = 0; i < n; i++) p[i] = part[i];
  }
  static Vec load_bf16(const void* p) {
    const uint16x8_t x = vld1q_u16(static_cast<const uint16_t*>(p));
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(x, 16))};
  }
  static Vec load_i8(const void* p) {
    const int16x8_t x = vmovl_s8(vld1_s8(static_cast<const int8_t*>(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_high_s16(x))};
  }
  static void load_pairs(const float* p, Vec* even, Vec* odd) {
    const float32x4x2_t a = vld2q_f32(p), b = vld2q_f32(p + 8);
    *even = {a.val[0], b.val[0]};
    *odd = {a.val[1], b.val[1]};
  }
  static float f16_at(const void* p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x))), 0);
  }

  static Vec set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
  static Vec fma(Vec a, Vec b, Vec c) {
    return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)};
  }
  static Vec fnma(Vec a, Vec b, Vec c) {
    return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)};
  }
  static Vec blend(uint32x4_t lo, uint32x4_t hi, Vec x, Vec y) {
    return {vbslq_f32(lo, x.lo, y.lo), vbslq_f32(hi, x.hi, y.hi)};
  }
  // FMAX returns NaN if either operand is NaN; max must return b.
  static Vec max(Vec a, Vec b) { return blend(vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi), a, b); }
  static Vec round(Vec x) { return {vrndnq_f32(x.lo), vrndnq_f32(x.hi)}; }
  static float32x4_t ldexp4(float32x4_t x, float32x4_t n) {  // two steps, for a subnormal result
    const int32x4_t i = vcvtnq_s32_f32(n), half = vshrq_n_s32(i, 1), bias = vdupq_n_s32(127);
    const int32x4_t a = vshlq_n_s32(vaddq_s32(half, bias), 23),
                    b = vshlq_n_s32(vaddq_s32(vsubq_s32(i, half), bias), 23);
    return vmulq_f32(vmulq_f32(x, vreinterpretq_f32_s32(a)), vreinterpretq_f32_s32(b));
  }
  static Vec ldexp(Vec x, Vec n) { return {ldexp4(x.lo, n.lo), ldexp4(x.hi, n.hi)}; }

  // Adds n to the exponents of y.
  static float32x4_t scaled4(float32x4_t y, float32x4_t n) {
    const int32x4_t power = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), power));
  }
  static Vec scaled(Vec y, Vec n) { return {scaled4(y.lo, n.lo), scaled4(y.hi, n.hi)}; }
  // Results below 2^-126 become 0.
  static Vec exp(Vec x) {
    const Vec lowest = set1(kExpLeast);
    Vec n;
    const Vec y = exp_series<Neon>(max(lowest, x), 1, &n);
    return blend(vcltq_f32(x.lo, lowest.lo), vcltq_f32(x.hi, lowest.hi), set1(0), scaled(y, n));
  }

  // Subtracting the bits of 3/4 before cutting the mantissa off puts z in [3/4, 3/2).
  static Vec log(Vec x) {
    const int32x4_t base = vreinterpretq_s32_f32(vdupq_n_f32(0.75f));
    const auto power_of = [base](float32x4_t v) {
      return vshrq_n_s32(vsubq_s32(vreinterpretq_s32_f32(v), base), 23);
    };
    const auto without = [](float32x4_t v, int32x4_t power) {
      return vreinterpretq_f32_s32(vsubq_s32(vreinterpretq_s32_f32(v), vshlq_n_s32(power, 23)));
    };
    const int32x4_t lo = power_of(x.lo), hi = power_of(x.hi);
    const Vec z = {without(x.lo, lo), without(x.hi, hi)};
    return log_series<Neon>(z, {vcvtq_f32_s32(lo), vcvtq_f32_s32(hi)});
  }

  static Vec negative_abs(Vec x) {
    return {vnegq_f32(vabsq_f32(x.lo)), vnegq_f32(vabsq_f32(x.hi))};
  }

  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return blend(vcgeq_f32(a.lo, b.lo), vcgeq_f32(a.hi, b.hi), x, y);
  }
  static uint32x4_t sign_of(float32x4_t x) {
    return vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_f32(x), 31));
  }
  static Vec select_negative(Vec sign, Vec x, Vec y) {
    return blend(sign_of(sign.lo), sign_of(sign.hi), x, y);
  }
  static bool any_less(Vec a, Vec b) {
    return vmaxvq_u32(vorrq_u32(vcltq_f32(a.lo, b.lo), vcltq_f32(a.hi, b.hi))) != 0;
  }
  static uint32x4_t bits_of(int half) {
    const uint32_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vld1q_u32(bits + half * 4);
  }
  static unsigned greater_equal(Vec a, Vec b) {
    return vaddvq_u32(vorrq_u32(vandq_u32(vcgeq_f32(a.lo, b.lo), bits_of(0)),
                                vandq_u32(vcgeq_f32(a.hi, b.hi), bits_of(1))));
  }
  static Vec keep(Vec x, unsigned bits) {
    const uint32x4_t all = vdupq_n_u32(bits);
    return blend(vtstq_u32(all, bits_of(0)), vtstq_u32(all, bits_of(1)), x, set1(0));
  }
  static Vec compress(Vec x, unsigned bits) {
    const uint8x16x2_t table = {vreinterpretq_u8_f32(x.lo), vreinterpretq_u8_f32(x.hi)};
    const uint8x8_t lanes = vld1_u8(kLaneOrder.lanes[bits]);
    // Lane l begins at byte 4 l.
    const uint8x16_t four = vcombine_u8(lanes, lanes);
    const uint8x16_t spread = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    const uint8x16_t place = vreinterpretq_u8_u32(vdupq_n_u32(0x03020100));
    const auto bytes_from = [&](int first) {
      const uint8x16_t of =
          vqtbl1q_u8(four, vaddq_u8(spread, vdupq_n_u8(static_cast<uint8_t>(first))));
      return vaddq_u8(vshlq_n_u8(of, 2), place);
    };
    return {vreinterpretq_f32_u8(vqtbl2q_u8(table, bytes_from(0))),
            vreinterpretq_f32_u8(vqtbl2q_u8(table, bytes_from(4)))};
  }

  template <int N>
  static Vec swap_lanes(Vec x) {
    if constexpr (N == 4) return {x.hi, x.lo};
    if constexpr (N == 2) return {vextq_f32(x.lo, x.lo, 2), vextq_f32(x.hi, x.hi, 2)};
    if constexpr (N == 1) return {vrev64q_f32(x.lo), vrev64q_f32(x.hi)};
  }
  static float sum(Vec x) { return vaddvq_f32(vaddq_f32(x.lo, x.hi)); }
  static double sum_squares(const float* x, int64_t n) {
    float64x2_t sum[4] = {};
    int64_t j = 0;
    for (; j + 8 <= n; j += 8)
      for (int i = 0; i < 4; i++) {
        const float64x2_t v = vcvt_f64_f32(vld1_f32(x + j + 2 * i));
        sum[i] = vfmaq_f64(sum[i], v, v);
      }
    double total = vaddvq_f64(vaddq_f64(vaddq_f64(sum[0], sum[1]), vaddq_f64(sum[2], sum[3])));
    for (; j < n; ++j) total += static_cast<double>(x[j]) * x[j];
    return total;
  }

  static void transpose4(float32x4_t& a, float32x4_t& b, float32x4_t& c, float32x4_t& d) {
    const auto wide = [](float32x4_t x) { return vreinterpretq_f64_f32(x); };
    const auto back = [](float64x2_t x) { return vreinterpretq_f32_f64(x); };
    const float64x2_t ab0 = wide(vtrn1q_f32(a, b)), ab1 = wide(vtrn2q_f32(a, b)),
                      cd0 = wide(vtrn1q_f32(c, d)), cd1 = wide(vtrn2q_f32(c, d));
    a = back(vtrn1q_f64(ab0, cd0));
    b = back(vtrn1q_f64(ab1, cd1));
    c = back(vtrn2q_f64(ab0, cd0));
    d = back(vtrn2q_f64(ab1, cd1));
  }
  static void transpose(Vec* r) {
    for (int i = 0; i < 8; i += 4) {
      transpose4(r[i].lo, r[i + 1].lo, r[i + 2].lo, r[i + 3].lo);
      transpose4(r[i].hi, r[i + 1].hi, r[i + 2].hi, r[i + 3].hi);
    }
    for (int i = 0; i < 4; i++) {
      const float32x4_t corner = r[i].hi;
      r[i].hi = r[i + 4].lo;
      r[i + 4].lo = corner;
    }
  }
  static Vec transpose_sum(const Vec* x) {
    const auto four = [](const Vec* v) {
      float32x4_t s[4];
      for (int i = 0; i < 4; i++) s[i] = vaddq_f32(v[i].lo, v[i].hi);
      return vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3]));
    };
    return {four(x), four(x + 4)};
  }
};

}  // namespace
}  // namespace riffle::cpu
