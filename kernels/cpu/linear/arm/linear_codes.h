// Decodes quantised weights with NEON. Codes of 32 neighbouring values are signed bytes; a value is
// scale * (code - code_offset) - min. Everything follows from the table of types and gives the same
// values as quants.h.
#pragma once
#include "kernels/cpu/linear/quants.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
namespace {

constexpr bool has_min(WType type) { return dtype_info(type).has_min(); }
constexpr bool has_256(WType type) { return dtype_info(type).block_values == 256; }
// Values that share a scale, or 32 if more do.
constexpr int group_values(WType type) {
  const int group = dtype_info(type).group();
  return group < 32 ? group : 32;
}
constexpr int groups_of_block(WType type) {
  return dtype_info(type).block_values / group_values(type);
}
constexpr int kMostGroups = 16;  // groups of a block

// Bytes with bit `at` set where the word has their bit: 16 bits of the word, from bit 16 `half` on.
template <int at>
inline uint8x16_t spread_bits(const uint8_t* word, int half) {
  const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bytes = vcombine_u8(vdup_n_u8(word[2 * half]), vdup_n_u8(word[2 * half + 1]));
  return vandq_u8(vtstq_u8(bytes, bits), vdupq_n_u8(1 << at));
}
// Moves bits from `from` to `to` and masks them there.
template <int from, int to, int mask>
inline uint8x16_t field(uint8x16_t v) {
  // A shift to the right may leave nothing else.
  constexpr bool kAlone = from > to && ((255 >> (from > to ? from - to : 0)) & ~mask) == 0;
  if constexpr (from < to) v = vshlq_n_u8(v, to - from);
  else if constexpr (from > to) v = vshrq_n_u8(v, from - to);
  return kAlone ? v : vandq_u8(v, vdupq_n_u8(mask));
}

template <WType T>
inline int8x16_t table_of() {
  int8x16_t table;
  for (int i = 0; i < 16; ++i) table[i] = table_value(T, i);
  return table;
}

// Codes of values [32 c, 32 c + 32) of a block.
template <WType T, int c>
inline __attribute__((always_inline)) int8x16x2_t codes32(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr bool kHigh = type.high_bits > 0;
  int8x16x2_t out;
  if constexpr (type.codes == Codes::Bytes) {
    const auto* at = reinterpret_cast<const int8_t*>(b + type.codes_at + 32 * c);
    out.val[0] = vld1q_s8(at);
    out.val[1] = vld1q_s8(at + 16);
  } else if constexpr (type.codes == Codes::Halves) {
    const uint8x16_t both = vld1q_u8(b + type.codes_at + 16 * c);
    uint8x16_t part[2] = {vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8(both, 4)};
    for (int i = 0; i < 2; ++i) {
      if constexpr (type.has_table()) {
        out.val[i] = vqtbl1q_s8(table_of<T>(), part[i]);
      } else {
        if constexpr (kHigh)
          part[i] = vorrq_u8(part[i], spread_bits<type.low_bits>(b + type.high_at + 4 * c, i));
        out.val[i] = vreinterpretq_s8_u8(part[i]);
      }
    }
  } else {
    constexpr Strip low = low_strip_of(type, c);
    for (int i = 0; i < 2; ++i) {
      uint8x16_t part =
          field<low.shift, 0, (1 << type.low_bits) - 1>(vld1q_u8(b + low.at + 16 * i));
      if constexpr (kHigh) {
        constexpr Strip high = high_strip_of(type, c);
        constexpr int kMask = ((1 << type.high_bits) - 1) << type.low_bits;
        part =
            vorrq_u8(part, field<high.shift, type.low_bits, kMask>(vld1q_u8(b + high.at + 16 * i)));
      }
      out.val[i] = vreinterpretq_s8_u8(part);
    }
  }
  return out;
}
// The same codes less their offset, so that they are values.
template <WType T, int c>
inline __attribute__((always_inline)) int8x16x2_t values32(const uint8_t* b) {
  constexpr int offset = dtype_info(T).offset;
  int8x16x2_t codes = codes32<T, c>(b);
  if constexpr (offset > 0)
    for (int8x16_t& half : codes.val) half = vsubq_s8(half, vdupq_n_s8(offset));
  return codes;
}

// Calls f<c>() for c < n.
template <int n, int c = 0, class F>
inline __attribute__((always_inline)) void each(const F& f) {
  f.template operator()<c>();
  if constexpr (c + 1 < n) each<n, c + 1>(f);
}

// Decodes the values of a block.
template <class S, WType T>
void decode_block(const uint8_t* b, float* out) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int kGroup = group_values(T);
  each<type.block_values / 32>([&]<int c>() __attribute__((always_inline)) {
    int8_t codes[32];
    const int8x16x2_t values = values32<T, c>(b);
    vst1q_s8(codes, values.val[0]);
    vst1q_s8(codes + 16, values.val[1]);
    for (int j = 0; j < 32; j += S::kLanes) {
      const ScaleMin of = scale_min_at<T>(b, (32 * c + j) / (has_256(T) ? kGroup : 32));
      typename S::Vec v = S::set1(of.scale) * S::load_i8(codes + j);
      if constexpr (type.has_min()) v = v - S::set1(of.min);
      S::store(out + 32 * c + j, v);
    }
  });
}

