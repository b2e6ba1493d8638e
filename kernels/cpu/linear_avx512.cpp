// Linear kernels for AVX-512 (F, BW, VL, DQ, VNNI). f32 arithmetic, except the Q8_0 decode product, which is in exact
// integers:
//
// A block of 32 activations becomes 22-bit integers x = s * (65536 hi + 256 mid + lo), s a power of two, so that the
// rounding (2^-22 of the block's largest value) is no worse than that of f32 sums. vpdpbusd multiplies unsigned by
// signed bytes: mid and lo are unsigned and take the int8 weights as they are; hi is signed and takes the weights plus
// 128, which the starting value of the sum, -128 * (sum of 4 hi), undoes. The three partial sums share one register by
// shifts (at most 4*128*2^21 < 2^31), so that only one conversion and one FMA remain for 64 weights. On one core this
// reads weights from L2 about 1.3 times as fast as conversion of int8 to f32 and FMA does
// (tools/bench/linear_bench.cpp).
#include "kernels/cpu/linear_avx512.h"

namespace riffle::cpu {
namespace {

// Prepared Q8_0 activations: a Limbs for each 64 columns, then a float scale for each 32, both padded with zeros.
struct Limbs {
  int8_t hi[64];
  uint8_t mid[64], lo[64];
  int32_t start[16];  // -128 * sum of hi of the same four columns
};
constexpr int kScaleGroup = 16;  // scales are padded to whole vectors

int64_t limbs_of(int64_t cols) { return (cols + 63) / 64; }

size_t act_bytes(WType type, int64_t cols) {
  if (type != WType::Q8_0) return f32_act_bytes(cols);
  return static_cast<size_t>(limbs_of(cols)) * sizeof(Limbs) +
         static_cast<size_t>(round_up(cols / kQ8, kScaleGroup)) * sizeof(float);
}

void act_prepare(WType type, const float* x, int64_t cols, void* act) {
  if (type != WType::Q8_0) return f32_act_prepare(x, cols, act);
  Limbs* limbs = static_cast<Limbs*>(act);
  float* scale = reinterpret_cast<float*>(limbs + limbs_of(cols));
  memset(limbs + cols / 64, 0, act_bytes(type, cols) - (cols / 64) * sizeof(Limbs));
  const __m512i byte = _mm512_set1_epi32(255);
  for (int64_t j = 0; j < cols; j += kQ8) {
    const __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + 16);
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const bool finite = _mm512_fpclass_ps_mask(a, 0x99) == 0 && _mm512_fpclass_ps_mask(b, 0x99) == 0;
    // 2^e > largest / 2^21; a block below about 1e-30 is rounded to that grid.
    const __m128 exponent = _mm_getexp_ss(_mm_setzero_ps(), _mm_set_ss(largest));
    const float e = largest < 0x1p-100f ? -120.0f : _mm_cvtss_f32(exponent) - 20.0f;
    Limbs* l = limbs + j / 64;
    const int64_t at = j % 64;
    for (int half = 0; half < 2; ++half) {
      const __m512i v = _mm512_cvtps_epi32(_mm512_scalef_ps(half ? b : a, _mm512_set1_ps(-e)));
      const __m512i hi = _mm512_srai_epi32(v, 16);
      _mm_store_si128(reinterpret_cast<__m128i*>(l->hi + at + 16 * half), _mm512_cvtepi32_epi8(hi));
      _mm_store_si128(reinterpret_cast<__m128i*>(l->mid + at + 16 * half),
                      _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srli_epi32(v, 8), byte)));
      _mm_store_si128(reinterpret_cast<__m128i*>(l->lo + at + 16 * half),
                      _mm512_cvtepi32_epi8(_mm512_and_si512(v, byte)));
    }
    const __m256i hi = _mm256_load_si256(reinterpret_cast<const __m256i*>(l->hi + at));
    const __m256i sum = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(-128), hi);
    _mm256_store_si256(reinterpret_cast<__m256i*>(l->start + at / 4), _mm256_sub_epi32(_mm256_setzero_si256(), sum));
    // An infinity or NaN spoils the block's integers: let it be seen.
    scale[j / kQ8] = finite ? _mm512_cvtss_f32(_mm512_scalef_ps(V16::set1(1), V16::set1(e))) : __builtin_nanf("");
  }
}

