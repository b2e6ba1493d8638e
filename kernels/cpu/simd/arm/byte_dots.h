// Sums of products of signed bytes. Widening uses NEON alone, Dotting uses dot product
// (FEAT_DotProd). Both have these members:
//
//   dot(t, a, b)      Adds the 16 products of bytes of a and b to the lanes of t. Only the sum of
//                     all lanes is defined. Requires: a or b has no byte -128.
//   dot4<n>(t, a, b)  Adds to each lane of t the products of the lane's 4 bytes of a with the 4
//                     bytes of word n of b.
//   Sums              The sums of dot4 before they are added to t, in 16 bits in Widening.
//   no_sums()         Returns sums of 0.
//   add<n>(s, a, b)   Returns s plus the products of dot4<n>.
//   carry(t, s)       Returns t plus the sums s.
//   most(largest)     Returns how often add may be called before the sums could overflow. Requires:
//                     no byte of a exceeds `largest` in magnitude.
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
  // The sum of two products fits 16 bits, since a factor of each is above -128.
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
