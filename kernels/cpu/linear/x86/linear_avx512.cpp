// Linear kernels for AVX-512 (F, BW, VL, DQ, VNNI). f32 arithmetic, except the products of
// quantised weights: in decode linear_blocks_avx512.cpp, in prompts linear_int8.h.
#include "kernels/cpu/linear/linear_simd.h"
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_int8.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

size_t act_bytes(WType type, int64_t cols) {
  return is_quantised(type) ? blocks_act_bytes_avx512(type, cols) : f32_act_bytes(cols);
}
template <bool kF32Kv>
void act_encode(WType type, const float* x, int64_t cols, void* act) {
  if (is_quantised(type)) blocks_act_encode_avx512(type, x, cols, kF32Kv, act);
  else f32_act_encode(x, cols, act);
}

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
          int64_t n, float* y, int64_t ldy) {
  if (is_quantised(type)) return blocks_gemv_avx512(type, w, cols, r0, r1, acts, n, y, ldy);
  with_type(type, [&]<WType T>() {
    if constexpr (!is_quantised(T)) gemv_f32<Avx512, T, 4>(w, cols, r0, r1, acts, n, y, ldy);
  });
}

struct Int512 {
  using Vec = __m512i;
  static constexpr bool kFolds = true;
  static constexpr int run(int) { return 8; }
  static Vec load(const int32_t* p) { return _mm512_loadu_si512(p); }
  static Vec zero() { return _mm512_setzero_si512(); }
  static Vec splat(const int32_t* p) { return _mm512_set1_epi32(*p); }
  template <int N>
  static Vec shift_left(Vec x) {
    return _mm512_slli_epi32(x, N);
  }
  // With the intrinsic, GCC 12 copies the sums twice for each product.
  static Vec begin(Vec t, Vec x, Vec w) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(t) : "v"(w), "v"(x));
    return t;
  }
  static Vec more(Vec part, Vec x, Vec w) { return begin(part, x, w); }
  static Vec end(Vec, Vec part) { return part; }
  static __m512 to_f32(Vec x) { return _mm512_cvtepi32_ps(x); }
};

}  // namespace

void linear_avx512(LinearKernels* t) {
  set_simd_entries<Avx512, 8, 2>(t);
  GemmInt8<Avx512, Int512, 6, 2>::set(t->gemm);
  set_gemv(t, {act_bytes, act_encode<false>, gemv}, {act_bytes, act_encode<true>, gemv});
}

}  // namespace riffle::cpu
