// Decodes quantised weights with AVX2: the two functions of a type are codes32, the codes of 32
// neighbouring values as bytes, and scales_of, the scales and minima of a block's groups, so that a
// value is scale * (code - offset) - min. They follow from the table of types and give the same
// values as quants.h.
#pragma once
#include "kernels/cpu/linear/quants.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {
namespace {

// The values of IQ4's table become unsigned codes by this offset. MXFP4's values stay signed: a
// group of zeros, whose scale is never 0, then adds nothing at all.
constexpr int code_offset(WType type) {
  const DTypeInfo info = dtype_info(type);
  return info.table == CodeTable::Iq4 ? 127 : info.offset;
}

inline __m128i bytes16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i bytes32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// The low halves of 16 bytes, then their high halves.
inline __m256i halves16(const uint8_t* p) {
  return _mm256_and_si256(
      _mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes16(p)), _mm256_setr_epi64x(0, 0, 4, 4)),
      _mm256_set1_epi8(15));
}
// Moves the bits of each byte from `from` to `to` and masks them there.
inline __m256i field(__m256i v, int from, int to, char mask) {
  const __m256i moved =
      from < to ? _mm256_slli_epi16(v, to - from) : _mm256_srli_epi16(v, from - to);
  return _mm256_and_si256(moved, _mm256_set1_epi8(mask));
}
// Returns bytes in which byte i has bit `at` if the word has bit i.
inline __m256i spread_bits(const uint8_t* word, int at) {
  int bits;
  memcpy(&bits, word, 4);
  // Byte i gets the byte of the word that contains bit i; the mask then keeps that bit.
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(bits),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(is_set, _mm256_set1_epi8(static_cast<char>(1 << at)));
}

// The table of a type that has one, for vpshufb.
template <WType T>
inline __m128i table_of() {
  return _mm_setr_epi8(table_value(T, 0), table_value(T, 1), table_value(T, 2), table_value(T, 3),
                       table_value(T, 4), table_value(T, 5), table_value(T, 6), table_value(T, 7),
                       table_value(T, 8), table_value(T, 9), table_value(T, 10), table_value(T, 11),
                       table_value(T, 12), table_value(T, 13), table_value(T, 14),
                       table_value(T, 15));
}

// Codes of values [32 c, 32 c + 32) of a block. Byte codes and table values are signed, the others
// unsigned; code_offset is not subtracted.
template <WType T>
inline __m256i codes32(const uint8_t* b, int c) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr bool kHigh = type.high_bits > 0;
  if constexpr (type.codes == Codes::Bytes) {
    return bytes32(b + type.codes_at + 32 * c);
  } else if constexpr (type.codes == Codes::Halves) {
    const __m256i low = halves16(b + type.codes_at + 16 * c);
    if constexpr (type.has_table())
      return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table_of<T>()), low);
    if constexpr (!kHigh) return low;
    return _mm256_or_si256(low, spread_bits(b + type.high_at + 4 * c, type.low_bits));
  } else {
    const Strip of_low = low_strip_of(type, c);
    const __m256i low = field(bytes32(b + of_low.at), of_low.shift, 0, (1 << type.low_bits) - 1);
    if constexpr (!kHigh) return low;
    constexpr int kMask = (1 << type.high_bits) - 1;
    const Strip of_high = high_strip_of(type, c);
    return _mm256_or_si256(low, field(bytes32(b + of_high.at), of_high.shift, type.low_bits,
                                      static_cast<char>(kMask << type.low_bits)));
  }
}

inline float half_of(const uint8_t* p) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p))));
}
inline __m256 f32_of(__m128i bytes, bool is_signed) {
  return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}

