// Decodes quantised weights with AVX-512: the two functions of a type are step_codes, the codes of
// a step of 128 or 256 columns as unsigned bytes, and step_scales. Columns lie in the order in
// which codes come out of their bytes (place_of).
#pragma once
#include "kernels/cpu/linear/x86/linear_codes.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

// Returns the number of columns processed together: four blocks of the types with 32 values, one
// block of the types with 256.
constexpr int64_t step_cols(WType type) { return has_256(type) ? 256 : 128; }
constexpr int step_limbs(WType type) { return static_cast<int>(step_cols(type) / 64); }
constexpr int step_groups(WType type) {
  return static_cast<int>(step_cols(type) / group_values(type));
}

// A limb is a vector of 64 columns. Limbs come in pairs whose lanes belong to the same groups.
struct Place {
  int64_t limb;
  int at;
};
// Returns the place of the eight columns from 8 i on.
constexpr Place place_of(WType type, int64_t i) {
  const DTypeInfo info = dtype_info(type);
  const int g = static_cast<int>(i / 4 % 8), half = static_cast<int>(i / 2 % 2),
            eight = static_cast<int>(i % 2);
  if (!has_256(type) || info.codes == Codes::Halves)
    return {i / 16 * 2 + half, g % 4 * 16 + eight * 8};
  if (info.codes == Codes::Crossed)
    return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g % 2 * 2 + half) * 16 + g / 4 * 8};
  if (info.low_bits == 2)
    return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g / 4 * 2 + half) * 16 + g % 2 * 8};
  return {i / 32 * 4 + g % 2 * 2 + half, g / 2 * 16 + eight * 8};
}

// The group of each lane of 4 columns of the pairs of limbs of a step.
template <WType T>
struct LaneGroups {
  alignas(64) int32_t of[step_limbs(T) / 2][16] = {};
  constexpr LaneGroups() {
    for (int i = 0; i < step_cols(T) / 8; ++i) {
      const Place place = place_of(T, i);
      for (int j = 0; j < 2; ++j) of[place.limb / 2][place.at / 4 + j] = 8 * i / group_values(T);
    }
  }
};

inline __m512i splat(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
inline __m512i low_half(__m512i v) { return _mm512_and_si512(v, splat(15)); }
inline __m512i high_half(__m512i v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), splat(15)); }
// 16 bytes at each of four places.
inline __m512i load_four(const uint8_t* p, int stride) {
  __m512i v = _mm512_castsi128_si512(bytes16(p));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, bytes16(p + stride));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, bytes16(p + 2 * stride));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, bytes16(p + 3 * stride));
}
inline __m512i twice32(const uint8_t* p) { return _mm512_broadcast_i64x4(bytes32(p)); }
// Sets bit `bit` of the codes that `high` selects.
inline __m512i with_bit(__m512i code, __mmask64 high, int bit) {
  return _mm512_mask_add_epi8(code, high, code, splat(1 << bit));
}
inline __m512i unpack_eights(__m512i a, __m512i b, int last) {
  return last ? _mm512_unpackhi_epi64(a, b) : _mm512_unpacklo_epi64(a, b);
}

// Returns the amount by which unsigned codes exceed signed ones.
constexpr int unsigned_offset(WType type) {
  const DTypeInfo info = dtype_info(type);
  return info.table == CodeTable::E2m1           ? 12
         : info.is_signed() && !info.has_table() ? 128
                                                 : code_offset(type);
}
template <WType T>
inline __m512i from_table(__m512i codes) {
  if constexpr (!has_table(T)) return codes;
  const __m128i table =
      _mm_add_epi8(table_of<T>(), _mm_set1_epi8(static_cast<char>(unsigned_offset(T))));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
}

