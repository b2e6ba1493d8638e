// Quantised weights in integers: the codes of 32 neighbouring values as bytes, and the scales and
// minima of their groups, so that a value is scale * (code - offset) - min. What quants.h says, for
// the products of prompts (linear_int8.h, linear_int16.h) and of decode on AVX2.
#pragma once
#include "kernels/cpu/linear/linear_blocks.h"

namespace riffle::cpu {
namespace {

constexpr bool has_codes(WType type) { return is_quantised(type); }

// run.operator()<type>() of a type that has codes.
template <class Run>
inline void with_codes(WType type, const Run& run) {
  switch (type) {
    case WType::F32:
    case WType::F16:
    case WType::BF16: return;
    case WType::Q8_0: return run.template operator()<WType::Q8_0>();
    case WType::Q4_0: return run.template operator()<WType::Q4_0>();
    case WType::Q4_1: return run.template operator()<WType::Q4_1>();
    case WType::Q5_0: return run.template operator()<WType::Q5_0>();
    case WType::Q5_1: return run.template operator()<WType::Q5_1>();
    case WType::Q4_K: return run.template operator()<WType::Q4_K>();
    case WType::Q5_K: return run.template operator()<WType::Q5_K>();
    case WType::Q6_K: return run.template operator()<WType::Q6_K>();
    case WType::IQ4_NL: return run.template operator()<WType::IQ4_NL>();
    case WType::IQ4_XS: return run.template operator()<WType::IQ4_XS>();
    case WType::Q3_K: return run.template operator()<WType::Q3_K>();
    case WType::Q2_K: return run.template operator()<WType::Q2_K>();
    case WType::MXFP4: return run.template operator()<WType::MXFP4>();
  }
}

inline __m256i bytes32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
// The low halves of 16 bytes, then their high halves.
inline __m256i halves16(const uint8_t* p) {
  const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_and_si256(
      _mm256_srlv_epi64(_mm256_broadcastsi128_si256(q), _mm256_setr_epi64x(0, 0, 4, 4)),
      _mm256_set1_epi8(15));
}
// The bits of each byte from `from` on, moved to `to` and cut by a mask there.
inline __m256i field(__m256i v, int from, int to, char mask) {
  const __m256i moved =
      from < to ? _mm256_slli_epi16(v, to - from) : _mm256_srli_epi16(v, from - to);
  return _mm256_and_si256(moved, _mm256_set1_epi8(mask));
}

// Codes of values [32 c, 32 c + 32) of a block: those of Q8_0 and of the types with a table are
// signed, the others are not; code_offset is not taken off.
template <WType T>
inline __m256i codes32(const uint8_t* b, int c) {
  if constexpr (T == WType::Q8_0) {
    return bytes32(b + 2);
  } else if constexpr (T == WType::Q4_0) {
    return halves16(b + 2);
  } else if constexpr (T == WType::Q4_1) {
    return halves16(b + 4);
  } else if constexpr (T == WType::Q5_0 || T == WType::Q5_1) {
    const uint8_t* high = b + (T == WType::Q5_1 ? 4 : 2);
    int bits;
    memcpy(&bits, high, 4);
    // Byte i gets the byte of the word that has its bit, and then the bit.
    const __m256i word = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(word, bit), bit);
    const __m256i sixteen = _mm256_and_si256(is_set, _mm256_set1_epi8(16));
    return _mm256_or_si256(halves16(high + 4), sixteen);
  } else if constexpr (T == WType::IQ4_NL || T == WType::MXFP4 || T == WType::IQ4_XS) {
    const uint8_t* q = b + (T == WType::IQ4_XS ? 8 + 16 * c : T == WType::IQ4_NL ? 2 : 1);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table_of<T>()), halves16(q));
  } else if constexpr (T == WType::Q4_K || T == WType::Q5_K) {
    const __m256i low =
        field(bytes32(b + (T == WType::Q5_K ? 48 : 16) + c / 2 * 32), c % 2 * 4, 0, 15);
    if (T == WType::Q4_K) return low;
    return _mm256_or_si256(low, field(bytes32(b + 16), c, 4, 16));
  } else if constexpr (T == WType::Q6_K) {
    const int part = c / 4, quarter = c % 4;
    const __m256i low = field(bytes32(b + 64 * part + quarter % 2 * 32), quarter / 2 * 4, 0, 15);
    const __m256i high = field(bytes32(b + 128 + 32 * part), 2 * quarter, 4, 0x30);
    return _mm256_or_si256(low, high);
  } else {
    static_assert(T == WType::Q3_K || T == WType::Q2_K);
    const uint8_t* q = b + (T == WType::Q3_K ? 32 : 16) + c / 4 * 32;
    const __m256i low = field(bytes32(q), c % 4 * 2, 0, 3);
    if (T == WType::Q2_K) return low;
    return _mm256_or_si256(low, field(bytes32(b), c, 2, 4));
  }
}

