// Prefill product on the AMX bf16 tile unit, to f32-like accuracy. (Decode and the rest are
// AVX-512's: no gain from tiles.)
//
// Both operands are split into two bf16 numbers, v = hi + lo with |v - hi - lo| <= 2^-17 |v|, and
// three products are summed in the f32 tiles: lo*hi + hi*hi + hi*lo. What is left out, lo*lo, is at
// most 2^-16 of |a||w|; typical errors, random in sign, are ten times smaller. BF16 weights are
// their own hi and need two products. The unit flushes subnormals to zero.
//
// packed a: for each 16 rows, for each 32 columns (a step, k padded with zeros): hi tile, lo tile,
// each [16][32] bf16. panel of W: for each step: hi tiles of columns 0..15 and 16..31 of the panel,
// then the lo tiles, each [16 pairs of k][16 columns][2] bf16 as TDPBF16PS wants its second
// operand.
#include "kernels/cpu/linear/linear_blocks.h"
#include "kernels/cpu/linear/linear_simd.h"
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/simd/avx512.h"

namespace riffle::cpu {
namespace {

constexpr int kTile = 16;  // rows of a tile
constexpr int kStep = 32;  // values of k in a tile
constexpr int kTileBytes = 1024;
constexpr int kCols = 32;        // columns of a panel
constexpr int kChunkSteps = 16;  // steps in a panel: 64 KB, as much as of 32 rows of a
constexpr int kGroup = 8;  // panels filled together: each piece of a, once near, meets all of them
constexpr int64_t kPanelBytes = 4 * kTileBytes;  // of one step
constexpr int64_t kRowsBytes = 2 * kTileBytes;   // of one step of 16 rows of a

int64_t steps_of(int64_t k) { return (k + kStep - 1) / kStep; }

size_t gemm_pack_bytes(int64_t m, int64_t k) {
  return static_cast<size_t>(round_up(m, kTile) / kTile * steps_of(k) * kRowsBytes);
}
size_t gemm_scratch_bytes(int64_t k) {
  return static_cast<size_t>(kGroup * least(steps_of(k), kChunkSteps) * kPanelBytes +
                             4 * kTileBytes);
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

// Values of two neighbouring k for 16 columns, split and interleaved into row pair of the hi and lo
// tiles. Rounds half away from zero by integer arithmetic, so a NaN must not have all its payload
// bits set (see canonical).
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

// BF16 pairs are moved as they are.
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

// Tiles of 32 columns of 16 rows from signed bytes (at p, p + stride, ...; the first n rows exist):
// they are transposed in groups of four, then scaled by the vectors d[0] (16 columns) and d[1] of
// the 16 rows' scales, times 2^-24, as a byte is left in the top byte of its lane; m is taken away
// in the same way (kMin).
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

// A Q8_0 step is one block of 16 rows.
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

// One block of 16 rows of a type with 2 to 6 bits: codes less their offset, and what goes with each
// 16 or 32.
struct Codes {
  alignas(64) uint8_t q[16][kMaxBlockValues];
  alignas(64) float d[16][16], m[16][16];  // [group][row], d times 2^-24
};

template <WType T>
inline void take_codes(const uint8_t* b, int row, Codes* c) {
  uint8_t* q = c->q[row];
  const auto half = [b](int at) { return Avx512::f16_at(b + at); };
  if constexpr (has_table(T)) {
    constexpr int groups = dtype_info(T).block_values / 32;
    const uint8_t* from = b + dtype_info(T).block_bytes - 16 * groups;
    const auto store = [q](int at, __m128i codes) {
      const __m128i v = _mm_shuffle_epi8(table_of<T>(), _mm_and_si128(codes, _mm_set1_epi8(15)));
      _mm_store_si128(reinterpret_cast<__m128i*>(q + at), v);
    };
    for (int g = 0; g < groups; ++g) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * g));
      store(32 * g, codes), store(32 * g + 16, _mm_srli_epi16(codes, 4));
    }
    if constexpr (T == WType::IQ4_XS) {
      alignas(32) float each[8];
      _mm256_store_ps(each, scales_iq4_xs(b));
      for (int g = 0; g < 8; ++g) c->d[g][row] = each[g] * 0x1p-24f;
    } else {
      c->d[0][row] = (T == WType::MXFP4 ? float_of_bits(half_e8m0_bits(b[0])) : half(0)) * 0x1p-24f;
    }
  } else if constexpr (T == WType::Q3_K || T == WType::Q2_K) {
    constexpr bool three = T == WType::Q3_K;
    const uint8_t* from = b + (three ? 32 : 16);
    for (int g = 0; g < 8; ++g)
      for (int l = 0; l < 32; ++l) {
        const int v = from[g / 4 * 32 + l] >> g % 4 * 2 & 3;
        q[32 * g + l] = static_cast<uint8_t>(three ? (v | (b[l] >> g & 1) << 2) - 4 : v);
      }
    const float d = half(three ? 108 : 80), dmin = three ? 0 : half(82);
    for (int g = 0; g < 16; ++g) {
      const int scale = three ? scale_q3_k(b + 96, g) : b[g] & 15;
      c->d[g][row] = d * static_cast<float>(scale) * 0x1p-24f;
      if constexpr (!three) c->m[g][row] = dmin * static_cast<float>(b[g] >> 4);
    }
  } else if constexpr (!has_256(T)) {
    constexpr bool five = T == WType::Q5_0 || T == WType::Q5_1;
    constexpr uint8_t offset = code_offset(T);
    const uint8_t *high = b + (has_min(T) ? 4 : 2), *from = high + (five ? 4 : 0);
    uint32_t bits = 0;
    if (five) memcpy(&bits, high, 4);
    for (int j = 0; j < 16; ++j) {
      q[j] = static_cast<uint8_t>(((from[j] & 15) | (bits >> j & 1) << 4) - offset);
      q[j + 16] = static_cast<uint8_t>((from[j] >> 4 | (bits >> (j + 16) & 1) << 4) - offset);
    }
    c->d[0][row] = half(0) * 0x1p-24f;
    if (has_min(T)) c->m[0][row] = -half(2);
  } else if constexpr (T == WType::Q6_K) {
    for (int part = 0; part < 2; ++part)
      for (int l = 0; l < 32; ++l) {
        const uint8_t *low = b + 64 * part, pairs = b[128 + 32 * part + l];
        uint8_t* to = q + 128 * part + l;
        to[0] = static_cast<uint8_t>(((low[l] & 15) | (pairs & 3) << 4) - 32);
        to[32] = static_cast<uint8_t>(((low[l + 32] & 15) | (pairs >> 2 & 3) << 4) - 32);
        to[64] = static_cast<uint8_t>((low[l] >> 4 | (pairs >> 4 & 3) << 4) - 32);
        to[96] = static_cast<uint8_t>((low[l + 32] >> 4 | pairs >> 6 << 4) - 32);
      }
    const __m512 d = _mm512_mul_ps(Avx512::set1(half(208)), Avx512::load_i8(b + 192));
    alignas(64) float each[16];
    _mm512_store_ps(each, _mm512_mul_ps(d, Avx512::set1(0x1p-24f)));
    for (int g = 0; g < 16; ++g) c->d[g][row] = each[g];
  } else {
    const uint8_t *high = b + 16, *from = b + (T == WType::Q5_K ? 48 : 16);
    for (int pair = 0; pair < 4; ++pair)
      for (int l = 0; l < 32; ++l) {
        int low = from[32 * pair + l] & 15, up = from[32 * pair + l] >> 4;
        if (T == WType::Q5_K)
          low |= (high[l] >> 2 * pair & 1) << 4, up |= (high[l] >> (2 * pair + 1) & 1) << 4;
        q[64 * pair + l] = static_cast<uint8_t>(low),
                      q[64 * pair + 32 + l] = static_cast<uint8_t>(up);
      }
    const float d = half(0), dmin = half(2);
    for (int g = 0; g < 8; ++g) {
      uint8_t scale, min;
      scale_min_k(b + 4, g, &scale, &min);
      c->d[g][row] = d * static_cast<float>(scale) * 0x1p-24f;
      c->m[g][row] = dmin * static_cast<float>(min);
    }
  }
}