// Four blocks of 32 values, as vectors of their first and of their second halves.
template <WType T>
inline void codes_of_four(const uint8_t* p, __m512i* u) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int kBlock = type.block_bytes;
  if constexpr (type.codes == Codes::Bytes) {
    u[0] = _mm512_xor_si512(load_four(p + type.codes_at, kBlock), splat(-128));
    u[1] = _mm512_xor_si512(load_four(p + type.codes_at + 16, kBlock), splat(-128));
    return;
  }
  const __m512i q = load_four(p + type.codes_at, kBlock);
  u[0] = from_table<T>(low_half(q)), u[1] = from_table<T>(high_half(q));
  if constexpr (type.high_bits > 0) {
    uint32_t h[4];
    for (int i = 0; i < 4; ++i) memcpy(&h[i], p + type.high_at + i * kBlock, 4);
    const uint64_t first = (h[0] & 0xffff) | h[1] << 16, first2 = (h[2] & 0xffff) | h[3] << 16;
    const uint64_t second = h[0] >> 16 | (h[1] & 0xffff0000),
                   second2 = h[2] >> 16 | (h[3] & 0xffff0000);
    u[0] = with_bit(u[0], _cvtu64_mask64(first | first2 << 32), type.low_bits);
    u[1] = with_bit(u[1], _cvtu64_mask64(second | second2 << 32), type.low_bits);
  }
}

// Halves in a block of 256: the first halves of groups 0 to 3, their second halves, then those of
// groups 4 to 7.
template <WType T>
inline void codes_of_halves(const uint8_t* p, __m512i* u) {
  static_assert(dtype_info(T).high_bits == 0);
  for (int part = 0; part < 2; ++part) {
    const __m512i q = _mm512_loadu_si512(p + dtype_info(T).codes_at + 64 * part);
    u[2 * part] = from_table<T>(low_half(q));
    u[2 * part + 1] = from_table<T>(high_half(q));
  }
}

// Strips of 4 bits, in some types with one more bit: the first halves of groups 0, 2, 4, 6, their
// second halves, then those of groups 1, 3, 5, 7.
template <WType T>
inline void codes_of_strips4(const uint8_t* p, __m512i* u) {
  constexpr DTypeInfo type = dtype_info(T);
  const uint8_t* q = p + type.codes_at;
  const __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 64);
  const __m512i first = _mm512_shuffle_i32x4(a, b, 0x88), second = _mm512_shuffle_i32x4(a, b, 0xdd);
  u[0] = low_half(first), u[1] = low_half(second), u[2] = high_half(first),
  u[3] = high_half(second);
  if constexpr (type.high_bits > 0) {
    static_assert(type.high_bits == 1);
    const __m512i h0 = _mm512_broadcast_i32x4(bytes16(p + type.high_at)),
                  h1 = _mm512_broadcast_i32x4(bytes16(p + type.high_at + 16));
    const __m512i even =
        _mm512_set_epi32(0x40404040, 0x40404040, 0x40404040, 0x40404040, 0x10101010, 0x10101010,
                         0x10101010, 0x10101010, 0x04040404, 0x04040404, 0x04040404, 0x04040404,
                         0x01010101, 0x01010101, 0x01010101, 0x01010101);
    const __m512i odd = _mm512_add_epi8(even, even);
    u[0] = with_bit(u[0], _mm512_test_epi8_mask(h0, even), type.low_bits),
    u[1] = with_bit(u[1], _mm512_test_epi8_mask(h1, even), type.low_bits);
    u[2] = with_bit(u[2], _mm512_test_epi8_mask(h0, odd), type.low_bits),
    u[3] = with_bit(u[3], _mm512_test_epi8_mask(h1, odd), type.low_bits);
  }
}

// Crossed strips of 4 bits with 2 more. One pair of limbs holds groups 0 to 3 and 8 to 11, the
// other groups 4 to 7 and 12 to 15. The first limb of a pair has the first eight of each 16 values,
// the second the last eight.
template <WType T>
inline void codes_of_crossed(const uint8_t* p, __m512i* u) {
  constexpr DTypeInfo type = dtype_info(T);
  static_assert(type.low_bits == 4 && type.high_bits == 2);
  const __m512i pair = splat(0x30), shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
  const __m512i a = _mm512_loadu_si512(p + type.codes_at),
                b = _mm512_loadu_si512(p + type.codes_at + 64);
  const __m512i ha = twice32(p + type.high_at), hb = twice32(p + type.high_at + 32);
  for (int eight = 0; eight < 2; ++eight) {
    const __m512i low = unpack_eights(a, b, eight);
    // Quarters 0 and 1 have their pairs at bits 0 and 2, quarters 2 and 3 at bits 4 and 6; all go
    // to bit 4.
    const __m512i high = _mm512_srlv_epi64(unpack_eights(ha, hb, eight), shift);
    u[eight] = _mm512_ternarylogic_epi32(_mm512_slli_epi64(high, 4), pair, low_half(low),
                                         0xea);  // (a & b) | c
    u[2 + eight] = _mm512_ternarylogic_epi32(high, pair, high_half(low), 0xea);
  }
}

