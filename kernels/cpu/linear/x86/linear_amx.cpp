// Prefill product on the AMX bf16 tile unit, to f32-like accuracy. (Decode and the rest stay with
// AVX-512, since tiles bring no gain there.)
//
// Both operands are split into two bf16 numbers, v = hi + lo with |v - hi - lo| <= 2^-17 |v|, and
// three products are summed in the f32 tiles: lo*hi + hi*hi + hi*lo. The omitted product, lo*lo, is
// at most 2^-16 of |a||w|; typical errors, random in sign, are ten times smaller. BF16 weights are
// their own hi and need two products. The unit flushes subnormals to zero.
//
// packed a: for each 16 rows, for each 32 columns (a step, k padded with zeros): hi tile, lo tile,
// each [16][32] bf16. panel of W: for each step: hi tiles of columns 0..15 and 16..31 of the panel,
// then the lo tiles, each [16 pairs of k][16 columns][2] bf16, the form of TDPBF16PS's second
// operand.
#include "kernels/cpu/linear/linear_f32.h"
#include "kernels/cpu/linear/x86/linear_codes.h"
#include "kernels/cpu/simd/x86/amx.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

constexpr int kTile = 16;  // rows of a tile
constexpr int kStep = 32;  // values of k in a tile
constexpr int kTileBytes = 1024;
constexpr int kPanelCols = 32;   // columns of a panel
constexpr int kChunkSteps = 16;  // steps in a panel: 64 KB, the same as for 32 rows of a
constexpr int64_t kPanelBytes = 4 * kTileBytes;  // bytes of one step
constexpr int64_t kRowsBytes = 2 * kTileBytes;   // bytes of one step of 16 rows of a

int64_t steps_of(int64_t k) { return (k + kStep - 1) / kStep; }

size_t gemm_pack_bytes(int64_t m, int64_t k) {
  return static_cast<size_t>(round_up(m, kTile) / kTile * steps_of(k) * kRowsBytes);
}
inline __m512i bits(__m512 v) { return _mm512_castps_si512(v); }
inline __m512 floats(__m512i v) { return _mm512_castsi512_ps(v); }

void gemm_pack(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
               void* packed) {
  const int64_t steps = steps_of(k);
  for (int64_t i = m0; i < round_up(m1, kTile); ++i) {
    uint8_t* dst = static_cast<uint8_t*>(packed) + i / kTile * steps * kRowsBytes + i % kTile * 64;
    for (int64_t s = 0; s < steps; ++s, dst += kRowsBytes) {
      __m512i hi = _mm512_setzero_si512(), lo = hi;
      if (i < m) {
        const int64_t left = k - s * kStep;
        const __mmask32 mask = left >= kStep ? ~0u : (1u << left) - 1;
        const float* p = a + i * lda + s * kStep;
        const __m512 v0 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
        const __m512 v1 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 16);
        hi = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(v1, v0));
        const __m512i h0 = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(hi));
        const __m512i h1 = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(hi, 1));
        const __m512 l0 = _mm512_sub_ps(v0, floats(_mm512_slli_epi32(h0, 16)));
        const __m512 l1 = _mm512_sub_ps(v1, floats(_mm512_slli_epi32(h1, 16)));
        lo = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(l1, l0));
      }
      _mm512_store_si512(dst, hi);
      _mm512_store_si512(dst + kTileBytes, lo);
    }
  }
}

// Values of two neighbouring k for 16 columns, split and interleaved into row `pair` of the hi and
// lo tiles. Rounds half away from zero by integer arithmetic, so a NaN must not have all its
// payload bits set (see canonical).
inline void put_pair(uint8_t* hi_tile, uint8_t* lo_tile, int pair, __m512 even, __m512 odd) {
  const __m512i half = _mm512_set1_epi32(0x8000),
                top = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512i e = _mm512_add_epi32(bits(even), half), o = _mm512_add_epi32(bits(odd), half);
  const __m512 le = _mm512_sub_ps(even, floats(_mm512_and_si512(e, top)));
  const __m512 lo = _mm512_sub_ps(odd, floats(_mm512_and_si512(o, top)));
  const __m512i re = _mm512_add_epi32(bits(le), half), ro = _mm512_add_epi32(bits(lo), half);
  // (o & top) | (e >> 16) in one operation: f(a,b,c) = (a & b) | c
  _mm512_store_si512(hi_tile + pair * 64,
                     _mm512_ternarylogic_epi32(o, top, _mm512_srli_epi32(e, 16), 0xea));
  _mm512_store_si512(lo_tile + pair * 64,
                     _mm512_ternarylogic_epi32(ro, top, _mm512_srli_epi32(re, 16), 0xea));
}
inline __m512 canonical(__m512 v) {
  return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                            Avx512::set1(__builtin_nanf("")));
}

