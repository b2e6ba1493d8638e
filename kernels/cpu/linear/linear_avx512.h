// The 16-float vector type of linear_simd.h, for linear_avx512.cpp and linear_amx.cpp.
#pragma once
// GCC 12's AVX-512 headers initialise "undefined" vectors with themselves, which its own warning
// then finds.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "kernels/cpu/linear/linear_simd.h"

namespace riffle::cpu {
namespace {

struct V16 {
  using F = __m512;
  static constexpr int W = 16;
  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float v) { return _mm512_set1_ps(v); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static F load_part(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_part(float* p, int n, F v) { _mm512_mask_storeu_ps(p, first(n), v); }
  static F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  static F load_bf16(const void* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F load_i8(const void* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
  }
  static float scale_f16(const void* p) { return _cvtsh_ss(load_u16(p)); }
  static void load_pairs(const float* p, F* even, F* odd) {
    const __m512i evens =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const F a = load(p), b = load(p + 16);
    *even = _mm512_permutex2var_ps(a, evens, b);
    *odd = _mm512_permutex2var_ps(a, odds, b);
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F negative_abs(F v) { return _mm512_or_ps(v, set1(-0.0f)); }
  static F select_negative(F sign, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), no, yes);
  }
  static F round(F v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F ldexp(F v, F n) { return _mm512_scalef_ps(v, n); }
  static float sum(F v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
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
  // 4x4 within 128-bit lanes, then the lanes as a 4x4.
  static void transpose(F* r) {
    F t[16], u[16];
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
      const F a = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x44),
              b = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xee);
      const F c = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x44),
              d = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xee);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[4 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[8 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }
};

}  // namespace
}  // namespace riffle::cpu
