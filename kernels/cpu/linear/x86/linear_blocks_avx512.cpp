// Decode products of quantised weights for AVX-512 with VNNI, see linear_blocks.h. Codes are
// unpacked to unsigned bytes, which vpdpbusd multiplies by the two signed bytes of an activation of
// 16 bits, or only by the first if the second ones of a step are all 0; a sum of 8 products stays
// below 8 * 255 * 2^15 < 2^31. The offset of a type's codes is applied through the sums of the
// activations.
#include "kernels/cpu/linear/x86/linear_limbs.h"

namespace riffle::cpu {
namespace {

// Multiplies N activation vectors by one row after the other. Several rows at once would be
// parallel streams of weights, which cost Zen 4 half of its memory bandwidth.
template <WType T, int N>
struct Tile {
  using Scales = decltype(step_scales<T>(nullptr));
  using Low = typename Scales::Low;
  static constexpr int kLimbs = step_limbs(T), kFloats = step_floats(T);
  static constexpr int kBytes = static_cast<int>(riffle::row_bytes(T, step_cols(T)));
  static constexpr LaneGroups<T> kGroups = {};
  const uint8_t* w;
  int64_t row_bytes, steps, left;  // left: blocks after the last whole step
  const uint8_t* act;
  int64_t act_stride, floats_at, deep_at, ahead;
  float* y;  // at activation 0, row 0
  int64_t ldy;

  Tile(const void* w, int64_t cols, const void* act, float* y, int64_t ldy)
      : w(static_cast<const uint8_t*>(w)),
        row_bytes(bytes_of_row(T, cols)),
        steps(cols / step_cols(T)),
        left(cols % step_cols(T) / dtype_info(T).block_values),
        act(static_cast<const uint8_t*>(act)),
        act_stride(static_cast<int64_t>(blocks_act_bytes_avx512(T, cols))),
        floats_at(limbs_of(T, cols) * static_cast<int64_t>(sizeof(Limbs))),
        deep_at(floats_at + floats_of(T, cols) * static_cast<int64_t>(sizeof(float))),
        ahead(fetch_ahead(row_bytes)),
        y(y),
        ldy(ldy) {}

  void rows(int64_t r0, int64_t r1) const {
    for (int64_t r = r0; r < r1; ++r) {
      __m512 acc[N];
      Low low[N];
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) acc[i] = Avx512::set1(0), low[i] = Low{};
      const uint8_t* p = w + r * row_bytes;
      for (int64_t s = 0; s < steps; ++s, p += kBytes) step(p, s, acc, low);
      if (!has_256(T) && left > 0) {  // up to three blocks, padded with zeros
        uint8_t part[kBytes] = {};
        memcpy(part, p, static_cast<size_t>(left * dtype_info(T).block_bytes));
        step(part, steps, acc, low);
      }
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) y[i * ldy + r] = Avx512::sum(Scales::finish(acc[i], low[i]));
    }
  }

  inline __attribute__((always_inline)) void step(const uint8_t* p, int64_t s, __m512 (&acc)[N],
                                                  Low (&low)[N]) const {
    __m512i u[kLimbs];
#pragma GCC unroll 4
    for (int line = 0; line < kBytes; line += 64) _mm_prefetch(p + ahead + line, _MM_HINT_T1);
    step_codes<T>(p, u);
    const Scales scales = step_scales<T>(p);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const uint8_t* a = act + i * act_stride;
      const Limbs* limbs = reinterpret_cast<const Limbs*>(a) + s * kLimbs;
      const float* x = reinterpret_cast<const float*>(a + floats_at) + s * kFloats;
      const bool deep = a[deep_at + s];  // the same for all rows, so it is predicted
      const __m512 d = scales.times(x, &low[i]);
#pragma GCC unroll 4
      for (int k = 0; k < kLimbs; k += 2) {
        const Limbs *l = limbs + k, *m = l + 1;
        __m512i t = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[k], _mm512_load_si512(l->hi));
        t = _mm512_slli_epi32(_mm512_dpbusd_epi32(t, u[k + 1], _mm512_load_si512(m->hi)), 8);
        if constexpr (offset_is_exact(T)) t = _mm512_sub_epi32(t, _mm512_load_si512(x + 16));
        if (deep) {
          t = _mm512_dpbusd_epi32(t, u[k], _mm512_load_si512(l->lo));
          t = _mm512_dpbusd_epi32(t, u[k + 1], _mm512_load_si512(m->lo));
        }
        const __m512i groups = _mm512_load_si512(kGroups.of[k / 2]);
        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t), _mm512_permutexvar_ps(groups, d), acc[i]);
      }
    }
  }
};