// Fills the tiles of 16 columns (rows w, w + row_bytes, ... of W, the first n of which exist) for
// values k0..k0+32 of k.
template <WType T>
inline void fill_tiles(const uint8_t* w, int64_t row_bytes, int64_t n, int64_t k0, int64_t k,
                       uint8_t* hi, uint8_t* lo) {
  __m512 r[16];
  for (int part = 0; part < 2; ++part) {
    const int64_t left = least(16, k - k0 - 16 * part);
    for (int i = 0; i < 16; ++i) {
      const uint8_t* row = w + i * row_bytes;
      const int64_t at = k0 + 16 * part;
      r[i] = i >= n || left <= 0 ? Avx512::set1(0)
             : left == 16        ? canonical(weights<Avx512, T>(row, at))
                                 : canonical(weights_part<Avx512, T>(row, at, left));
    }
    Avx512::transpose(r);
    for (int i = 0; i < 8; ++i) put_pair(hi, lo, 8 * part + i, r[2 * i], r[2 * i + 1]);
  }
}

// BF16 pairs are moved unchanged.
template <>
inline void fill_tiles<WType::BF16>(const uint8_t* w, int64_t row_bytes, int64_t n, int64_t k0,
                                    int64_t k, uint8_t* hi, uint8_t*) {
  const int64_t left = k - k0;
  const __mmask32 mask = left >= kStep ? ~0u : (1u << left) - 1;
  __m512 r[16];
  for (int i = 0; i < 16; ++i)
    r[i] = i < n ? floats(_mm512_maskz_loadu_epi16(mask, w + i * row_bytes + k0 * 2))
                 : Avx512::set1(0);
  Avx512::transpose(r);
  for (int i = 0; i < 16; ++i) Avx512::store(reinterpret_cast<float*>(hi + i * 64), r[i]);
}

// Fills tiles of 32 columns of 16 rows from signed bytes (at first, first + stride, ...; the first
// n rows exist). The bytes are transposed in groups of four, then multiplied by the 16 rows'
// scales: d[0] for the first 16 columns, d[1] for the others. The scales include 2^-24, because a
// byte stays in the top byte of its lane. kMin: the minima m[0] and m[1] are then subtracted.
template <bool kMin>
inline void fill_from_bytes(const uint8_t* first, int64_t stride, int64_t n, const __m512* d,
                            const __m512* m, uint8_t* hi, uint8_t* lo) {
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xff000000u));
  for (int part = 0; part < 2; ++part) {
    __m512i r[4];  // r[j] lane l: 16 bytes of row 4l + j
    for (int j = 0; j < 4; ++j) {
      const uint8_t* p = first + 16 * part + j * stride;
      __m512i v = _mm512_setzero_si512();
      if (j < n) v = _mm512_zextsi128_si512(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
      if (j + 4 < n)
        v = _mm512_mask_broadcast_i32x4(
            v, 0x00f0, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 4 * stride)));
      if (j + 8 < n)
        v = _mm512_mask_broadcast_i32x4(
            v, 0x0f00, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * stride)));
      if (j + 12 < n)
        v = _mm512_mask_broadcast_i32x4(
            v, 0xf000, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 12 * stride)));
      r[j] = v;
    }
    const __m512i a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const __m512i c = _mm512_unpacklo_epi32(r[2], r[3]), e = _mm512_unpackhi_epi32(r[2], r[3]);
    const __m512i q[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                          _mm512_unpacklo_epi64(b, e),
                          _mm512_unpackhi_epi64(b, e)};  // q[i] lane r: values 4i..4i+3 of row r
    const auto value = [&](__m512i v) {
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(v), d[part]);
      return kMin ? _mm512_sub_ps(product, m[part]) : product;
    };
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 v0 = value(_mm512_slli_epi32(q[i], 24)),
                   v1 = value(_mm512_and_si512(_mm512_slli_epi32(q[i], 16), top));
      const __m512 v2 = value(_mm512_and_si512(_mm512_slli_epi32(q[i], 8), top)),
                   v3 = value(_mm512_and_si512(q[i], top));
      put_pair(hi, lo, 8 * part + 2 * i, v0, v1);
      put_pair(hi, lo, 8 * part + 2 * i + 1, v2, v3);
    }
  }
}

