// Score tables for AVX-512 (F, BW, VL, DQ).
#include "kernels/cpu/select/papers/score_table.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

__m512i other(const TableAt& at, __m512i i) {
  return at.by_distance ? _mm512_sub_epi32(_mm512_set1_epi32(static_cast<int32_t>(at.t)), i) : i;
}

int64_t lift(float* stored, TableAt at, const int32_t* ids, const float* w, float by, int64_t n,
             float floor, float* before, int32_t* index, float* value, double* power) {
  constexpr int kAhead = 48;  // entries are scattered over memory
  const __m512 factor = _mm512_set1_ps(by), least = _mm512_set1_ps(floor);
  __m512d sum[4];
  for (__m512d& x : sum) x = _mm512_setzero_pd();
  int64_t lifted = 0;
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = n - i < 16 ? Avx512::first(static_cast<int>(n - i)) : __mmask16(0xffff);
    for (int64_t j = i + kAhead; j < i + kAhead + 16 && j < n; j++)
      __builtin_prefetch(&stored[at(ids[j])], 1);
    const __m512i to = other(at, _mm512_maskz_loadu_epi32(lanes, ids + i));
    const __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, to, stored, 4);
    const __m512 y = x + _mm512_maskz_loadu_ps(lanes, w + i) * factor;
    _mm512_mask_storeu_ps(before + i, lanes, x);
    _mm512_mask_i32scatter_ps(stored, lanes, to, y, 4);
    const __mmask16 large = _mm512_mask_cmp_ps_mask(lanes, y, least, _CMP_GT_OQ);
    _mm512_storeu_si512(index + lifted, _mm512_maskz_compress_epi32(large, to));
    _mm512_storeu_ps(value + lifted, _mm512_maskz_compress_ps(large, y));
    lifted += __builtin_popcount(large);
    for (int half = 0; half < 2; half++) {
      const __m512d a =
          _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x));
      const __m512d b =
          _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(y, 1) : _mm512_castps512_ps256(y));
      const __m512d a2 = a * a, b2 = b * b;
      sum[0] = sum[0] + (b - a);
      sum[1] = sum[1] + (b2 - a2);
      sum[2] = sum[2] + (b2 * b - a2 * a);
      sum[3] = sum[3] + (b2 * b2 - a2 * a2);
    }
  }
  for (int k = 0; k < 4; k++) power[k] += _mm512_reduce_add_pd(sum[k]);
  return lifted;
}

void set_bits(uint64_t* bits, const int32_t* at, int n) {
  for (int i = 0; i < n; i++) bits[at[i] >> 6] |= uint64_t(1) << (at[i] & 63);
}

template <bool kTouched>
int64_t sift_run(const int32_t* index, const float* value, int64_t n, int32_t* to_index,
                 float* to_value, const Sift& s) {
  // Positions to mark are collected, and their bits set one by one afterwards: a branch on their
  // number in each vector could not be predicted.
  constexpr int kRun = 512;
  int32_t marked[kRun + 16], above[kRun + 16];
  const __m512 floor = _mm512_set1_ps(s.floor), least = _mm512_set1_ps(s.least),
               most = _mm512_set1_ps(s.most);
  int64_t kept = 0;
  for (int64_t first = 0; first < n; first += kRun) {
    const int64_t end = n - first < kRun ? n : first + kRun;
    int n_marked = 0, n_above = 0;
    for (int64_t i = first; i < end; i += 16) {
      const __mmask16 lanes =
          end - i < 16 ? Avx512::first(static_cast<int>(end - i)) : __mmask16(0xffff);
      const __m512i at = _mm512_maskz_loadu_epi32(lanes, index + i);
      const __m512 x = _mm512_maskz_loadu_ps(lanes, value + i);
      __mmask16 stays = _mm512_mask_cmp_ps_mask(lanes, x, floor, _CMP_GT_OQ);
      if constexpr (kTouched) {
        const __m512i was = other(s.touched_at, at);
        const __m512i word = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), stays,
                                                         _mm512_srli_epi32(was, 5), s.touched, 4);
        const __m512i bit =
            _mm512_sllv_epi32(_mm512_set1_epi32(1), _mm512_and_si512(was, _mm512_set1_epi32(31)));
        stays = _mm512_mask_testn_epi32_mask(stays, word, bit);
      }
      const int count = __builtin_popcount(stays);
      _mm512_mask_storeu_epi32(to_index + kept, Avx512::first(count),
                               _mm512_maskz_compress_epi32(stays, at));
      _mm512_mask_storeu_ps(to_value + kept, Avx512::first(count),
                            _mm512_maskz_compress_ps(stays, x));
      kept += count;
      const __m512i is = other(s.at, at);
      const __mmask16 high = _mm512_mask_cmp_ps_mask(stays, x, most, _CMP_GT_OQ);
      const __mmask16 some =
          _mm512_mask_cmp_ps_mask(static_cast<__mmask16>(stays & ~high), x, least, _CMP_GT_OQ);
      _mm512_storeu_si512(marked + n_marked, _mm512_maskz_compress_epi32(high, is));
      _mm512_storeu_si512(above + n_above, _mm512_maskz_compress_epi32(some, is));
      n_marked += __builtin_popcount(high);
      n_above += __builtin_popcount(some);
    }
    set_bits(s.marked, marked, n_marked);
    set_bits(s.above, above, n_above);
  }
  return kept;
}

