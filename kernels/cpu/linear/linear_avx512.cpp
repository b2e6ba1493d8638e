// Linear kernels for AVX-512 (F, BW, VL, DQ, VNNI). f32 arithmetic, except the products of
// quantised weights: in prompts integers of 8 bits (linear_int8.h), in decode exact integers (2
// to 6 bits: linear_blocks_avx512.cpp). Decode with Q8_0:
//
// A block of 32 activations becomes 22-bit integers x = s * (65536 hi + 256 mid + lo), s a power of
// two, so that the rounding (2^-22 of the block's largest value) is no worse than that of f32 sums.
// vpdpbusd multiplies unsigned by signed bytes: mid and lo are unsigned and take the int8 weights
// as they are; hi is signed and takes the weights plus 128, which the starting value of the sum,
// -128 * (sum of 4 hi), undoes. The three partial sums share one register by shifts (at most
// 4*128*2^21 < 2^31), so that only one conversion and one FMA remain for 64 weights. On one core
// this reads weights from L2 about 1.3 times as fast as conversion of int8 to f32 and FMA does
// (tools/bench/linear_bench.cpp).
#include "kernels/cpu/linear/linear_int8.h"
#include "kernels/cpu/linear/linear_limbs.h"
#include "kernels/cpu/linear/linear_simd.h"
#include "kernels/cpu/simd/avx512.h"

namespace riffle::cpu {
namespace {

size_t act_bytes(WType type, int64_t cols) {
  return is_quantised(type) ? blocks_act_bytes_avx512(type, cols) : f32_act_bytes(cols);
}
void act_prepare(WType type, const float* x, int64_t cols, void* act) {
  if (is_quantised(type)) blocks_act_prepare_avx512(type, x, cols, act);
  else f32_act_prepare(x, cols, act);
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

// The f16 scales of one chunk of R rows. They are copied out of the blocks one step before they are
// needed: the copy also fetches the rows ahead, and the wide load that converts them does not wait
// for the narrow stores.
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

  // At least two groups of R rows, as the scales of the next one are read while this one is worked
  // on, and at least two pages, which the hardware does not cross by itself.
  Q8Tile(const void* w, int64_t cols, const void* act, float* y, int64_t ldy)
      : w(static_cast<const uint8_t*>(w)),
        row_bytes(bytes_of_row(WType::Q8_0, cols)),
        blocks(cols / kQ8),
        n_limbs(limbs_of(WType::Q8_0, cols)),
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
            for (int i = 0; i < N; ++i) acc[j][i] = Avx512::set1(0);
        chunk(r, b0, least(kScaleChunk, blocks - b0), scales[current], acc);
        if (last)
          for (int j = 0; j < R; ++j)
            for (int i = 0; i < N; ++i) y[i * ldy + r + j] = Avx512::sum(acc[j][i]);
      }
  }

  inline __attribute__((always_inline)) void chunk(int64_t r, int64_t b0, int64_t n,
                                                   const Scales<R>& scales,
                                                   __m512 (&sums)[R][N]) const {
    alignas(64) float d[R][N][kScaleChunk];  // weight scale times activation scale
    for (int i = 0; i < N; ++i) {
      const float* s =
          reinterpret_cast<const float*>(act + i * act_stride + n_limbs * sizeof(Limbs)) + b0;
      for (int j = 0; j < R; ++j)
        for (int64_t b = 0; b < n; b += kScaleGroup)
          _mm512_store_ps(d[j][i] + b, _mm512_mul_ps(_mm512_load_ps(s + b),
                                                     Avx512::load_f16(scales.f16[j] + b)));
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
      const Limbs* l =
          reinterpret_cast<const Limbs*>(reinterpret_cast<const uint8_t*>(limbs) + i * act_stride);
      const __m512i hi = _mm512_load_si512(l->hi), mid = _mm512_load_si512(l->mid),
                    lo = _mm512_load_si512(l->lo);
      const __m512i start = _mm512_load_si512(l->start);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        const __m512 scale = _mm512_mask_broadcastss_ps(Avx512::set1(d[j][i][b]), 0xff00,
                                                        _mm_load_ss(&d[j][i][b + 1]));
        __m512i t = _mm512_dpbusd_epi32(start, _mm512_xor_si512(q[j], flip), hi);
        t = _mm512_dpbusd_epi32(_mm512_slli_epi32(t, 8), mid, q[j]);
        t = _mm512_dpbusd_epi32(_mm512_slli_epi32(t, 8), lo, q[j]);
        acc[j][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t), scale, acc[j][i]);
      }
    }
  }
};

void gemv_q8(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n,
             float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(WType::Q8_0, cols);
  const int64_t stride = static_cast<int64_t>(act_bytes(WType::Q8_0, cols));
  const int64_t fit = (int64_t{512} << 10) /
                      (row_bytes > 0 ? row_bytes : 1);  // rows to keep in L2 between activations
  const int64_t chunk = n == 1 || n == 2 || n == 4 ? r1 - r0 : fit < 4 ? 4 : fit / 4 * 4;
  for (int64_t rc = r0; rc < r1; rc += chunk) {
    const int64_t re = least(rc + chunk, r1), twos = rc + (re - rc) / 2 * 2,
                  fours = rc + (re - rc) / 4 * 4;
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

void gemv(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
          int64_t n, float* y, int64_t ldy) {
  switch (type) {
    case WType::F32: return gemv_float<Avx512, WType::F32, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::F16: return gemv_float<Avx512, WType::F16, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::BF16: return gemv_float<Avx512, WType::BF16, 4>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q8_0: return gemv_q8(w, cols, r0, r1, acts, n, y, ldy);
    default: return blocks_gemv_avx512(type, w, cols, r0, r1, acts, n, y, ldy);
  }
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
  // GCC 12 copies the sums around the intrinsic, twice for each product.
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
  GemmInt8<Avx512, Int512, 6, 2>::set(t);
  set_gemv(t, {act_bytes, act_prepare, gemv});
}

}  // namespace riffle::cpu