// 64 weights: the bytes of two neighbouring Q8_0 blocks, or of one and zeros.
inline __m512i load_two(const uint8_t* block) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + kQ8Bytes + 2));
  return _mm512_mask_broadcast_i64x4(_mm512_castsi256_si512(a), 0xf0, b);
}
inline __m512i load_one(const uint8_t* block) {
  return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2)));
}

constexpr int kScaleChunk = 64;  // blocks whose scales are held at a time (2,048 columns)
static_assert(kScaleChunk % kScaleGroup == 0);

// The f16 scales of one chunk of R rows. They are copied out of the blocks one step before they are needed: the copy
// also fetches the rows ahead, and the wide load that converts them does not wait for the narrow stores.
template <int R>
struct Scales {
  alignas(64) uint16_t f16[R][kScaleChunk];
  void copy(const uint8_t* w, int64_t row_bytes, int64_t blocks) {
    for (int j = 0; j < R; ++j) {
      const uint8_t* p = w + j * row_bytes;
      for (int64_t b = 0; b < blocks; ++b) f16[j][b] = load_u16(p + b * kQ8Bytes);
      if (blocks % 2) f16[j][blocks] = 0;  // meets a zero product, must not be NaN
    }
  }
};

// R rows with N activation vectors.
template <int R, int N>
struct Q8Tile {
  const uint8_t* w;  // the matrix
  int64_t row_bytes, blocks, n_limbs;
  const uint8_t* act;
  int64_t act_stride;
  float* y;  // at activation 0, row 0
  int64_t ldy;
  int64_t ahead;  // prefetch distance

  // At least two groups of R rows, as the scales of the next one are read while this one is worked on, and at least two
  // pages, which the hardware does not cross by itself.
  Q8Tile(const void* w, int64_t cols, const void* act, float* y, int64_t ldy)
      : w(static_cast<const uint8_t*>(w)),
        row_bytes(bytes_of_row(WType::Q8_0, cols)),
        blocks(cols / kQ8),
        n_limbs(limbs_of(cols)),
        act(static_cast<const uint8_t*>(act)),
        act_stride(static_cast<int64_t>(act_bytes(WType::Q8_0, cols))),
        y(y),
        ldy(ldy) {
    const int64_t group = R * row_bytes;
    ahead = blocks > kScaleChunk ? group : group < 4096 ? 8192 : 2 * group;
  }

  void rows(int64_t r0, int64_t r1) const {
    Scales<R> scales[2];
    memset(scales, 0, sizeof scales);
    int current = 0;
    __m512 acc[R][N];
    if (r0 < r1) scales[0].copy(w + r0 * row_bytes, row_bytes, least(kScaleChunk, blocks));
    for (int64_t r = r0; r < r1; r += R)
      for (int64_t b0 = 0; b0 < blocks; b0 += kScaleChunk, current ^= 1) {
        const bool last = b0 + kScaleChunk >= blocks;
        const int64_t next_r = last ? r + R : r, next_b = last ? 0 : b0 + kScaleChunk;
        if (next_r < r1)
          scales[current ^ 1].copy(w + next_r * row_bytes + next_b * kQ8Bytes, row_bytes,
                                   least(kScaleChunk, blocks - next_b));
        if (b0 == 0)
#pragma GCC unroll 4
          for (int j = 0; j < R; ++j)
#pragma GCC unroll 4
            for (int i = 0; i < N; ++i) acc[j][i] = V16::zero();
        chunk(r, b0, least(kScaleChunk, blocks - b0), scales[current], acc);
        if (last)
          for (int j = 0; j < R; ++j)
            for (int i = 0; i < N; ++i) y[i * ldy + r + j] = V16::sum(acc[j][i]);
      }
  }

