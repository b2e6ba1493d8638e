// Decode products of quantised weights (linear_blocks_avx2.cpp, linear_blocks_avx512.cpp) in exact
// integers, and the fixed-point activations that they take.
//
// Weights of a group are scale * (code - offset) - min with a small code. A group of 32 activations
// becomes integers of 8 or 16 bits times a scale (fixed16), so that a group's product is one
// integer times a scale and, if there is an offset or a minimum, a term with the sum of the
// activations.
#pragma once
#include "kernels/cpu/linear/linear_common.h"
#include "kernels/cpu/simd/x86/avx2.h"

namespace riffle::cpu {

// Entries of LinearKernels for quantised types.
size_t blocks_act_bytes_avx2(WType type, int64_t cols);
// all_deep: all groups keep 16 bits, not only those with large values (kLarge).
void blocks_act_encode_avx2(WType type, const float* x, int64_t cols, bool all_deep, void* act);
void blocks_gemv_avx2(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                      const void* acts, int64_t n, float* y, int64_t ldy);
size_t blocks_act_bytes_avx512(WType type, int64_t cols);
void blocks_act_encode_avx512(WType type, const float* x, int64_t cols, bool all_deep, void* act);
void blocks_gemv_avx512(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                        const void* acts, int64_t n, float* y, int64_t ldy);

namespace {

// 32 activations and the largest magnitude among them.
struct Group32 : GroupTop {
  __m256 value[4];
};
inline Group32 group32(const float* x) {
  Group32 g;
  // Magnitudes are in the order of their bits, and NaN comes after infinity.
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int j = 0; j < 4; ++j) {
    g.value[j] = _mm256_loadu_ps(x + 8 * j);
    largest =
        _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(g.value[j]), magnitude));
  }
  __m128i most =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  g.top = float_of_bits(static_cast<uint32_t>(_mm_cvtsi128_si32(most)));
  return g;
}

// A group as integers within +-limit times a scale, each rounded to the nearest.
struct Rounded32 : GroupScale {
  __m256i integer[4];
};
inline Rounded32 rounded32(const Group32& g, float limit) {
  Rounded32 r;
  static_cast<GroupScale&>(r) = scale_of(g, limit);
  for (int j = 0; j < 4; ++j) {
    r.integer[j] = _mm256_cvtps_epi32(_mm256_mul_ps(g.value[j], _mm256_set1_ps(r.inverse)));
    if (g.broken()) r.integer[j] = _mm256_setzero_si256();
  }
  return r;
}

// Returns kLarge times the root mean square of k values; k is a multiple of 32. If the squares
// leave f32's range, the result is 0 or infinite, so that every group exceeds it or none does.
inline float large_of(const float* x, int64_t k) {
  __m256 sum[4] = {};
  for (int64_t j = 0; j < k; j += 32)
    for (int part = 0; part < 4; ++part) {
      const __m256 v = _mm256_loadu_ps(x + j + part * 8);
      sum[part] = _mm256_fmadd_ps(v, v, sum[part]);
    }
  return kLarge *
         __builtin_sqrtf(Avx2::sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / static_cast<float>(k));
}

// 32 activations as integers of 16 bits times a scale, rounded to 2^-15 of the largest of them. If
// the largest is not above `large`, the integers are signed bytes times 256. sum: sums of the
// integers of each half.
struct Fixed16 {
  __m256i half[2];
  float scale;
  int sum[2];
  bool deep;  // the largest is above `large`
};
inline Fixed16 fixed16(const Group32& g, bool deep) {
  Fixed16 f;
  f.deep = deep;
  const Rounded32 r = rounded32(g, f.deep ? kFixedMax : 127);
  f.scale = f.deep ? r.scale : r.scale * (1 / 256.0f);
  for (int h = 0; h < 2; ++h) {
    __m256i p = r.integer[2 * h], q = r.integer[2 * h + 1];
    if (!f.deep) p = _mm256_slli_epi32(p, 8), q = _mm256_slli_epi32(q, 8);
    f.half[h] = _mm256_permute4x64_epi64(_mm256_packs_epi32(p, q), 0xd8);
    const __m256i both = _mm256_add_epi32(p, q);
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    f.sum[h] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
  }
  return f;
}
inline Fixed16 fixed16(const float* x, float large) {
  const Group32 g = group32(x);
  return fixed16(g, g.top > large);
}

// Returns the distance, in bytes, at which a group of rows is prefetched: whole groups, at least 6
// KB, because the hardware prefetcher stops at each page.
inline int64_t fetch_ahead(int64_t group_bytes) {
  return group_bytes > 0 ? round_up(6144, group_bytes) : 0;
}

}  // namespace
}  // namespace riffle::cpu