// Tiles of one block (kBlockSteps steps) of 16 rows, the first n of which exist; those of a step
// lie kPanelBytes after those of the one before.
template <WType T>
inline void fill_block(const uint8_t* w, int64_t row_bytes, int64_t n, uint8_t* hi, uint8_t* lo) {
  Codes c;
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
    fill_from_bytes<has_min(T)>(c.q[0] + s * kStep, kMaxBlockValues, n > 0 ? 16 : 0, d, m, hi, lo);
  }
}

// Where the four (two) 16x16 sums are read from and written to.
struct Sums {
  float* at[4];
  int64_t stride;  // bytes
};

// Sums of one (Two: two) tiles of 16 rows by 32 columns over some steps. Tiles 0..3 sums, 4 and 5
// of a, 6 and 7 of W. The order of the three products is the same everywhere, so an element's bits
// do not depend on its tile.
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

// [rows][cols] of c to or from the start of an edge buffer of [32][32].
inline void copy_edge(float* dst, int64_t ldd, const float* src, int64_t lds, int64_t rows,
                      int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) memcpy(dst + i * ldd, src + i * lds, sizeof(float) * cols);
}

template <WType T>
void run(const uint8_t* w, int64_t k, int64_t r0, int64_t r1, const uint8_t* packed, int64_t m,
         float* c, int64_t ldc, uint8_t* panels) {
  constexpr bool kWithLo = T != WType::BF16;
  constexpr int64_t kBlockSteps = has_256(T) ? kMaxBlockValues / kStep : 1;
  static_assert(kChunkSteps % kBlockSteps == 0);
  const int64_t row_bytes = bytes_of_row(T, k), steps = steps_of(k),
                rows_bytes = steps * kRowsBytes;
  const int64_t panel_bytes = least(steps, kChunkSteps) * kPanelBytes;
  float* edge = reinterpret_cast<float*>(panels + kGroup * panel_bytes);
  for (int64_t group = r0; group < r1; group += kGroup * kCols)
    for (int64_t s0 = 0; s0 < steps; s0 += kChunkSteps) {
      const int64_t n = least(kChunkSteps, steps - s0),
                    group_end = least(group + kGroup * kCols, r1);
      uint8_t* panel = panels;
      for (int64_t r = group; r < group_end; r += kCols, panel += panel_bytes)
        for (int64_t s = 0; s < n; s += kBlockSteps)
          for (int part = 0; part < 2; ++part) {
            uint8_t* hi = panel + s * kPanelBytes + part * kTileBytes;
            const int64_t valid = least(16, group_end - r - 16 * part), at = (s0 + s) * kStep;
            const uint8_t* rows = w + (r + 16 * part) * row_bytes;
            if constexpr (is_quantised(T) && T != WType::Q8_0)
              fill_block<T>(rows + at / dtype_info(T).block_values * dtype_info(T).block_bytes,
                            row_bytes, valid, hi, hi + 2 * kTileBytes);
            else fill_tiles<T>(rows, row_bytes, valid, at, k, hi, hi + 2 * kTileBytes);
          }
      for (int64_t i = 0; i < m; i += 2 * kTile) {
        const uint8_t* a0 = packed + i / kTile * rows_bytes + s0 * kRowsBytes;
        const int64_t rows = least(2 * kTile, m - i);
        panel = panels;
        for (int64_t r = group; r < group_end; r += kCols, panel += panel_bytes) {
          float* out = c + i * ldc + r;
          const int64_t cols = least(kCols, r1 - r);
          const bool whole = cols == kCols && rows % kTile == 0, more = s0 > 0;
          float* at = whole ? out : edge;
          const int64_t ld = whole ? ldc : kCols;
          const Sums sums = {{at, at + 16, at + 16 * ld, at + 16 * ld + 16}, ld * 4};
          if (!whole && more) copy_edge(edge, kCols, out, ldc, rows, cols);
          stores_before_tile_loads();
          if (rows > kTile) multiply<true, kWithLo>(a0, a0 + rows_bytes, panel, n, sums, more);
          else multiply<false, kWithLo>(a0, a0, panel, n, sums, more);
          if (!whole) copy_edge(out, ldc, edge, kCols, rows, cols);
        }
      }
    }
}