  inline __attribute__((always_inline)) void chunk(int64_t r, int64_t b0, int64_t n, const Scales<R>& scales,
                                                   __m512 (&sums)[R][N]) const {
    alignas(64) float d[R][N][kScaleChunk];  // weight scale times activation scale
    for (int i = 0; i < N; ++i) {
      const float* s = reinterpret_cast<const float*>(act + i * act_stride + n_limbs * sizeof(Limbs)) + b0;
      for (int j = 0; j < R; ++j)
        for (int64_t b = 0; b < n; b += kScaleGroup)
          _mm512_store_ps(d[j][i] + b, _mm512_mul_ps(_mm512_load_ps(s + b), V16::load_f16(scales.f16[j] + b)));
    }
    __m512 acc[R][N];
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j)
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) acc[j][i] = sums[j][i];
    const uint8_t* first = w + r * row_bytes + b0 * kQ8Bytes;
    const Limbs* limbs = reinterpret_cast<const Limbs*>(act) + b0 / 2;
    int64_t b = 0;
    for (; b + 2 <= n; b += 2, ++limbs) step<load_two>(first + b * kQ8Bytes, limbs, d, b, acc);
    if (b < n) step<load_one>(first + b * kQ8Bytes, limbs, d, b, acc);
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j)
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) sums[j][i] = acc[j][i];
  }

  template <__m512i (*load)(const uint8_t*)>
  inline __attribute__((always_inline)) void step(const uint8_t* p, const Limbs* limbs,
                                                  const float (&d)[R][N][kScaleChunk], int64_t b,
                                                  __m512 (&acc)[R][N]) const {
    const __m512i flip = _mm512_set1_epi8(-128);
    __m512i q[R];
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j) {
      _mm_prefetch(p + j * row_bytes + ahead, _MM_HINT_T0);
      q[j] = load(p + j * row_bytes);
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const Limbs* l = reinterpret_cast<const Limbs*>(reinterpret_cast<const uint8_t*>(limbs) + i * act_stride);
      const __m512i hi = _mm512_load_si512(l->hi), mid = _mm512_load_si512(l->mid), lo = _mm512_load_si512(l->lo);
      const __m512i start = _mm512_load_si512(l->start);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        const __m512 scale = _mm512_mask_broadcastss_ps(V16::set1(d[j][i][b]), 0xff00, _mm_load_ss(&d[j][i][b + 1]));
        __m512i t = _mm512_dpbusd_epi32(start, _mm512_xor_si512(q[j], flip), hi);
        t = _mm512_dpbusd_epi32(_mm512_slli_epi32(t, 8), mid, q[j]);
        t = _mm512_dpbusd_epi32(_mm512_slli_epi32(t, 8), lo, q[j]);
        acc[j][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t), scale, acc[j][i]);
      }
    }
  }
};

void gemv_q8(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n, float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(WType::Q8_0, cols);
  const int64_t stride = static_cast<int64_t>(act_bytes(WType::Q8_0, cols));
  const int64_t fit = (int64_t{512} << 10) / (row_bytes > 0 ? row_bytes : 1);  // rows to keep in L2 between activations
  const int64_t chunk = n == 1 || n == 2 || n == 4 ? r1 - r0 : fit < 4 ? 4 : fit / 4 * 4;
  for (int64_t rc = r0; rc < r1; rc += chunk) {
    const int64_t re = least(rc + chunk, r1), twos = rc + (re - rc) / 2 * 2, fours = rc + (re - rc) / 4 * 4;
    for (int64_t i = 0; i < n;) {
      const uint8_t* x = static_cast<const uint8_t*>(acts) + i * stride;
      float* out = y + i * ldy;
      if (n - i >= 4) {
        Q8Tile<2, 4>(w, cols, x, out, ldy).rows(rc, twos);
        Q8Tile<1, 4>(w, cols, x, out, ldy).rows(twos, re);
        i += 4;
      } else if (n - i >= 2) {
        Q8Tile<4, 2>(w, cols, x, out, ldy).rows(rc, fours);
        Q8Tile<1, 2>(w, cols, x, out, ldy).rows(fours, re);
        i += 2;
      } else {
        Q8Tile<4, 1>(w, cols, x, out, ldy).rows(rc, fours);
        Q8Tile<1, 1>(w, cols, x, out, ldy).rows(fours, re);
        i += 1;
      }
    }
  }
}

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n, float* y,
          int64_t ldy) {
  switch (type) {
    case WType::F32: return gemv_float<V16, WType::F32, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::F16: return gemv_float<V16, WType::F16, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::BF16: return gemv_float<V16, WType::BF16, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q8_0: return gemv_q8(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_0: return gemv_blocks<V16, WType::Q4_0>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_1: return gemv_blocks<V16, WType::Q4_1>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_0: return gemv_blocks<V16, WType::Q5_0>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_1: return gemv_blocks<V16, WType::Q5_1>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_K: return gemv_blocks<V16, WType::Q4_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_K: return gemv_blocks<V16, WType::Q5_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q6_K: return gemv_blocks<V16, WType::Q6_K>(w, cols, r0, r1, acts, n, y, ldy);
  }
}

}  // namespace

void linear_avx512(LinearKernels* t) {
  set_simd_entries<V16, 8, 2>(t);
  t->act_bytes = act_bytes;
  t->act_prepare = act_prepare;
  t->gemv = gemv;
}

}  // namespace riffle::cpu
