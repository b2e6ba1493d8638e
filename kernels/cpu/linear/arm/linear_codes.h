// Decodes quantised weights with NEON. Codes of 32 neighbouring values are signed bytes; a value is
// scale * (code - code_offset) - min. Everything follows from the table of types and gives the same
// values as quants.h.
#pragma once
#include "kernels/cpu/linear/quants.h"
#include "kernels/cpu/simd/arm/neon.h"

namespace riffle::cpu {
namespace {

constexpr int groups_of_block(WType type) {
  return dtype_info(type).block_values / group_values(type);
}
constexpr int kMostGroups = 16;  // groups of a block

// Shifts bits at `from` to `to`. Other bits remain around them.
template <int from, int to>
inline uint8x16_t shifted(uint8x16_t v) {
  if constexpr (from < to) return vshlq_n_u8(v, to - from);
  else if constexpr (from > to) return vshrq_n_u8(v, from - to);
  else return v;
}
// Returns `bits` bits of each byte, from bit `from` on.
template <int from, int bits>
inline uint8x16_t field(uint8x16_t v) {
  v = shifted<from, 0>(v);
  if constexpr (from + bits == 8) return v;
  else return vandq_u8(v, vdupq_n_u8((1 << bits) - 1));
}
// Returns bytes that are all ones where a bit is set: bits 16 half to 16 half + 15 of the 32 bits
// at byte `at` of a block.
template <int at>
inline uint8x16_t spread_bits(const uint8_t* block, int half) {
  const uint8x16_t bits = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t low = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const uint8x16_t first = vaddq_u8(low, vdupq_n_u8(static_cast<uint8_t>(at + 2 * half)));
  return vtstq_u8(vqtbl1q_u8(vld1q_u8(block), first), bits);
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
          part[i] =
              vbslq_u8(vdupq_n_u8(1 << type.low_bits), spread_bits<type.high_at>(b, i), part[i]);
        out.val[i] = vreinterpretq_s8_u8(part[i]);
      }
    }
  } else {
    constexpr Strip low = low_strip_of(type, c);
    for (int i = 0; i < 2; ++i) {
      uint8x16_t part = field<low.shift, type.low_bits>(vld1q_u8(b + low.at + 16 * i));
      if constexpr (kHigh) {
        constexpr Strip high = high_strip_of(type, c);
        constexpr int kMask = ((1 << type.high_bits) - 1) << type.low_bits;
        const uint8x16_t bits = vld1q_u8(b + high.at + 16 * i);
        part = vbslq_u8(vdupq_n_u8(kMask), shifted<high.shift, type.low_bits>(bits), part);
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

// Returns numbers 4 n to 4 n + 3.
template <int n, int kEights>
inline int32x4_t four_of(const int16x8_t (&v)[kEights]) {
  return n % 2 == 0 ? vmovl_s16(vget_low_s16(v[n / 2])) : vmovl_high_s16(v[n / 2]);
}
inline uint32x4_t load_u32_dup(const uint8_t* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return vdupq_n_u32(v);
}

// Scales and minima of four blocks of 32 values.
struct FourScales {
  float32x4_t scale, min;
};
template <WType T>
inline __attribute__((always_inline)) FourScales scales_of_four(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  static_assert(type.groups() == 1);
  constexpr int n = type.block_bytes;
  const auto floats = [](uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); };
  // The first 8 bytes of each block; numbers of 16 bits are put side by side.
  const auto begin = [b](int i) { return vreinterpret_u16_u8(vld1_u8(b + i * n)); };
  const uint16x4_t low = vzip1_u16(begin(0), begin(1)), high = vzip1_u16(begin(2), begin(3));
  const uint32x2_t words[2] = {vreinterpret_u32_u16(low), vreinterpret_u32_u16(high)};
  const auto firsts = vreinterpret_u16_u32(vzip1_u32(words[0], words[1]));
  if constexpr (type.scales == Scales::Exponent) {
    static_assert(type.scales_at == 0);
    // The bytes' halves (half_e8m0_bits): e < 2 gives subnormal numbers.
    const uint32x4_t e = vmovl_u16(vand_u16(firsts, vdup_n_u16(255)));
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    const uint32x4_t bits = vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, normal);
    return {vreinterpretq_f32_u32(bits), vdupq_n_f32(0)};
  } else {
    static_assert(type.d_at == 0 && (!has_min(T) || type.dmin_at == 2));
    return {floats(firsts), floats(vreinterpret_u16_u32(vzip2_u32(words[0], words[1])))};
  }
}

// Scales and minima of a block of 256 values: of group g, d[0] * scale[g] and d[1] * min[g].
template <WType T>
struct BlockScales {
  int16x8_t scale[groups_of_block(T) / 8], min[groups_of_block(T) / 8];
  float32x2_t d;
};
template <WType T>
inline __attribute__((always_inline)) BlockScales<T> scales_of_block(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  const uint8_t* const s = b + type.scales_at;
  BlockScales<T> out;
  const auto floats_in = [](uint8x8_t bytes) {
    return vget_low_f32(vcvt_f32_f16(vreinterpret_f16_u8(bytes)));
  };
  if constexpr (type.scales == Scales::Pairs) {
    // d and dmin; low bits of 4 scales, then of 4 minima; low bits of 4 of each. The upper bits of
    // the last ones are above those of the first ones.
    static_assert(type.d_at == 0 && type.dmin_at == 2 && type.scales_at == 4);
    const uint8x16_t all = vld1q_u8(b);
    const auto words = [](uint8x16_t v) { return vreinterpretq_u32_u8(v); };
    const int8x16_t down = {0, 0, 0, 0, 0, 0, 0, 0, -4, -4, -4, -4, 0, 0, 0, 0};
    const uint8x16_t last = vreinterpretq_u8_u32(vdupq_laneq_u32(words(all), 3));
    const uint8x16_t upper = vsliq_n_u8(vshlq_u8(last, down), vshrq_n_u8(all, 6), 4);
    const uint8x16_t lower = vandq_u8(all, vdupq_n_u8(63));
    const uint8x16_t scale = vreinterpretq_u8_u32(vzip1q_u32(words(lower), words(upper)));
    const uint8x16_t min = vreinterpretq_u8_u32(vzip2q_u32(words(lower), words(upper)));
    out.scale[0] = vreinterpretq_s16_u16(vmovl_high_u8(scale));
    out.min[0] = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(min)));
    out.d = floats_in(vget_low_u8(all));
  } else if constexpr (type.scales == Scales::Split) {
    static_assert(type.d_at == 0 && type.scales_at == 2);
    const uint8x8_t all = vld1_u8(b), from = {2, 2, 2, 2, 3, 3, 3, 3};
    const int8x8_t down = {0, -2, -4, -6, 0, -2, -4, -6};
    const uint8x8_t upper = vand_u8(vshl_u8(vtbl1_u8(all, from), down), vdup_n_u8(3));
    const uint8x8_t lower = vzip2_u8(vand_u8(all, vdup_n_u8(15)), vshr_n_u8(all, 4));
    const uint8x8_t both = vsli_n_u8(lower, upper, 4);
    out.scale[0] = vmovl_s8(vsub_s8(vreinterpret_s8_u8(both), vdup_n_s8(32)));
    out.d = floats_in(all);
  } else {
    int8x16_t scale;
    if constexpr (type.scales == Scales::Nibbles) {
      const uint8x16_t both = vld1q_u8(s);
      scale = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
      const int8x16_t min = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
      out.min[0] = vmovl_s8(vget_low_s8(min));
      out.min[1] = vmovl_high_s8(min);
    } else if constexpr (type.scales == Scales::Sixes) {
      const int8x16_t low_down = {0, 0, 0, 0, 0, 0, 0, 0, -4, -4, -4, -4, -4, -4, -4, -4};
      const int8x16_t high_down = {0, 0, 0, 0, -2, -2, -2, -2, -4, -4, -4, -4, -6, -6, -6, -6};
      const uint8x8_t first = vld1_u8(s);
      const uint8x16_t lower = vshlq_u8(vcombine_u8(first, first), low_down);
      const uint8x16_t upper = vshlq_u8(vreinterpretq_u8_u32(load_u32_dup(s + 8)), high_down);
      const uint8x16_t both = vsliq_n_u8(lower, vandq_u8(upper, vdupq_n_u8(3)), 4);
      scale = vsubq_s8(vreinterpretq_s8_u8(both), vdupq_n_s8(32));
    } else {
      static_assert(type.scales == Scales::Signed);
      scale = vld1q_s8(reinterpret_cast<const int8_t*>(s));
    }
    out.scale[0] = vmovl_s8(vget_low_s8(scale));
    out.scale[1] = vmovl_high_s8(scale);
    // dmin, if any, follows d.
    static_assert(!has_min(T) || type.dmin_at == type.d_at + 2);
    if constexpr (has_min(T)) {
      out.d = floats_in(vreinterpret_u8_u32(vget_low_u32(load_u32_dup(b + type.d_at))));
    } else {
      out.d = floats_in(vreinterpret_u8_u16(vdup_n_u16(load_u16(b + type.d_at))));
    }
  }
  return out;
}

}  // namespace
}  // namespace riffle::cpu
