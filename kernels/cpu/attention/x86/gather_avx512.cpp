// Gathered keys for AVX-512.
#include "kernels/cpu/attention/gather_simd.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

__mmask16 lanes_of(int64_t i, int64_t n) {
  return n - i < 16 ? Avx512::first(static_cast<int>(n - i)) : static_cast<__mmask16>(0xffff);
}
__mmask16 marked(const uint64_t* marks, int64_t i, int64_t n) {
  return static_cast<__mmask16>(marks[i >> 6] >> (i & 63)) & lanes_of(i, n);
}

int64_t count(const float* x, int64_t n, uint32_t least) {
  const __m512i limit = _mm512_set1_epi32(static_cast<int>(least)), one = _mm512_set1_epi32(1);
  __m512i sum[4];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int k = 0; k < 4; k++) {
      const __mmask16 above = _mm512_cmpge_epu32_mask(_mm512_loadu_si512(x + i + 16 * k), limit);
      sum[k] = _mm512_mask_add_epi32(sum[k], above, sum[k], one);
    }
  for (; i < n; i += 16) {
    const __mmask16 lanes = lanes_of(i, n);
    const __mmask16 above =
        _mm512_mask_cmpge_epu32_mask(lanes, _mm512_maskz_loadu_epi32(lanes, x + i), limit);
    sum[0] = _mm512_mask_add_epi32(sum[0], above, sum[0], one);
  }
  return _mm512_reduce_add_epi32(
      _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3])));
}

int64_t pack(const uint64_t* marks, int64_t n, int32_t* ids, const void** rows) {
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 stay = marked(marks, i, n);
    const int count = __builtin_popcount(stay), low = __builtin_popcount(stay & 0xff);
    const __mmask8 all = static_cast<__mmask8>(0xff);
    const __m512i id =
        _mm512_maskz_compress_epi32(stay, _mm512_maskz_loadu_epi32(lanes_of(i, n), ids + i));
    const __m512i first = _mm512_maskz_loadu_epi64(all & lanes_of(i, n), rows + i);
    const __m512i second =
        _mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes_of(i, n) >> 8), rows + i + 8);
    _mm512_mask_storeu_epi32(ids + kept, Avx512::first(count), id);
    _mm512_mask_storeu_epi64(rows + kept, static_cast<__mmask8>((1u << low) - 1),
                             _mm512_maskz_compress_epi64(static_cast<__mmask8>(stay), first));
    _mm512_mask_storeu_epi64(rows + kept + low, static_cast<__mmask8>((1u << (count - low)) - 1),
                             _mm512_maskz_compress_epi64(static_cast<__mmask8>(stay >> 8), second));
    kept += count;
  }
  return kept;
}

float pack_sum(const uint64_t* marks, int64_t n, float* x) {
  __m512 sum = _mm512_setzero_ps();
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 stay = marked(marks, i, n);
    const __m512 packed = _mm512_maskz_compress_ps(stay, _mm512_maskz_loadu_ps(stay, x + i));
    const int count = __builtin_popcount(stay);
    _mm512_mask_storeu_ps(x + kept, Avx512::first(count), packed);
    sum = sum + packed;
    kept += count;
  }
  return _mm512_reduce_add_ps(sum);
}

}  // namespace

const GatherKernels kGatherAvx512 = {gather_dot<Avx512>,
                                     softmax<Avx512>,
                                     combine<Avx512>,
                                     gather_values<Avx512>,
                                     count,
                                     pack,
                                     pack_sum};
}  // namespace riffle::cpu
