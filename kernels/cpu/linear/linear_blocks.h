// Decode products of the weights of 4 to 6 bits (linear_blocks_avx2.cpp, linear_blocks_avx512.cpp)
// in exact integers, and the fixed-point activations that they take.
//
// Weights of a group are scale * (code - offset) - min with a small code. A group of 32 activations
// becomes 22-bit integers times a power of two, as for Q8_0 (linear_avx512.cpp), so that a group's
// product is one integer, its scale and, where there are minima, min times the sum of the
// activations.
#pragma once
#include "kernels/cpu/linear/linear_common.h"
#include "kernels/cpu/simd/intrinsics.h"

namespace riffle::cpu {

// Entries of LinearKernels for the types that has_blocks names.
size_t blocks_act_bytes_avx2(WType type, int64_t cols);
void blocks_act_prepare_avx2(WType type, const float* x, int64_t cols, void* act);
void blocks_gemv_avx2(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                      const void* acts, int64_t n, float* y, int64_t ldy);
// These know the activations of Q8_0 as well.
size_t blocks_act_bytes_avx512(WType type, int64_t cols);
void blocks_act_prepare_avx512(WType type, const float* x, int64_t cols, void* act);
void blocks_gemv_avx512(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                        const void* acts, int64_t n, float* y, int64_t ldy);

namespace {

constexpr bool has_blocks(WType type) { return is_quantised(type) && type != WType::Q8_0; }
constexpr bool has_min(WType type) {
  return type == WType::Q4_1 || type == WType::Q5_1 || type == WType::Q4_K || type == WType::Q5_K;
}
constexpr int code_offset(WType type) {
  return type == WType::Q4_0 ? 8 : type == WType::Q5_0 ? 16 : type == WType::Q6_K ? 32 : 0;
}
constexpr bool has_256(WType type) { return dtype_info(type).block_values == 256; }
constexpr int group_values(WType type) {
  return type == WType::Q6_K ? 16 : 32;
}  // that share a scale

// The eight 6-bit scales, then the eight minima of a Q4_K or Q5_K block (s: its 12 bytes and 4
// more), one a byte.
inline __m128i scales_mins_k(const uint8_t* s) {
  // The bytes are words a, b, c: scales 0 to 3 lie in a, 4 to 7 in the low halves of c, with their
  // upper bits in the upper bits of a; minima in b, in the high halves of c and in b.
  const __m128i abc = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s));
  const __m128i low =
      _mm_srlv_epi32(_mm_shuffle_epi32(abc, 0x98), _mm_setr_epi32(0, 0, 0, 4));  // a c b c>>4
  const __m128i up = _mm_srli_epi32(_mm_shuffle_epi32(abc, 0x50), 2);            // a a b b
  return _mm_or_si128(
      _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
      _mm_and_si128(up, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

// Exponent e of the fixed point, largest < 2^(e+21); a group below about 1e-30 is rounded to that
// grid.
inline int fixed_exponent(float largest) {
  if (largest < 0x1p-100f) return -120;
  uint32_t bits;
  memcpy(&bits, &largest, 4);
  return static_cast<int>(bits >> 23 & 255) - 127 - 20;
}
inline float power_of_two(int e) { return float_of_bits(static_cast<uint32_t>(e + 127) << 23); }

// How far ahead of a group of rows to fetch: whole groups, some KB, as the hardware stops at each
// page.
inline int64_t fetch_ahead(int64_t group_bytes) {
  return group_bytes > 0 ? round_up(6144, group_bytes) : 0;
}

}  // namespace
}  // namespace riffle::cpu