int64_t sift(const int32_t* index, const float* value, int64_t n, int32_t* to_index,
             float* to_value, const Sift& s) {
  return s.touched ? sift_run<true>(index, value, n, to_index, to_value, s)
                   : sift_run<false>(index, value, n, to_index, to_value, s);
}

int64_t expand(const uint64_t* marked, uint64_t* above, int64_t words) {
  for (int64_t k = 0; k < words; k += 8) {
    const __mmask8 lanes =
        words - k < 8 ? static_cast<__mmask8>((1u << (words - k)) - 1) : __mmask8(0xff);
    const __m512i x = _mm512_maskz_loadu_epi64(lanes, marked + k),
                  before = _mm512_maskz_loadu_epi64(lanes, marked + k - 1),
                  after = _mm512_maskz_loadu_epi64(lanes, marked + k + 1);
    __m512i near = _mm512_or_si512(_mm512_slli_epi64(x, 1), _mm512_srli_epi64(before, 63));
    near = _mm512_or_si512(near,
                           _mm512_or_si512(_mm512_slli_epi64(x, 2), _mm512_srli_epi64(before, 62)));
    near = _mm512_or_si512(near,
                           _mm512_or_si512(_mm512_srli_epi64(x, 1), _mm512_slli_epi64(after, 63)));
    const __m512i y = _mm512_maskz_loadu_epi64(lanes, above + k);
    _mm512_mask_storeu_epi64(above + k, lanes, _mm512_or_si512(x, _mm512_and_si512(near, y)));
  }
  int64_t count = 0;
  for (int64_t k = 0; k < words; k++) count += __builtin_popcountll(above[k]);
  return count;
}

// Finds the words with bits first, since a branch on each word could not be predicted.
int64_t positions(const uint64_t* bits, int64_t words, int32_t* out) {
  constexpr int kRun = 256;
  int32_t some[kRun + 16];
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t n = 0;
  for (int64_t first = 0; first < words; first += kRun) {
    const int64_t end = words - first < kRun ? words : first + kRun;
    int count = 0;
    for (int64_t k = first; k < end; k += 8) {
      const __mmask8 lanes =
          end - k < 8 ? static_cast<__mmask8>((1u << (end - k)) - 1) : __mmask8(0xff);
      const __m512i x = _mm512_maskz_loadu_epi64(lanes, bits + k);
      const __mmask16 set = _mm512_test_epi64_mask(x, x);
      const __m512i word = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(k)), lane);
      _mm512_storeu_si512(some + count, _mm512_maskz_compress_epi32(set, word));
      count += __builtin_popcount(set);
    }
    for (int i = 0; i < count; i++) {
      const uint64_t x = bits[some[i]];
      __m512i at = _mm512_add_epi32(_mm512_set1_epi32(some[i] * 64), lane);
      for (int quarter = 0; quarter < 4; quarter++) {
        const auto mask = static_cast<__mmask16>(x >> 16 * quarter);
        _mm512_storeu_si512(out + n, _mm512_maskz_compress_epi32(mask, at));
        n += __builtin_popcount(mask);
        at = _mm512_add_epi32(at, _mm512_set1_epi32(16));
      }
    }
  }
  return n;
}

}  // namespace

const ScoreTableKernels kScoreTableAvx512 = {lift, sift, expand, positions};

}  // namespace riffle::cpu
