// The vocabulary of simd.h in AVX2 with FMA and F16C, for files compiled for them.
#pragma once
#include <cstdint>

#include "kernels/common/agreed.h"
#include "kernels/cpu/simd/lane_order.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/x86/intrinsics.h"

namespace riffle::cpu {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8, kRegisters = 16;

  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load_n(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  // Stores 4, 2 and 1 floats separately: a masked store takes tens of cycles on Zen 3.
  static void store_n(float* p, Vec x, int n) {
    if (n >= 8) return store(p, x);
    __m128 part = _mm256_castps256_ps128(x);
    if (n & 4) {
      _mm_storeu_ps(p, part);
      part = _mm256_extractf128_ps(x, 1);
      p += 4;
    }
    if (n & 2) {
      _mm_storel_pi(reinterpret_cast<__m64*>(p), part);
      part = _mm_movehl_ps(part, part);
      p += 2;
    }
    if (n & 1) _mm_store_ss(p, part);
  }
  static Vec load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static Vec load_f16_n(const uint16_t* p, int n) {
    uint16_t part[8] = {};
    for (int i = 0; i < n; i++) part[i] = p[i];
    return load_f16(part);
  }
  static void store_f16(uint16_t* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_f16_n(uint16_t* p, Vec x, int n) {
    uint16_t part[8];
    store_f16(part, x);
    for (int i = 0; i < n; i++) p[i] = part[i];
  }
  static Vec load_bf16(const void* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static Vec load_i8(const void* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
  static void load_pairs(const float* p, Vec* even, Vec* odd) {
    const Vec a = load(p), b = load(p + 8);
    const Vec lo = _mm256_permute2f128_ps(a, b, 0x20), hi = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(lo, hi, 0x88);  // each half: 4 pairs of a half of p
    *odd = _mm256_shuffle_ps(lo, hi, 0xdd);
  }
  static float f16_at(const void* p) {
    uint16_t x;
    __builtin_memcpy(&x, p, 2);
    return _cvtsh_ss(x);
  }

  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec round(Vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec ldexp(Vec x, Vec n) {  // two steps, for a subnormal result
    const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1),
                  bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return x * _mm256_castsi256_ps(a) * _mm256_castsi256_ps(b);
  }

  // Adds n to the exponents of y.
  static Vec scaled(Vec y, Vec n) {
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
  }
  // Results below 2^-126 become 0.
  static Vec exp(Vec x) {
    const Vec lowest = set1(kExpLeast);
    Vec n;
    const Vec y = exp_series<Avx2>(max(lowest, x), 1, &n);
    return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), scaled(y, n));
  }

  static Vec log(Vec x) {
    // Subtracting the bits of 3/4 before cutting the mantissa off puts z in [3/4, 3/2).
    const __m256i bits = _mm256_castps_si256(x), base = _mm256_castps_si256(set1(0.75f));
    const __m256i power = _mm256_srai_epi32(_mm256_sub_epi32(bits, base), 23);
    const Vec z = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(power, 23)));
    return log_series<Avx2>(z, _mm256_cvtepi32_ps(power));
  }

  static Vec negative_abs(Vec x) { return _mm256_or_ps(x, set1(-0.0f)); }

  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
  }
  static Vec select_negative(Vec sign, Vec x, Vec y) { return _mm256_blendv_ps(y, x, sign); }
  static bool any_less(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0;
  }
  static unsigned greater_equal(Vec a, Vec b) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
  }
  static Vec keep(Vec x, unsigned bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i on = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
    return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_cmpeq_epi32(on, lane)));
  }
  static Vec compress(Vec x, unsigned bits) {
    const __m128i lanes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLaneOrder.lanes[bits]));
    return _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(lanes));
  }

  template <int N>
  static Vec swap_lanes(Vec x) {
    if constexpr (N == 4) return _mm256_permute2f128_ps(x, x, 0x01);
    if constexpr (N == 2) return _mm256_permute_ps(x, 0x4e);
    if constexpr (N == 1) return _mm256_permute_ps(x, 0xb1);
  }
  static float sum(Vec x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static double sum_squares(const float* x, int64_t n) {
    __m256d a = _mm256_setzero_pd(), b = a;
    int64_t j = 0;
    for (; j + 8 <= n; j += 8) {
      const __m256d lo = _mm256_cvtps_pd(_mm_loadu_ps(x + j)),
                    hi = _mm256_cvtps_pd(_mm_loadu_ps(x + j + 4));
      a = _mm256_fmadd_pd(lo, lo, a);
      b = _mm256_fmadd_pd(hi, hi, b);
    }
    alignas(32) double lane[4];
    _mm256_store_pd(lane, _mm256_add_pd(a, b));
    double total = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    for (; j < n; ++j) total += static_cast<double>(x[j]) * x[j];
    return total;
  }

  static void transpose(Vec* r) {
    Vec t[8], u[8];
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x20);
      r[4 + i] = _mm256_permute2f128_ps(u[i], u[4 + i], 0x31);
    }
  }
  static Vec transpose_sum(const Vec* x) {
    const Vec a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Vec b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
  }
  // Does the same for vectors of 32-bit integers.
  static __m256i transpose_sum(const __m256i* x) {
    const __m256i a =
        _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    const __m256i b =
        _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                            _mm256_permute2x128_si256(a, b, 0x31));
  }
};

}  // namespace
}  // namespace riffle::cpu
