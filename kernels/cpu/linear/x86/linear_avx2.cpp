// Linear kernels for AVX2 with FMA and F16C: f32 arithmetic, except the products of quantised
// weights: in decode linear_blocks_avx2.cpp, in prompts linear_int8.h, and linear_int16.h for codes
// of 8 bits.
#include "kernels/cpu/linear/linear_simd.h"
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_int16.h"
#include "kernels/cpu/linear/x86/linear_int8.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {
namespace {

size_t act_bytes(WType type, int64_t cols) {
  return is_quantised(type) ? blocks_act_bytes_avx2(type, cols) : f32_act_bytes(cols);
}
template <bool kF32Kv>
void act_encode(WType type, const float* x, int64_t cols, void* act) {
  if (is_quantised(type)) blocks_act_encode_avx2(type, x, cols, kF32Kv, act);
  else f32_act_encode(x, cols, act);
}

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
          int64_t n, float* y, int64_t ldy) {
  if (is_quantised(type)) return blocks_gemv_avx2(type, w, cols, r0, r1, acts, n, y, ldy);
  with_type(type, [&]<WType T>() {
    if constexpr (!is_quantised(T)) gemv_f32<Avx2, T, 2>(w, cols, r0, r1, acts, n, y, ldy);
  });
}

struct Int256 {
  using Vec = __m256i;
  static constexpr bool kFolds = false;
  // A part holds 16-bit sums of 2 * run products, each of a byte below 128 and a code.
  static constexpr int run(int code) {
    for (int n = 8; n > 0; n /= 2)
      if (2 * n * 127 * code < 1 << 15) return n;
    return 0;
  }
  static Vec load(const int32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vec zero() { return _mm256_setzero_si256(); }
  static Vec splat(const int32_t* p) { return _mm256_set1_epi32(*p); }
  static Vec add_dot(Vec t, Vec x, Vec w) { return _mm256_add_epi32(t, _mm256_madd_epi16(x, w)); }
  static Vec begin(Vec, Vec x, Vec w) { return _mm256_maddubs_epi16(w, x); }
  static Vec more(Vec part, Vec x, Vec w) {
    const Vec products = _mm256_maddubs_epi16(w, x);
    // In C++, GCC 12 would turn the additions into a tree, whose leaves do not fit the registers.
    __asm__("vpaddw %1, %0, %0" : "+x"(part) : "x"(products));
    return part;
  }
  static Vec end(Vec t, Vec part) { return add_dot(t, part, _mm256_set1_epi16(1)); }
  template <int N>
  static Vec shift_left(Vec x) {
    return _mm256_slli_epi32(x, N);
  }
  static __m256 to_f32(Vec x) { return _mm256_cvtepi32_ps(x); }
  static __m256 as_f32(Vec x) { return _mm256_castsi256_ps(x); }
  static void widen(__m256i codes, Vec* out) {
    out[0] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
    out[1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(codes, 1));
  }
};

}  // namespace

void linear_avx2(LinearKernels* t) {
  set_simd_entries<Avx2, 6, 2>(t);
  GemmInt8<Avx2, Int256, 4, 2>::set(t->gemm);
  GemmInt16<Avx2, Int256, 4, 2>::set(t->gemm);
  set_gemv(t, {act_bytes, act_encode<false>, gemv}, {act_bytes, act_encode<true>, gemv});
}

}  // namespace riffle::cpu
