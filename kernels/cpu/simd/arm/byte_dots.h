// Sums of products of signed bytes, with NEON alone (Widening) and with its dot products (SDOT,
// Dotting). Both have the same members:
//
//   dot(t, a, b)      t + the products of 16 bytes, in lanes in any way; one of a and b is never
//                     -128
//   dot4<n>(t, a, b)  each lane of t + the products of its own 4 bytes of a with word n of b
//   Sums, no_sums, add<n>(sums, a, b), carry(t, sums)
//                     dot4 in two steps: `most(largest)` products of 4 bytes fit the sums, for
//                     bytes a of at most `largest`; carry adds them to t
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace riffle::cpu {
namespace {

struct Widening {
  template <int n>
  static int8x16_t word(int8x16_t b) {
    return vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(b), n));
  }
  // Two products of a byte and one above -128 fit 16 bits.
  static int32x4_t dot(int32x4_t t, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    return vpadalq_s16(t, vmlal_high_s8(low, a, b));
  }
  template <int n>
  static int32x4_t dot4(int32x4_t t, int8x16_t a, int8x16_t b) {
    b = word<n>(b);
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(t, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
  }
  struct Sums {
    int16x8_t low, high;
  };
  static Sums no_sums() { return {vdupq_n_s16(0), vdupq_n_s16(0)}; }
  template <int n>
  static Sums add(Sums s, int8x16_t a, int8x16_t b) {
    b = word<n>(b);
    return {vmlal_s8(s.low, vget_low_s8(a), vget_low_s8(b)), vmlal_high_s8(s.high, a, b)};
  }
  static int32x4_t carry(int32x4_t t, Sums s) {
    return vaddq_s32(t, vpaddq_s32(vpaddlq_s16(s.low), vpaddlq_s16(s.high)));
  }
  static constexpr int most(int largest) { return 32767 / (largest * 128); }
};

#if defined(__ARM_FEATURE_DOTPROD)
struct Dotting {
  static int32x4_t dot(int32x4_t t, int8x16_t a, int8x16_t b) { return vdotq_s32(t, a, b); }
  template <int n>
  static int32x4_t dot4(int32x4_t t, int8x16_t a, int8x16_t b) {
    return vdotq_laneq_s32(t, a, b, n);
  }
  using Sums = int32x4_t;
  static Sums no_sums() { return vdupq_n_s32(0); }
  template <int n>
  static Sums add(Sums s, int8x16_t a, int8x16_t b) {
    return vdotq_laneq_s32(s, a, b, n);
  }
  static int32x4_t carry(int32x4_t t, Sums s) { return vaddq_s32(t, s); }
  static constexpr int most(int) { return 1 << 16; }
};
#endif

}  // namespace
}  // namespace riffle::cpu
