// The vocabulary of simd.h in AVX-512 (F, BW, VL, DQ), for files compiled for it.
#pragma once
#include <cstdint>

#include "kernels/common/agreed.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/x86/intrinsics.h"

namespace riffle::cpu {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16, kRegisters = 32;

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static void store_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Vec load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static Vec load_f16_n(const uint16_t* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static void store_f16(uint16_t* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_f16(x));
  }
  static void store_f16_n(uint16_t* p, Vec x, int n) {
    _mm256_mask_storeu_epi16(p, first(n), to_f16(x));
  }
  static __m256i to_f16(Vec x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Vec load_i8(const void* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static void load_pairs(const float* p, Vec* even, Vec* odd) {
    const __m512i evens =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const Vec a = load(p), b = load(p + 16);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, odds, b);
  }
  static float f16_at(const void* p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    return _cvtsh_ss(x);
  }

  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec round(Vec x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec ldexp(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }

  static Vec exp(Vec x) {
    x = _mm512_max_ps(set1(-104.0f), x);  // below, the result rounds to 0; NaN passes
    Vec n;
    const Vec y = exp_series<Avx512>(x, 1, &n);
    return _mm512_scalef_ps(y, n);
  }

  static Vec log(Vec x) {
    const Vec z = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
    const Vec exponent =
        _mm512_getexp_ps(x);  // exponent for x's own mantissa in [1, 2): one less where z < 1
    const Vec n =
        _mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(z, set1(1), _CMP_LT_OQ), exponent, set1(1));
    return log_series<Avx512>(z, n);
  }

  static Vec negative_abs(Vec x) { return _mm512_or_ps(x, set1(-0.0f)); }

  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
  }
  static Vec select_negative(Vec sign, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), y, x);
  }
  static bool any_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
  static unsigned greater_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
  static Vec keep(Vec x, unsigned bits) {
    return _mm512_maskz_mov_ps(static_cast<__mmask16>(bits), x);
  }
  static Vec compress(Vec x, unsigned bits) {
    return _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), x);
  }

  template <int N>
  static Vec swap_lanes(Vec x) {
    if constexpr (N == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
    if constexpr (N == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (N == 2) return _mm512_permute_ps(x, 0x4e);
    if constexpr (N == 1) return _mm512_permute_ps(x, 0xb1);
  }
  static float sum(Vec x) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static double sum_squares(const float* x, int64_t n) {
    __m512d a = _mm512_setzero_pd(), b = a;
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) {
      const __m512d lo = _mm512_cvtps_pd(_mm256_loadu_ps(x + j)),
                    hi = _mm512_cvtps_pd(_mm256_loadu_ps(x + j + 8));
      a = _mm512_fmadd_pd(lo, lo, a);
      b = _mm512_fmadd_pd(hi, hi, b);
    }
    alignas(64) double lane[8];
    _mm512_store_pd(lane, _mm512_add_pd(a, b));
    double total =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; j < n; ++j) total += static_cast<double>(x[j]) * x[j];
    return total;
  }

  // Transposes 4x4 blocks within 128-bit lanes, then the lanes as a 4x4 matrix.
  static void transpose(Vec* r) {
    Vec t[16], u[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // u[4g+i] lane l: column 4l+i of rows 4g..4g+3
      const Vec a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x44),
                b = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xee);
      const Vec c = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x44),
                d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xee);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[4 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[8 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
  static Vec transpose_sum(const Vec* x) {
    Vec quarter[4];  // lane 4i+j of quarter[p]: the j-th of four partial sums of x[4i+p]
    for (int p = 0; p < 4; p++) {
      const Vec a =
          _mm512_shuffle_f32x4(x[p], x[p + 4], 0x44) + _mm512_shuffle_f32x4(x[p], x[p + 4], 0xee);
      const Vec b = _mm512_shuffle_f32x4(x[p + 8], x[p + 12], 0x44) +
                    _mm512_shuffle_f32x4(x[p + 8], x[p + 12], 0xee);
      quarter[p] = _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
    }
    const Vec a =
        _mm512_unpacklo_ps(quarter[0], quarter[1]) + _mm512_unpackhi_ps(quarter[0], quarter[1]);
    const Vec b =
        _mm512_unpacklo_ps(quarter[2], quarter[3]) + _mm512_unpackhi_ps(quarter[2], quarter[3]);
    return _mm512_shuffle_ps(a, b, 0x44) + _mm512_shuffle_ps(a, b, 0xee);
  }
};

}  // namespace
}  // namespace riffle::cpu
