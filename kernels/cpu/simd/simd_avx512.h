// The vector operations of attention_simd.h in AVX-512, for files compiled for it.
#pragma once
// GCC 12 warns about its own intrinsics where they leave a result's unused lanes undefined (PR
// 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

#include <cstdint>

namespace riffle::cpu {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  // 16 of the 32 registers hold sums.
  static constexpr int dim_vectors(int heads) { return heads >= 16 ? 1 : heads == 8 ? 2 : 4; }

  static __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static void store_n(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static Vec load_kv(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec load_kv_n(const uint16_t* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
  }
  static Vec load_kv(const float* p) { return load(p); }
  static Vec load_kv_n(const float* p, int n) { return load_n(p, n); }
  static void store_half(uint16_t* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_half(x));
  }
  static void store_half_n(uint16_t* p, Vec x, int n) {
    _mm256_mask_storeu_epi16(p, first(n), to_half(x));
  }
  static __m256i to_half(Vec x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static bool any_less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ) != 0; }
  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x);
  }

  // exp(x) = 2^n exp(f), |f| <= log(2)/2; minimax polynomial, relative error 1.0e-7 before
  // rounding.
  static Vec exp(Vec x) {
    x = _mm512_max_ps(set1(-104.0f), x);  // below, the result rounds to 0; NaN passes
    const Vec n = _mm512_roundscale_ps(x * set1(0x1.715476p+0f),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f =
        _mm512_fnmadd_ps(n, set1(-0x1.05c61p-29f), _mm512_fnmadd_ps(n, set1(0x1.62e43p-1f), x));
    Vec y = fma(set1(0x1.106284p-7f), f, set1(0x1.5729fp-5f));
    y = fma(y, f, set1(0x1.5557aep-3f));
    y = fma(y, f, set1(0x1.fffdfcp-2f));
    y = fma(y, f, set1(1));
    y = fma(y, f, set1(1));
    return _mm512_scalef_ps(y, n);
  }

  // log(2^n z) = n log 2 + 2 atanh((z-1)/(z+1)), z in [3/4, 3/2); the series' next term is below
  // 1e-9.
  static Vec log(Vec x) {
    const Vec z = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
    const Vec exponent =
        _mm512_getexp_ps(x);  // of x's own mantissa in [1, 2): one less where z < 1
    const Vec n =
        _mm512_mask_add_ps(exponent, _mm512_cmp_ps_mask(z, set1(1), _CMP_LT_OQ), exponent, set1(1));
    const Vec u = (z - set1(1)) / (z + set1(1)), u2 = u * u;
    Vec y = fma(set1(2.0f / 9), u2, set1(2.0f / 7));
    y = fma(y, u2, set1(2.0f / 5));
    y = fma(y, u2, set1(2.0f / 3));
    y = fma(y * u2, u, u + u);
    return fma(n, set1(0x1.62e43p-1f), y);
  }

  template <int N>
  static Vec swap_lanes(Vec x) {
    if constexpr (N == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
    if constexpr (N == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (N == 2) return _mm512_permute_ps(x, 0x4e);
    if constexpr (N == 1) return _mm512_permute_ps(x, 0xb1);
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