template <WType T>
void encode(const float* x, int64_t cols, bool all_deep, void* act) {
  Limbs* limbs = static_cast<Limbs*>(act);
  float* floats = reinterpret_cast<float*>(limbs + limbs_of(T, cols));
  uint8_t* deep = reinterpret_cast<uint8_t*>(floats + floats_of(T, cols));
  const int64_t whole = cols / step_cols(T) * (step_cols(T) / 64);
  if (whole < limbs_of(T, cols))
    memset(limbs + whole, 0,
           blocks_act_bytes_avx512(T, cols) - static_cast<size_t>(whole) * sizeof(Limbs));
  // Groups in a step, and the factor of their sums: 1 for a minimum, else the offset of the codes.
  const int64_t groups = step_cols(T) / group_values(T);
  const float taken = has_min(T) ? 1.0f : static_cast<float>(unsigned_offset(T));
  const float large = all_deep ? kAllDeep : large_of(x, cols);
  memset(deep, 0, static_cast<size_t>(steps_of(T, cols)));
  for (int64_t g = 0; g < cols / 32; ++g) {
    const Fixed16 of = fixed16(x + 32 * g, large);
    deep[g * 32 / step_cols(T)] |= of.deep;
    for (int half = 0; half < 2; ++half) {
      const __m256i up = _mm256_add_epi16(of.half[half], _mm256_set1_epi16(128));
      const __m128i hi = _mm256_cvtepi16_epi8(_mm256_srai_epi16(up, 8)),
                    lo = _mm256_cvtepi16_epi8(of.half[half]);
      for (int eight = 0; eight < 2; ++eight) {
        const Place at = place_of(T, 4 * g + 2 * half + eight);
        Limbs* l = limbs + at.limb;
        _mm_storel_epi64(reinterpret_cast<__m128i*>(l->hi + at.at),
                         eight ? _mm_unpackhi_epi64(hi, hi) : hi);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(l->lo + at.at),
                         eight ? _mm_unpackhi_epi64(lo, lo) : lo);
      }
    }
    if (group_values(T) == 16) {
      float* f = floats + g / 8 * 32 + g % 8 * 2;
      for (int half = 0; half < 2; ++half)
        f[half] = of.scale, f[16 + half] = static_cast<float>(of.sum[half]) * of.scale * taken;
    } else {
      float* f = floats + g / groups * step_floats(T) + g % groups;
      f[0] = of.scale;
      if (offset_is_exact(T)) {
        const __m256i offset = _mm256_set1_epi16(static_cast<short>(unsigned_offset(T)));
        const __m256i pairs = _mm256_add_epi32(_mm256_madd_epi16(of.half[0], offset),
                                               _mm256_madd_epi16(of.half[1], offset));
        _mm_store_si128(
            reinterpret_cast<__m128i*>(floats + g / 4 * 32 + 16 + g % 4 * 4),
            _mm_hadd_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
      } else {
        f[groups] = static_cast<float>(of.sum[0] + of.sum[1]) * of.scale * taken;
      }
    }
  }
}

}  // namespace

size_t blocks_act_bytes_avx512(WType type, int64_t cols) {
  return static_cast<size_t>(limbs_of(type, cols)) * sizeof(Limbs) +
         static_cast<size_t>(floats_of(type, cols)) * sizeof(float) +
         static_cast<size_t>(round_up(steps_of(type, cols), 64));
}

void blocks_act_encode_avx512(WType type, const float* x, int64_t cols, bool all_deep, void* act) {
  with_codes(type, [&]<WType T>() { encode<T>(x, cols, all_deep, act); });
}

void blocks_gemv_avx512(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                        const void* acts, int64_t n, float* y, int64_t ldy) {
  with_codes(type, [&]<WType T>() {
    const int64_t stride = static_cast<int64_t>(blocks_act_bytes_avx512(T, cols));
    for_groups<4>(bytes_of_row(T, cols), r0, r1, n, [&]<int N>(int64_t i, int64_t r, int64_t end) {
      const uint8_t* x = static_cast<const uint8_t*>(acts) + i * stride;
      Tile<T, N>(w, cols, x, y + i * ldy, ldy).rows(r, end);
    });
  });
}

}  // namespace riffle::cpu