// A step of Q8_0 is one block of each of the 16 rows.
template <>
inline void fill_tiles<WType::Q8_0>(const uint8_t* w, int64_t row_bytes, int64_t n, int64_t k0,
                                    int64_t, uint8_t* hi, uint8_t* lo) {
  const uint8_t* block = w + k0 / kQ8 * kQ8Bytes;
  alignas(64) uint16_t scale[16] = {};
  for (int i = 0; i < n; ++i) scale[i] = load_u16(block + i * row_bytes);
  const __m512 one = canonical(_mm512_mul_ps(Avx512::load_f16(scale), Avx512::set1(0x1p-24f))),
               d[2] = {one, one};
  fill_from_bytes<false>(block + 2, row_bytes, n, d, nullptr, hi, lo);
}

// One block of each of 16 rows: codes less their offset, and the factors of each group of 16 or 32.
template <WType T>
struct Codes16 {
  alignas(64) uint8_t q[16][dtype_info(T).block_values];
  alignas(64) float d[groups_of_block(T)][16], m[groups_of_block(T)][16];  // d times 2^-24
};

template <WType T>
inline void take_codes(const uint8_t* b, int row, Codes16<T>* c) {
  constexpr DTypeInfo info = dtype_info(T);
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(info.offset));
  for (int run = 0; run < info.block_values / 32; ++run)
    _mm256_store_si256(reinterpret_cast<__m256i*>(c->q[row] + 32 * run),
                       _mm256_sub_epi8(codes32<T>(b, run), offset));
  float scale[kMostGroups], min[kMostGroups];
  scales_of<T>(b, scale, min);
  for (int g = 0; g < groups_of_block(T); ++g) {
    c->d[g][row] = scale[g] * 0x1p-24f;
    if constexpr (has_min(T)) c->m[g][row] = min[g];
  }
}

// Fills the tiles of one block of each of 16 rows, the first n of which exist; each step's tiles
// lie kPanelBytes after the tiles of the step before.
template <WType T>
inline void fill_block(const uint8_t* w, int64_t row_bytes, int64_t n, uint8_t* hi, uint8_t* lo) {
  Codes16<T> c;
  if (n < 16) memset(&c, 0, sizeof c);
  for (int i = 0; i < n; ++i) take_codes<T>(w + i * row_bytes, i, &c);
  for (int s = 0; s < dtype_info(T).block_values / kStep;
       ++s, hi += kPanelBytes, lo += kPanelBytes) {
    constexpr bool two = group_values(T) == 16;  // groups in a step
    const int g = two ? 2 * s : s, other = two ? g + 1 : g;
    const __m512 d[2] = {canonical(Avx512::load(c.d[g])), canonical(Avx512::load(c.d[other]))};
    __m512 m[2] = {};
    if constexpr (has_min(T))
      m[0] = canonical(Avx512::load(c.m[g])), m[1] = canonical(Avx512::load(c.m[other]));
    fill_from_bytes<has_min(T)>(c.q[0] + s * kStep, dtype_info(T).block_values, n > 0 ? 16 : 0, d,
                                m, hi, lo);
  }
}

// Places of the four (two) 16x16 sums.
struct Sums {
  float* at[4];
  int64_t stride;  // bytes
};