// The scales of four groups, and their minima.
struct Four {
  float32x4_t scale, min;
};
inline float32x4_t floats_of(uint16x4_t x) { return vcvtq_f32_u32(vmovl_u16(x)); }
inline float32x4_t floats_of(int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); }
inline uint32_t load_u32(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

// Scales and minima of four blocks of 32 values.
template <WType T>
inline __attribute__((always_inline)) Four scales_of_four(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  static_assert(type.groups() == 1);
  constexpr int n = type.block_bytes;
  if constexpr (type.scales == Scales::Exponent) {
    uint32x4_t bits = vdupq_n_u32(0);
    for (int i = 0; i < 4; ++i) bits[i] = half_e8m0_bits(b[type.scales_at + i * n]);
    const float32x4_t scale = vreinterpretq_f32_u32(bits);
    return {scale, scale};
  } else {
    const auto halves = [b](int at) {
      uint16x4_t x = vdup_n_u16(0);
      for (int i = 0; i < 4; ++i) x[i] = load_u16(b + at + i * n);
      return vcvt_f32_f16(vreinterpret_f16_u16(x));
    };
    const float32x4_t scale = halves(type.d_at);
    return {scale, has_min(T) ? vnegq_f32(halves(type.dmin_at)) : scale};
  }
}

// Scales and minima of all groups of a block of 256 values.
template <WType T>
inline __attribute__((always_inline)) void scales_of_block(const uint8_t* b,
                                                           Four (&out)[groups_of_block(T) / 4]) {
  constexpr DTypeInfo type = dtype_info(T);
  const uint8_t* const s = b + type.scales_at;
  const float32x4_t d = vdupq_n_f32(Neon::f16_at(b + type.d_at));
  const float32x4_t dmin = type.has_min() ? vdupq_n_f32(Neon::f16_at(b + type.dmin_at)) : d;
  if constexpr (type.scales == Scales::Pairs) {
    const uint32_t a = load_u32(s), m = load_u32(s + 4), c = load_u32(s + 8);
    const uint32_t words[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
                               m & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (m >> 2 & 0x30303030)};
    const uint8x16_t bytes = vreinterpretq_u8_u32(vld1q_u32(words));
    const uint16x8_t scale = vmovl_u8(vget_low_u8(bytes)), min = vmovl_high_u8(bytes);
    out[0] = {vmulq_f32(d, floats_of(vget_low_u16(scale))),
              vmulq_f32(dmin, floats_of(vget_low_u16(min)))};
    out[1] = {vmulq_f32(d, floats_of(vget_high_u16(scale))),
              vmulq_f32(dmin, floats_of(vget_high_u16(min)))};
  } else if constexpr (type.scales == Scales::Split) {
    const int32_t low_at[8] = {0, -4, -8, -12, -16, -20, -24, -28};
    const int32_t high_at[8] = {4, 2, 0, -2, -4, -6, -8, -10};
    const uint32x4_t low = vdupq_n_u32(load_u32(s + 2)), high = vdupq_n_u32(load_u16(s));
    for (int i = 0; i < 2; ++i) {
      const uint32x4_t both =
          vorrq_u32(vandq_u32(vshlq_u32(low, vld1q_s32(low_at + 4 * i)), vdupq_n_u32(15)),
                    vandq_u32(vshlq_u32(high, vld1q_s32(high_at + 4 * i)), vdupq_n_u32(48)));
      const int32x4_t scale = vsubq_s32(vreinterpretq_s32_u32(both), vdupq_n_s32(32));
      out[i].scale = out[i].min = vmulq_f32(d, vcvtq_f32_s32(scale));
    }
  } else {
    int8x16_t scale, min;
    if constexpr (type.scales == Scales::Nibbles) {
      const uint8x16_t both = vld1q_u8(s);
      scale = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
      min = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    } else if constexpr (type.scales == Scales::Sixes) {
      const uint32_t a = load_u32(s), m = load_u32(s + 4), h = load_u32(s + 8);
      const uint32_t words[4] = {
          (a & 0x0f0f0f0f) | (h << 4 & 0x30303030), (m & 0x0f0f0f0f) | (h << 2 & 0x30303030),
          (a >> 4 & 0x0f0f0f0f) | (h & 0x30303030), (m >> 4 & 0x0f0f0f0f) | (h >> 2 & 0x30303030)};
      scale = min = vsubq_s8(vreinterpretq_s8_u32(vld1q_u32(words)), vdupq_n_s8(32));
    } else {
      static_assert(type.scales == Scales::Signed);
      scale = min = vld1q_s8(reinterpret_cast<const int8_t*>(s));
    }
    const int16x8_t scales[2] = {vmovl_s8(vget_low_s8(scale)), vmovl_high_s8(scale)};
    const int16x8_t minima[2] = {vmovl_s8(vget_low_s8(min)), vmovl_high_s8(min)};
    for (int i = 0; i < 2; ++i) {
      out[2 * i].scale = vmulq_f32(d, floats_of(vget_low_s16(scales[i])));
      out[2 * i + 1].scale = vmulq_f32(d, floats_of(vget_high_s16(scales[i])));
      if constexpr (type.has_min()) {
        out[2 * i].min = vmulq_f32(dmin, floats_of(vget_low_s16(minima[i])));
        out[2 * i + 1].min = vmulq_f32(dmin, floats_of(vget_high_s16(minima[i])));
      } else {
        out[2 * i].min = out[2 * i].scale;
        out[2 * i + 1].min = out[2 * i + 1].scale;
      }
    }
  }
}

}  // namespace
}  // namespace riffle::cpu