inline __m256 f32_of(__m128i bytes, bool is_signed) {
  return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
}
// 16 bytes times d.
inline void scaled16(__m128i bytes, bool is_signed, float d, float* out) {
  const __m256 factor = _mm256_set1_ps(d);
  _mm256_storeu_ps(out, _mm256_mul_ps(factor, f32_of(bytes, is_signed)));
  _mm256_storeu_ps(out + 8,
                   _mm256_mul_ps(factor, f32_of(_mm_unpackhi_epi64(bytes, bytes), is_signed)));
}
inline float half_of(const uint8_t* p) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p))));
}

constexpr int kMostGroups = 16;  // of a block

// Of every group of a block; min only for the types that have minima.
template <WType T>
inline void scales_of(const uint8_t* b, float* scale, float* min) {
  if constexpr (T == WType::MXFP4) {
    *scale = float_of_bits(half_e8m0_bits(b[0]));
  } else if constexpr (!has_256(T)) {
    *scale = half_of(b);
    if (has_min(T)) *min = -half_of(b + 2);
  } else if constexpr (T == WType::Q4_K || T == WType::Q5_K) {
    const __m128i both = scales_mins_k(b + 4);
    _mm256_storeu_ps(scale, _mm256_mul_ps(_mm256_set1_ps(half_of(b)), f32_of(both, false)));
    _mm256_storeu_ps(min, _mm256_mul_ps(_mm256_set1_ps(half_of(b + 2)),
                                        f32_of(_mm_unpackhi_epi64(both, both), false)));
  } else if constexpr (T == WType::Q6_K) {
    scaled16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 192)), true, half_of(b + 208),
             scale);
  } else if constexpr (T == WType::IQ4_XS) {
    _mm256_storeu_ps(scale, scales_iq4_xs(b));
  } else if constexpr (T == WType::Q3_K) {
    scaled16(scales_q3_k(b + 96), true, half_of(b + 108), scale);
  } else {
    static_assert(T == WType::Q2_K);
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    const __m128i low = _mm_set1_epi8(15);
    scaled16(_mm_and_si128(both, low), false, half_of(b + 80), scale);
    scaled16(_mm_and_si128(_mm_srli_epi16(both, 4), low), false, half_of(b + 82), min);
  }
}

// Codes as unsigned bytes, which exceed what they stand for by byte_offset, a power of two, and are
// at most most_byte.
constexpr int byte_offset(WType type) {
  if (type == WType::MXFP4) return 16;
  return type == WType::Q8_0 || has_table(type) ? 128 : code_offset(type);
}
constexpr int most_byte(WType type) {
  switch (type) {
    case WType::Q2_K: return 3;
    case WType::Q3_K: return 7;
    case WType::Q4_0:
    case WType::Q4_1:
    case WType::Q4_K: return 15;
    case WType::MXFP4: return 28;
    case WType::Q5_0:
    case WType::Q5_1:
    case WType::Q5_K: return 31;
    case WType::Q6_K: return 63;
    default: return 255;
  }
}
constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of(n / 2) : 0; }
template <WType T>
inline __m256i bytes_of(const uint8_t* b, int c) {
  const __m256i codes = codes32<T>(b, c);
  constexpr bool kSigned = T == WType::Q8_0 || has_table(T);
  if constexpr (!kSigned) return codes;
  return _mm256_add_epi8(codes, _mm256_set1_epi8(static_cast<char>(byte_offset(T))));
}

// Types whose codes times the integer scale of their group of 16 are bytes. Those of Q3_K are
// negative, since only -4 * -32 = 128 would not be a signed byte. The scale that remains is one of
// the block.
constexpr bool fits_scale(WType type) { return type == WType::Q2_K || type == WType::Q3_K; }
constexpr int folded_offset(WType type) { return type == WType::Q3_K ? 128 : 0; }

// The scale of a block, minima and factors of its groups.
template <WType T>
inline void folded_scales_of(const uint8_t* b, float* scale, float* min, int8_t* factor) {
  if constexpr (T == WType::Q3_K) {
    *scale = -half_of(b + 108);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(factor), scales_q3_k(b + 96));
  } else if constexpr (T == WType::Q2_K) {
    float each[kMostGroups];
    scales_of<T>(b, each, min);
    *scale = half_of(b + 80);
    const __m128i low = _mm_set1_epi8(15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(factor),
                     _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), low));
  }
}
// 32 codes times the factors of their groups, plus folded_offset, looked up among the products of
// all codes: 8 (Q3_K) or 4 bytes, one for each code.
template <WType T>
inline __m256i folded(__m256i codes, const int8_t* factor) {
  const auto products = [&](int g) {
    if constexpr (T == WType::Q3_K) {
      constexpr uint64_t kUnits = [] {  // 4 - code
        uint64_t sum = 0;
        for (int code = 7; code >= 0; --code) sum = sum * 256 + static_cast<uint64_t>(4 - code);
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