// Computes the sums of one tile (Two: two tiles) of 16 rows by 32 columns over some steps. Tiles 0
// to 3 hold sums, 4 and 5 hold a, 6 and 7 hold W. The order of the three products is the same
// everywhere, so an element's bits do not depend on its tile.
template <bool Two, bool WithLo>
inline void multiply(const uint8_t* a0, const uint8_t* a1, const uint8_t* panel, int64_t steps,
                     const Sums& c, bool more) {
  if (more) {
    _tile_loadd(0, c.at[0], c.stride);
    _tile_loadd(1, c.at[1], c.stride);
    if (Two) {
      _tile_loadd(2, c.at[2], c.stride);
      _tile_loadd(3, c.at[3], c.stride);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const uint8_t* b = panel + s * kPanelBytes;
    _tile_loadd(4, a0 + s * kRowsBytes + kTileBytes, 64);
    _tile_loadd(6, b, 64);
    _tile_loadd(7, b + kTileBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (Two) {
      _tile_loadd(5, a1 + s * kRowsBytes + kTileBytes, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_loadd(4, a0 + s * kRowsBytes, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (Two) {
      _tile_loadd(5, a1 + s * kRowsBytes, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (WithLo) {
      _tile_loadd(6, b + 2 * kTileBytes, 64);
      _tile_loadd(7, b + 3 * kTileBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (Two) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, c.at[0], c.stride);
  _tile_stored(1, c.at[1], c.stride);
  if (Two) {
    _tile_stored(2, c.at[2], c.stride);
    _tile_stored(3, c.at[3], c.stride);
  }
}

// Copies [rows][cols] of c to or from the start of an edge buffer of [32][32].
inline void copy_edge(float* dst, int64_t ldd, const float* src, int64_t lds, int64_t rows,
                      int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) memcpy(dst + i * ldd, src + i * lds, sizeof(float) * cols);
}

struct PanelAmx {
  // Panels are filled in groups, so that each piece of a, once cached, is used with all of them.
  static constexpr int kCols = kPanelCols, kTogether = 8;
  static constexpr int64_t kDepth = kChunkSteps * kStep;
  static constexpr bool takes(WType) { return true; }
  static int64_t bytes(int64_t k) { return least(steps_of(k), kChunkSteps) * kPanelBytes; }

  template <WType T>
  static void fill(const uint8_t* w, int64_t row_bytes, int rows, int64_t k0, int64_t k1,
                   uint8_t* panel) {
    // A Q8_0 step is one block, which needs no separate place for its codes.
    constexpr bool kBlocks = is_quantised(T) && T != WType::Q8_0;
    constexpr int64_t kEach = kBlocks ? dtype_info(T).block_values : kStep;
    static_assert(kDepth % kEach == 0);
    for (int64_t at = k0; at < k1; at += kEach)
      for (int part = 0; part < 2; ++part) {
        uint8_t* hi = panel + (at - k0) / kStep * kPanelBytes + part * kTileBytes;
        uint8_t* lo = hi + 2 * kTileBytes;
        const int64_t n = least(16, rows - 16 * part);
        const uint8_t* from = w + 16 * part * row_bytes;
        if constexpr (kBlocks)
          fill_block<T>(from + at / kEach * dtype_info(T).block_bytes, row_bytes, n, hi, lo);
        else fill_tiles<T>(from, row_bytes, n, at, k1, hi, lo);
      }
  }
};

// Tiles of 32 rows. At the edges of c the sums go through a buffer.
struct MicroAmx {
  static constexpr int kRows = 2 * kTile, kPackRows = kTile, kScratch = 4 * kTileBytes;
  static constexpr auto pack_bytes = gemm_pack_bytes;
  static constexpr auto pack = gemm_pack;

  const uint8_t* packed;
  int64_t rows_bytes;  // bytes of a tile of 16 rows
  float* edge;
  MicroAmx(const void* packed, int64_t, int64_t k, uint8_t* scratch)
      : packed(static_cast<const uint8_t*>(packed)),
        rows_bytes(steps_of(k) * kRowsBytes),
        edge(reinterpret_cast<float*>(scratch)) {
    begin_tiles();
  }
  ~MicroAmx() { _tile_release(); }
  MicroAmx(const MicroAmx&) = delete;
  MicroAmx& operator=(const MicroAmx&) = delete;

  template <WType T>
  void tile(int64_t i, int64_t k0, int64_t k1, const uint8_t* panel, float* c, int64_t ldc,
            int rows, int cols) const {
    constexpr bool kWithLo = T != WType::BF16;
    const uint8_t* a0 = packed + i / kTile * rows_bytes + k0 / kStep * kRowsBytes;
    const bool whole = cols == kPanelCols && rows % kTile == 0, more = k0 > 0;
    float* at = whole ? c : edge;
    const int64_t ld = whole ? ldc : kPanelCols;
    const Sums sums = {{at, at + 16, at + 16 * ld, at + 16 * ld + 16}, ld * 4};
    if (!whole && more) copy_edge(edge, kPanelCols, c, ldc, rows, cols);
    stores_before_tile_loads();
    if (rows > kTile)
      multiply<true, kWithLo>(a0, a0 + rows_bytes, panel, steps_of(k1 - k0), sums, more);
    else multiply<false, kWithLo>(a0, a0, panel, steps_of(k1 - k0), sums, more);
    if (!whole) copy_edge(c, ldc, edge, kPanelCols, rows, cols);
  }
};

}  // namespace

void linear_amx(LinearKernels* t) {
  Gemm<PanelAmx, MicroAmx>::set(t->gemm);
  Gemm<PanelAmx, MicroAmx>::set(t->f32_gemm);
}

}  // namespace riffle::cpu