// Strips of 2 bits, in some types with one more bit. The first pair of limbs holds groups 0, 1, 4
// and 5 (of 32 values), the second groups 2, 3, 6 and 7. The first limb of a pair has the first
// eight of each 16 values, the second the last eight.
template <WType T>
inline void codes_of_strips2(const uint8_t* p, __m512i* u) {
  constexpr DTypeInfo type = dtype_info(T);
  const __m512i q = _mm512_loadu_si512(p + type.codes_at);
  const __m512i shift = _mm512_set_epi64(2, 0, 2, 0, 2, 0, 2, 0);
  for (int eight = 0; eight < 2; ++eight) {
    const __m512i v = _mm512_srlv_epi64(unpack_eights(q, q, eight), shift);
    u[eight] = _mm512_and_si512(v, splat(3));
    u[2 + eight] = _mm512_and_si512(_mm512_srli_epi64(v, 4), splat(3));
  }
  if constexpr (type.high_bits > 0) {
    static_assert(type.high_bits == 1);
    const __m512i h = twice32(p + type.high_at);
    // Bit g of a byte belongs to group g of 32: for the first pair bits 0, 1 and then 4, 5.
    constexpr int64_t ones = 0x0101010101010101;
    const __m512i first = _mm512_set_epi64(ones << 5, ones << 4, ones << 5, ones << 4, ones << 1,
                                           ones, ones << 1, ones);
    const __m512i second = _mm512_slli_epi64(first, 2);
    for (int eight = 0; eight < 2; ++eight) {
      const __m512i v = unpack_eights(h, h, eight);
      u[eight] = with_bit(u[eight], _mm512_test_epi8_mask(v, first), type.low_bits);
      u[2 + eight] = with_bit(u[2 + eight], _mm512_test_epi8_mask(v, second), type.low_bits);
    }
  }
}

// The codes of a step, a vector for each limb.
template <WType T>
inline void step_codes(const uint8_t* p, __m512i (&u)[step_limbs(T)]) {
  constexpr DTypeInfo type = dtype_info(T);
  if constexpr (!has_256(T)) codes_of_four<T>(p, u);
  else if constexpr (type.codes == Codes::Halves) codes_of_halves<T>(p, u);
  else if constexpr (type.codes == Codes::Crossed) codes_of_crossed<T>(p, u);
  else if constexpr (type.low_bits == 2) codes_of_strips2<T>(p, u);
  else codes_of_strips4<T>(p, u);
}

// Returns true if the codes' offset is subtracted in integers, before conversion to floats: groups
// of a type with exponents have no scale of 0.
constexpr bool offset_is_exact(WType type) { return dtype_info(type).table == CodeTable::E2m1; }

