// Linear kernels for AVX2 with FMA and F16C: f32 arithmetic, except for the weights of 4 to 6 bits
// (linear_blocks_avx2.cpp).
#include <immintrin.h>

#include "kernels/cpu/linear/linear_blocks.h"
#include "kernels/cpu/linear/linear_simd.h"

namespace riffle::cpu {
namespace {

alignas(64) constexpr int32_t kLanes[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

struct V8 {
  using F = __m256;
  static constexpr int W = 8;
  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float v) { return _mm256_set1_ps(v); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static __m256i first(int n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLanes + 8 - n));
  }
  static F load_part(const float* p, int n) { return _mm256_maskload_ps(p, first(n)); }
  static void store_part(float* p, int n, F v) { _mm256_maskstore_ps(p, first(n), v); }
  static F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static F load_bf16(const void* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F load_i8(const void* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
  }
  static float scale_f16(const void* p) { return _cvtsh_ss(load_u16(p)); }
  static void load_pairs(const float* p, F* even, F* odd) {
    const F a = load(p), b = load(p + 8);
    const F lo = _mm256_permute2f128_ps(a, b, 0x20), hi = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(lo, hi, 0x88);  // each half: 4 pairs of a half of p
    *odd = _mm256_shuffle_ps(lo, hi, 0xdd);
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F negative_abs(F v) { return _mm256_or_ps(v, set1(-0.0f)); }
  static F select_negative(F sign, F yes, F no) { return _mm256_blendv_ps(no, yes, sign); }
  static F round(F v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F ldexp(F v, F n) {  // two steps, for a subnormal result
    const __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1),
                  bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
    return mul(mul(v, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
  }
  static float sum(F v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
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
  static void transpose(F* r) {
    F t[8], u[8];
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
};

size_t act_bytes(WType type, int64_t cols) {
  return has_blocks(type) ? blocks_act_bytes_avx2(type, cols) : f32_act_bytes(cols);
}
void act_prepare(WType type, const float* x, int64_t cols, void* act) {
  if (has_blocks(type)) blocks_act_prepare_avx2(type, x, cols, act);
  else f32_act_prepare(x, cols, act);
}

// A Q8_0 row: each block is summed with its bare int8 values, then scaled; even and odd blocks are
// two chains.
template <int N>
struct Q8Group {
  static inline __attribute__((always_inline)) void block(const uint8_t* b, const float* x,
                                                          int64_t stride, __m256* acc, int step) {
    const __m256 d = V8::set1(V8::scale_f16(b));
    const __m256 q0 = V8::load_i8(b + 2), q1 = V8::load_i8(b + 10), q2 = V8::load_i8(b + 18),
                 q3 = V8::load_i8(b + 26);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const float* p = x + i * stride;
      __m256 t = V8::mul(q0, V8::load(p));
      t = V8::fma(q1, V8::load(p + 8), t);
      t = V8::fma(q2, V8::load(p + 16), t);
      t = V8::fma(q3, V8::load(p + 24), t);
      acc[i * step] = V8::fma(t, d, acc[i * step]);
    }
  }
  static void row(const uint8_t* row, int64_t cols, const float* x, int64_t stride, float* y,
                  int64_t ldy) {
    __m256 acc[2 * N];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * N; ++i) acc[i] = V8::zero();
    int64_t j = 0;
    for (; j + 64 <= cols; j += 64, row += 2 * kQ8Bytes) {
      __builtin_prefetch(row + 8192);
      block(row, x + j, stride, acc, 2);
      block(row + kQ8Bytes, x + j + 32, stride, acc + 1, 2);
    }
    if (j < cols) block(row, x + j, stride, acc, 2);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) y[i * ldy] = V8::sum(V8::add(acc[2 * i], acc[2 * i + 1]));
  }
};

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
          int64_t n, float* y, int64_t ldy) {
  switch (type) {
    case WType::F32: return gemv_float<V8, WType::F32, 2>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::F16: return gemv_float<V8, WType::F16, 2>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::BF16: return gemv_float<V8, WType::BF16, 2>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q8_0:
      return for_rows<Q8Group, 4>(w, bytes_of_row(type, cols), cols, r0, r1,
                                  static_cast<const float*>(acts),
                                  static_cast<int64_t>(f32_act_bytes(cols) / 4), n, y, ldy);
    default: return blocks_gemv_avx2(type, w, cols, r0, r1, acts, n, y, ldy);
  }
}

}  // namespace

void linear_avx2(LinearKernels* t) {
  set_simd_entries<V8, 6, 2>(t);
  t->act_bytes = act_bytes;
  t->act_prepare = act_prepare;
  t->gemv = gemv;
}

}  // namespace riffle::cpu