void gemm(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
          int64_t m, float* c, int64_t ldc, void* scratch) {
  const uint8_t *wb = static_cast<const uint8_t*>(w), *a = static_cast<const uint8_t*>(packed);
  uint8_t* panel = static_cast<uint8_t*>(scratch);
  begin_tiles();
  switch (type) {
    case WType::F32: run<WType::F32>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::F16: run<WType::F16>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::BF16: run<WType::BF16>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q8_0: run<WType::Q8_0>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q4_0: run<WType::Q4_0>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q4_1: run<WType::Q4_1>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q5_0: run<WType::Q5_0>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q5_1: run<WType::Q5_1>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q4_K: run<WType::Q4_K>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q5_K: run<WType::Q5_K>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q6_K: run<WType::Q6_K>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::IQ4_NL: run<WType::IQ4_NL>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::IQ4_XS: run<WType::IQ4_XS>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q3_K: run<WType::Q3_K>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::Q2_K: run<WType::Q2_K>(wb, k, r0, r1, a, m, c, ldc, panel); break;
    case WType::MXFP4: run<WType::MXFP4>(wb, k, r0, r1, a, m, c, ldc, panel); break;
  }
  _tile_release();
}

}  // namespace

void linear_amx(LinearKernels* t) {
  set_gemm(t, {kTile, kCols, gemm_pack_bytes, gemm_pack, gemm_scratch_bytes, gemm});
}

}  // namespace riffle::cpu