// The scales of a step's groups, and the factors of the activations' sums: minima, or scales again
// if codes have an offset. times(x, low) returns the scales times the scales of the activations,
// which are at x. It adds to low the products with the activations' sums, which follow their
// scales; the caller subtracts low.
template <WType T>
struct Scales4 {
  __m128 scale, taken;
  using Low = __m128;
  __m512 times(const float* x, Low* low) const {
    if constexpr (!offset_is_exact(T))
      *low = has_min(T) ? _mm_fnmadd_ps(taken, _mm_load_ps(x + 4), *low)
                        : _mm_fmadd_ps(taken, _mm_load_ps(x + 4), *low);
    return _mm512_castps128_ps512(_mm_mul_ps(scale, _mm_load_ps(x)));
  }
  static __m512 finish(__m512 sum, Low low) {
    return _mm512_sub_ps(sum, _mm512_zextps128_ps512(low));
  }
};
struct Scales8 {
  __m256 scale, taken;
  using Low = __m256;
  __m512 times(const float* x, Low* low) const {
    *low = _mm256_fmadd_ps(taken, _mm256_load_ps(x + 8), *low);
    return _mm512_castps256_ps512(_mm256_mul_ps(scale, _mm256_load_ps(x)));
  }
  static __m512 finish(__m512 sum, Low low) {
    return _mm512_sub_ps(sum, _mm512_zextps256_ps512(low));
  }
};
struct ScalesMins8 {  // eight scales, eight minima
  __m512 both;
  using Low = __m512;  // in the upper eight lanes
  __m512 times(const float* x, Low* low) const {
    const __m512 d = _mm512_mul_ps(both, _mm512_load_ps(x));
    *low = _mm512_add_ps(*low, d);
    return d;
  }
  static __m512 finish(__m512 sum, Low low) { return _mm512_mask_sub_ps(sum, 0xff00, sum, low); }
};
struct Scales16 {
  __m512 scale, taken;
  using Low = __m512;
  __m512 times(const float* x, Low* low) const {
    *low = _mm512_fmadd_ps(taken, _mm512_load_ps(x + 16), *low);
    return _mm512_mul_ps(scale, _mm512_load_ps(x));
  }
  static __m512 finish(__m512 sum, Low low) { return _mm512_sub_ps(sum, low); }
};

template <WType T>
inline auto step_scales(const uint8_t* p) {
  constexpr DTypeInfo type = dtype_info(T);
  if constexpr (!has_256(T)) {
    constexpr int n = type.block_bytes;
    if constexpr (type.scales == Scales::Exponent) {
      const auto bits = [p](int i) {
        return static_cast<int>(half_e8m0_bits(p[type.scales_at + i * n]));
      };
      const __m128 scale = _mm_castsi128_ps(_mm_setr_epi32(bits(0), bits(1), bits(2), bits(3)));
      return Scales4<T>{scale, scale};
    } else {
      const auto halves = [](const uint8_t* at) {
        const uint64_t low = load_u16(at) | static_cast<uint64_t>(load_u16(at + n)) << 16;
        const uint64_t high = load_u16(at + 2 * n) | static_cast<uint64_t>(load_u16(at + 3 * n))
                                                         << 16;
        return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(low | high << 32)));
      };
      const __m128 scale = halves(p + type.d_at);
      return Scales4<T>{scale, has_min(T) ? halves(p + type.dmin_at) : scale};
    }
  } else if constexpr (type.scales == Scales::Pairs) {
    static_assert(type.dmin_at == type.d_at + 2);
    const __m512i lane = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128 d = _mm_cvtph_ps(_mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(p + type.d_at)));  // d, dmin and the bytes after them
    return ScalesMins8{
        _mm512_mul_ps(_mm512_permutexvar_ps(lane, _mm512_castps128_ps512(d)),
                      _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scales_mins_k(p + type.scales_at))))};
  } else if constexpr (type.groups() == 8) {
    const __m256 scale = split_scales<T>(p);
    return Scales8{scale, scale};
  } else if constexpr (type.groups() == 16) {
    const Bytes16 of = sixteen_bytes<T>(p);
    const auto times = [](const uint8_t* d, __m128i bytes) {
      return _mm512_mul_ps(_mm512_set1_ps(Avx512::f16_at(d)),
                           _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    };
    const __m512 scale = times(p + type.d_at, of.scale);
    return Scales16{scale, has_min(T) ? times(p + type.dmin_at, of.min) : scale};
  } else {
    const __m256 scale = _mm256_set1_ps(Avx512::f16_at(p + type.d_at));
    return Scales8{scale, has_min(T) ? _mm256_set1_ps(-Avx512::f16_at(p + type.dmin_at)) : scale};
  }
}

}  // namespace
}  // namespace riffle::cpu