// Scales::Pairs: the eight scales, then the eight minima (s: the 12 bytes and 4 more), one per
// byte.
inline __m128i scales_mins_k(const uint8_t* s) {
  // The bytes are words a, b, c: scales 0 to 3 lie in a, 4 to 7 in the low halves of c, with their
  // upper bits in the upper bits of a; minima in b, in the high halves of c and in b.
  const __m128i abc = bytes16(s);
  const __m128i low =
      _mm_srlv_epi32(_mm_shuffle_epi32(abc, 0x98), _mm_setr_epi32(0, 0, 0, 4));  // a c b c>>4
  const __m128i up = _mm_srli_epi32(_mm_shuffle_epi32(abc, 0x50), 2);            // a a b b
  return _mm_or_si128(
      _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
      _mm_and_si128(up, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

// Scales::Sixes: the sixteen scales (s: the 12 bytes), signed, one per byte.
inline __m128i scales_q3_k(const uint8_t* s) {
  uint32_t upper;
  memcpy(&upper, s + 8, 4);
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s));
  const __m128i low =
      _mm_and_si128(_mm_unpacklo_epi64(eight, _mm_srli_epi16(eight, 4)), _mm_set1_epi8(15));
  const __m128i high = _mm_and_si128(
      _mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(upper)), _mm_setr_epi32(0, 2, 4, 6)),
      _mm_set1_epi8(3));
  return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi8(32));
}

// Scales::Split: the eight scales times d.
template <WType T>
inline __m256 split_scales(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  uint32_t l;
  memcpy(&l, b + type.scales_at + 2, 4);
  const __m256i low =
      _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(l)),
                                         _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
                       _mm256_set1_epi32(15));
  const __m256i high =
      _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(load_u16(b + type.scales_at)),
                                         _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
                       _mm256_set1_epi32(3));
  const __m256i both = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
  return _mm256_mul_ps(_mm256_set1_ps(half_of(b + type.d_at)),
                       _mm256_cvtepi32_ps(_mm256_sub_epi32(both, _mm256_set1_epi32(32))));
}

// The integer scales of a block with 16 groups, one per byte, and its minima.
struct Bytes16 {
  __m128i scale, min;
};
template <WType T>
inline Bytes16 sixteen_bytes(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  static_assert(type.groups() == 16);
  const uint8_t* const s = b + type.scales_at;
  if constexpr (type.scales == Scales::Nibbles) {
    const __m128i both = bytes16(s), low = _mm_set1_epi8(15);
    return {_mm_and_si128(both, low), _mm_and_si128(_mm_srli_epi16(both, 4), low)};
  } else {
    const __m128i scale = type.scales == Scales::Sixes ? scales_q3_k(s) : bytes16(s);
    return {scale, scale};
  }
}

// Writes 16 bytes times d.
inline void scaled16(__m128i bytes, bool is_signed, float d, float* out) {
  const __m256 factor = _mm256_set1_ps(d);
  _mm256_storeu_ps(out, _mm256_mul_ps(factor, f32_of(bytes, is_signed)));
  _mm256_storeu_ps(out + 8,
                   _mm256_mul_ps(factor, f32_of(_mm_unpackhi_epi64(bytes, bytes), is_signed)));
}

constexpr int kMostGroups = 16;  // groups of a block
constexpr int groups_of_block(WType type) {
  return dtype_info(type).block_values / group_values(type);
}

// Reads scale and minimum of every group of group_values of a block; min only for the types that
// have minima.
template <WType T>
inline void scales_of(const uint8_t* b, float* scale, float* min) {
  constexpr DTypeInfo type = dtype_info(T);
  if constexpr (type.groups() == 1) {
    const float d = type.scales == Scales::Exponent
                        ? float_of_bits(half_e8m0_bits(b[type.scales_at]))
                        : half_of(b + type.d_at);
    for (int g = 0; g < groups_of_block(T); ++g) {
      scale[g] = d;
      if constexpr (type.has_min()) min[g] = -half_of(b + type.dmin_at);
    }
  } else if constexpr (type.scales == Scales::Pairs) {
    const __m128i both = scales_mins_k(b + type.scales_at);
    _mm256_storeu_ps(scale,
                     _mm256_mul_ps(_mm256_set1_ps(half_of(b + type.d_at)), f32_of(both, false)));
    _mm256_storeu_ps(min, _mm256_mul_ps(_mm256_set1_ps(half_of(b + type.dmin_at)),
                                        f32_of(_mm_unpackhi_epi64(both, both), false)));
  } else if constexpr (type.scales == Scales::Split) {
    _mm256_storeu_ps(scale, split_scales<T>(b));
  } else {
    const Bytes16 of = sixteen_bytes<T>(b);
    scaled16(of.scale, true, half_of(b + type.d_at), scale);
    if constexpr (type.has_min()) scaled16(of.min, true, half_of(b + type.dmin_at), min);
  }
}

