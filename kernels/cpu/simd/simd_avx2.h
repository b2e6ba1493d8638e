// The vector operations of attention_simd.h in AVX2 with FMA and F16C, for files compiled for them.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace riffle::cpu {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  // 8 of the 16 registers hold sums.
  static constexpr int dim_vectors(int heads) { return heads >= 8 ? 1 : heads == 4 ? 2 : 4; }

  static __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load_n(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static void store_n(float* p, Vec x, int n) { _mm256_maskstore_ps(p, first(n), x); }
  static Vec load_kv(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec load_kv_n(const uint16_t* p, int n) {
    uint16_t part[8] = {};
    for (int i = 0; i < n; i++) part[i] = p[i];
    return load_kv(part);
  }
  static Vec load_kv(const float* p) { return load(p); }
  static Vec load_kv_n(const float* p, int n) { return load_n(p, n); }
  static void store_half(uint16_t* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_half_n(uint16_t* p, Vec x, int n) {
    uint16_t part[8];
    store_half(part, x);
    for (int i = 0; i < n; i++) p[i] = part[i];
  }

  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static bool any_less(Vec a, Vec b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)) != 0;
  }
  static Vec select_ge(Vec a, Vec b, Vec x, Vec y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GE_OQ));
  }

  // As in simd_avx512.h; results below 2^-126 become 0.
  static Vec exp(Vec x) {
    const Vec lowest = set1(-87.0f), clamped = _mm256_max_ps(lowest, x);
    const Vec n = _mm256_round_ps(clamped * set1(0x1.715476p+0f),
                                  _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vec f = _mm256_fnmadd_ps(n, set1(-0x1.05c61p-29f),
                                   _mm256_fnmadd_ps(n, set1(0x1.62e43p-1f), clamped));
    Vec y = fma(set1(0x1.106284p-7f), f, set1(0x1.5729fp-5f));
    y = fma(y, f, set1(0x1.5557aep-3f));
    y = fma(y, f, set1(0x1.fffdfcp-2f));
    y = fma(y, f, set1(1));
    y = fma(y, f, set1(1));
    const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, lowest, _CMP_LT_OQ), y);
  }

  static Vec log(Vec x) {
    // Subtracting the bits of 3/4 before cutting the mantissa off puts z in [3/4, 3/2).
    const __m256i bits = _mm256_castps_si256(x), base = _mm256_castps_si256(set1(0.75f));
    const __m256i power = _mm256_srai_epi32(_mm256_sub_epi32(bits, base), 23);
    const Vec z = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(power, 23)));
    const Vec u = (z - set1(1)) / (z + set1(1)), u2 = u * u;
    Vec y = fma(set1(2.0f / 9), u2, set1(2.0f / 7));
    y = fma(y, u2, set1(2.0f / 5));
    y = fma(y, u2, set1(2.0f / 3));
    y = fma(y * u2, u, u + u);
    return fma(_mm256_cvtepi32_ps(power), set1(0x1.62e43p-1f), y);
  }

  template <int N>
  static Vec swap_lanes(Vec x) {
    if constexpr (N == 4) return _mm256_permute2f128_ps(x, x, 0x01);
    if constexpr (N == 2) return _mm256_permute_ps(x, 0x4e);
    if constexpr (N == 1) return _mm256_permute_ps(x, 0xb1);
  }

  static Vec transpose_sum(const Vec* x) {
    const Vec a = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const Vec b = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_permute2f128_ps(a, b, 0x20) + _mm256_permute2f128_ps(a, b, 0x31);
  }
  // The same for vectors of 32-bit integers.
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