// Decodes the values of a block with vectors of S.
template <class S, WType T>
inline void decode_block(const uint8_t* b, float* out) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int L = S::kLanes, kGroup = group_values(T);
  float scale[kMostGroups], min[kMostGroups];
  scales_of<T>(b, scale, min);
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(type.offset));
#pragma GCC unroll 8
  for (int c = 0; c < type.block_values / 32; ++c) {
    alignas(32) uint8_t codes[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes),
                       _mm256_sub_epi8(codes32<T>(b, c), offset));
#pragma GCC unroll 4
    for (int j = 0; j < 32; j += L) {
      const int g = (32 * c + j) / kGroup;
      typename S::Vec v = S::set1(scale[g]) * S::load_i8(codes + j);
      if constexpr (type.has_min()) v = v - S::set1(min[g]);
      S::store(out + 32 * c + j, v);
    }
  }
}

// Codes as unsigned bytes, which exceed their values by byte_offset, a power of two, and are at
// most most_byte.
constexpr int byte_offset(WType type) {
  const DTypeInfo info = dtype_info(type);
  return info.table == CodeTable::E2m1 ? 16 : info.is_signed() ? 128 : info.offset;
}
constexpr int most_byte(WType type) {
  const DTypeInfo info = dtype_info(type);
  return info.table == CodeTable::E2m1 ? 16 + 12 : info.is_signed() ? 255 : (1 << info.bits()) - 1;
}
constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }
template <WType T>
inline __m256i bytes_of(const uint8_t* b, int c) {
  const __m256i codes = codes32<T>(b, c);
  if constexpr (!dtype_info(T).is_signed()) return codes;
  return _mm256_add_epi8(codes, _mm256_set1_epi8(static_cast<char>(byte_offset(T))));
}

// Tells whether the codes of a type, times the integer scale of their group of 16, fit a byte:
// codes of 2 and 3 bits do. Types with an offset get negative factors, since only -4 * -32 = 128
// would not be a signed byte. The scale that remains belongs to the whole block.
constexpr bool fits_scale(WType type) {
  const DTypeInfo info = dtype_info(type);
  return info.groups() == 16 && info.bits() == (info.offset > 0 ? 3 : 2);
}
constexpr int folded_offset(WType type) { return dtype_info(type).offset > 0 ? 128 : 0; }

// Reads the scale of a block, and the minima and factors of its groups.
template <WType T>
inline void folded_scales_of(const uint8_t* b, float* scale, float* min, int8_t* factor) {
  constexpr DTypeInfo type = dtype_info(T);
  const Bytes16 of = sixteen_bytes<T>(b);
  const float d = half_of(b + type.d_at);
  *scale = type.offset > 0 ? -d : d;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(factor), of.scale);
  if constexpr (type.has_min()) scaled16(of.min, true, half_of(b + type.dmin_at), min);
}
// 32 codes times the factors of their groups, plus folded_offset, looked up among the products of
// all codes: 8 bytes (3 bits) or 4, one for each code.
template <WType T>
inline __m256i folded(__m256i codes, const int8_t* factor) {
  const auto products = [&](int g) {
    if constexpr (dtype_info(T).offset > 0) {
      constexpr uint64_t kUnits = [] {  // offset - code
        uint64_t sum = 0;
        for (int code = 7; code >= 0; --code)
          sum = sum * 256 + static_cast<uint64_t>(dtype_info(T).offset - code);
        return sum;
      }();
      return static_cast<int64_t>(static_cast<uint64_t>(factor[g]) * kUnits + 0x8080808080808080u);
    } else {
      return static_cast<int64_t>(factor[g]) * 0x0302010003020100;
    }
  };
  const int64_t first = products(0), last = products(1);
  return _mm256_shuffle_epi8(_mm256_setr_epi64x(first, first, last, last), codes);
}

}  // namespace
}  // namespace riffle::cpu
