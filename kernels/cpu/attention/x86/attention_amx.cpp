// Prefill attention on AMX tiles (bf16 products, f32 sums). Everything else stays with the AVX-512
// kernels.
//
// One bf16 product is too coarse for attention over long contexts, so every operand is a pair hi +
// lo of bf16 values (exact for an f16 key or value, to 2^-17 for queries and weights) and every
// product becomes three: lo*hi + hi*lo + hi*hi.
//
// All data are kept transposed, with 16 query rows in the 16 columns of a tile: S^T = K Q^T, P^T =
// exp2(S^T - m), O^T += V^T P^T. Then keys need no transposing, a softmax sum runs down the rows of
// a tile instead of across a vector, P^T comes out in the pair order that the tile product needs,
// and rescaling an output is a product of whole vectors. Each row's arithmetic is the same in every
// lane, tile and call; keys come in tiles of kKeyTile by absolute position.
#include "kernels/common/agreed.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/kv_rows.h"
#include "kernels/cpu/attention/tile_choice.h"
#include "kernels/cpu/simd/x86/amx.h"
#include "kernels/cpu/simd/x86/avx512.h"

namespace riffle::cpu {
namespace {

using Vec = __m512;

constexpr int kTile = 16;   // rows of a tile, and query rows in its columns
constexpr int kGroup = 32;  // query rows treated together: two column tiles
constexpr int kKeySteps = kKeyTile / 32;
constexpr int kTileValues = 512;  // bf16 values of a tile
// The exponent's reference follows the largest score only when that score has grown by this much
// (in powers of two): weights up to 2^8 do no harm, and most rescaling of outputs is avoided.
constexpr float kSlack = 8;

// Scratch of one call. Tiles are contiguous, 1 KiB each; d is padded with zeros to a multiple
// of 32.
struct Scratch {
  int rows, d_padded,
      d_steps;  // rows: (position, head) pairs, rounded up to kGroup; d_steps = d_padded / 32
  uint16_t *k_hi, *k_lo;  // [kKeyTile/16][d_steps][16 keys][32 dims]
  uint16_t *v_hi, *v_lo;  // [d_padded/16][kKeyTile/32][16 dims][32 keys]
  uint16_t *q_hi,
      *q_lo;      // [rows/16][d_steps][16 dim pairs][16 rows][2], scaled by log2(e) / sqrt(d)
  float* o;       // [rows/16][d_padded][16 rows]
  float *m, *s;   // [rows] exponent reference, sum of weights
  int32_t* last;  // [rows] last position that the row sees, less pos0
  // Two of each: while the weights of one group are computed, the next group's scores are written
  // and the previous group's weights are used.
  float* score;           // [2][2][kKeyTile][16 rows]
  uint16_t *p_hi, *p_lo;  // [2][2][kKeyTile/32][16 key pairs][16 rows][2]
  size_t bytes;

  Scratch(int n_q, int g, int d, void* memory) {
    rows = (n_q * g + kGroup - 1) / kGroup * kGroup;
    d_padded = (d + 31) / 32 * 32;
    d_steps = d_padded / 32;
    const size_t key_tile = static_cast<size_t>(kKeyTile) * d_padded * 2,
                 queries = static_cast<size_t>(rows) * d_padded;
    char* base = static_cast<char*>(memory);
    size_t at = 0;
    const auto take = [&](size_t size) {
      char* p = base == nullptr ? nullptr : base + at;  // NULL when only the size is asked for
      at += size;
      return p;
    };
    const auto halves = [&](size_t size) { return reinterpret_cast<uint16_t*>(take(size)); };
    const auto floats = [&](size_t size) { return reinterpret_cast<float*>(take(size)); };
    k_hi = halves(key_tile), k_lo = halves(key_tile), v_hi = halves(key_tile),
    v_lo = halves(key_tile);
    score = floats(2 * kKeyTile * kGroup * sizeof(float));
    p_hi = halves(2 * kKeyTile * kGroup * 2), p_lo = halves(2 * kKeyTile * kGroup * 2);
    q_hi = halves(queries * 2), q_lo = halves(queries * 2), o = floats(queries * 4);
    m = floats(rows * sizeof(float)), s = floats(rows * sizeof(float));
    last = reinterpret_cast<int32_t*>(take(rows * sizeof(int32_t)));
    bytes = at;
  }
};

// Splits 32 values in order into bf16 pairs: hi is rounded to nearest, lo is the rounded remainder.
inline void split_row(Vec a, Vec b, __m512i* hi, __m512i* lo) {
  *hi = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const auto widen = [](__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  };
  const Vec rest_a = a - widen(_mm512_castsi512_si256(*hi)),
            rest_b = b - widen(_mm512_extracti64x4_epi64(*hi, 1));
  *lo = (__m512i)_mm512_cvtne2ps_pbh(rest_b, rest_a);
}

// Lane j: the bf16 pair (a[j], b[j]), hi and lo.
inline void split_pairs(Vec a, Vec b, __m512i* hi, __m512i* lo) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  *hi = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(b, a));
  const Vec rest_a = a - _mm512_castsi512_ps(_mm512_slli_epi32(*hi, 16));
  const Vec rest_b = b - _mm512_castsi512_ps(_mm512_and_si512(
                             *hi, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  *lo = _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(rest_b, rest_a));
}

// x[i] lane j <-> x[j] lane i.
inline void transpose(__m512i* x) {
  Vec floats[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) floats[i] = _mm512_castsi512_ps(x[i]);
  Avx512::transpose(floats);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) x[i] = _mm512_castps_si512(floats[i]);
}

inline __mmask16 lanes_below(int n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : Avx512::first(n); }

void pack_queries(const float* q, int64_t ldq, int n_q, int g, int d, const Scratch& a) {
  const Vec scale = _mm512_set1_ps(static_cast<float>(1.4426950408889634 / __builtin_sqrt(d)));
  __m512i hi[16], lo[16];
  for (int tile = 0; tile < a.rows / kTile; tile++) {
    for (int step = 0; step < a.d_steps; step++) {
      for (int r = 0; r < 16; r++) {
        const int row = tile * kTile + r, j = step * 32;
        Vec x = _mm512_setzero_ps(), y = x;
        if (row < n_q * g) {
          const float* from = q + row / g * ldq + row % g * d + j;
          x = _mm512_maskz_loadu_ps(lanes_below(d - j), from) * scale;
          y = _mm512_maskz_loadu_ps(lanes_below(d - j - 16), from + 16) * scale;
        }
        split_row(x, y, &hi[r], &lo[r]);
      }
      transpose(hi);
      transpose(lo);
      const int64_t at = static_cast<int64_t>(tile * a.d_steps + step) * kTileValues;
      for (int r = 0; r < 16; r++) {
        _mm512_store_si512(a.q_hi + at + r * 32, hi[r]);
        _mm512_store_si512(a.q_lo + at + r * 32, lo[r]);
      }
    }
  }
}

// Returns up to 16 numbers, from number j on, of a row of d numbers, as f32; j is a multiple of 16.
inline Vec load_part(const char* row, KvType type, int d, int j) {
  const __mmask16 lanes = lanes_below(d - j);
  if (type == KvType::F16)
    return _mm512_cvtph_ps(
        _mm256_maskz_loadu_epi16(lanes, reinterpret_cast<const uint16_t*>(row) + j));
  if (type == KvType::F32)
    return _mm512_maskz_loadu_ps(lanes, reinterpret_cast<const float*>(row) + j);
  if (j >= d) return _mm512_setzero_ps();
  const auto scale = static_cast<uint8_t>(row[d + j / kQ8Values]);
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, row + j))) *
         _mm512_set1_ps(q8_scale(scale));
}

// key[n], value[n]: rows of this tile; n <= kKeyTile. Tokens at and after n become zeros: their
// memory may hold NaN.
void pack_keys(const char* const* key, int n, KvType type, int d, const Scratch& a) {
  for (int t = 0; t < kKeyTile; t++) {
    for (int step = 0; step < a.d_steps; step++) {
      __m512i hi = _mm512_setzero_si512(), lo = hi;
      const int j = step * 32;
      if (t < n)
        split_row(load_part(key[t], type, d, j), load_part(key[t], type, d, j + 16), &hi, &lo);
      const int64_t at =
          static_cast<int64_t>(t / kTile * a.d_steps + step) * kTileValues + t % kTile * 32;
      _mm512_store_si512(a.k_hi + at, hi);
      _mm512_store_si512(a.k_lo + at, lo);
    }
  }
}

void pack_values(const char* const* value, int n, KvType type, int d, const Scratch& a) {
  __m512i hi[16], lo[16];
  for (int j = 0; j < a.d_padded; j += kTile) {
    for (int step = 0; step < kKeySteps; step++) {
      for (int pair = 0; pair < 16; pair++) {
        const int t = step * 32 + pair * 2;
        const Vec even = t < n ? load_part(value[t], type, d, j) : _mm512_setzero_ps();
        const Vec odd = t + 1 < n ? load_part(value[t + 1], type, d, j) : _mm512_setzero_ps();
        split_pairs(even, odd, &hi[pair], &lo[pair]);
      }
      transpose(hi);
      transpose(lo);
      const int64_t at = static_cast<int64_t>(j / kTile * kKeySteps + step) * kTileValues;
      for (int r = 0; r < 16; r++) {
        _mm512_store_si512(a.v_hi + at + r * 32, hi[r]);
        _mm512_store_si512(a.v_lo + at + r * 32, lo[r]);
      }
    }
  }
}

// C[2][2] += A[2] B[2] over 32 values; tiles 0-3 hold C (row tile, column tile). a_stride,
// b_stride: values from one row (column) tile to the other.
inline void multiply_tiles(const uint16_t* a_hi, const uint16_t* a_lo, int64_t a_stride,
                           const uint16_t* b_hi, const uint16_t* b_lo, int64_t b_stride) {
  _tile_loadd(4, a_hi, 64);
  _tile_loadd(6, b_lo, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b_lo + b_stride, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a_hi + a_stride, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_loadd(6, b_hi, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b_hi + b_stride, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_loadd(4, a_lo, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a_lo + a_stride, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Step i of kKeySteps * d_steps that make score = K Q^T for the rows at row (to row + kGroup).
inline void score_step(const Scratch& a, int row, float* score, int i) {
  const int half = i / a.d_steps, step = i % a.d_steps;
  const int64_t tile = static_cast<int64_t>(a.d_steps) * kTileValues;
  const int64_t k_at = half * 2 * tile + step * kTileValues,
                q_at = row / kTile * tile + step * kTileValues;
  if (step == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  multiply_tiles(a.k_hi + k_at, a.k_lo + k_at, tile, a.q_hi + q_at, a.q_lo + q_at, tile);
  if (step < a.d_steps - 1) return;
  float* to = score + half * 32 * kTile;
  _tile_stored(0, to, 64);
  _tile_stored(1, to + kKeyTile * kTile, 64);
  _tile_stored(2, to + kTile * kTile, 64);
  _tile_stored(3, to + (kKeyTile + kTile) * kTile, 64);
}

// Step i of d_steps * kKeySteps that add V^T P^T to the outputs of the rows at row.
inline void value_step(const Scratch& a, int row, const uint16_t* p_hi, const uint16_t* p_lo,
                       int i) {
  const int j = i / kKeySteps * 32, step = i % kKeySteps;
  const int64_t o_tile = static_cast<int64_t>(a.d_padded) * kTile,
                key_tile = kKeySteps * kTileValues;
  float *o0 = a.o + row / kTile * o_tile + j * kTile, *o1 = o0 + kTile * kTile;
  if (step == 0) {
    _tile_loadd(0, o0, 64);
    _tile_loadd(1, o0 + o_tile, 64);
    _tile_loadd(2, o1, 64);
    _tile_loadd(3, o1 + o_tile, 64);
  }
  const int64_t v_at = j / kTile * key_tile + step * kTileValues, p_at = step * kTileValues;
  multiply_tiles(a.v_hi + v_at, a.v_lo + v_at, key_tile, p_hi + p_at, p_lo + p_at, key_tile);
  if (step < kKeySteps - 1) return;
  _tile_stored(0, o0, 64);
  _tile_stored(1, o0 + o_tile, 64);
  _tile_stored(2, o1, 64);
  _tile_stored(3, o1 + o_tile, 64);
}

// 2^x: 2^floor(x) times a minimax polynomial on [0, 1), relative error 8e-8 before rounding.
inline Vec exp2_fast(Vec x) {
  const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  Vec y = _mm512_fmadd_ps(_mm512_set1_ps(0x1.e974fap-10f), f, _mm512_set1_ps(0x1.277856p-7f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.c91ce6p-5f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.ebdb56p-3f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0x1.62e4bap-1f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1));
  return _mm512_scalef_ps(y, x);
}

// Splits weights in [0, 2^9) as split_pairs does, in fewer steps: hi is cut off, lo rounded half
// up.
inline void split_weights(Vec even, Vec odd, uint16_t* hi, uint16_t* lo) {
  const __mmask32 odd_words = 0xaaaaaaaa;
  const __m512i top = _mm512_set1_epi32(static_cast<int>(0xffff0000)),
                half = _mm512_set1_epi32(0x8000);
  const __m512i even_bits = _mm512_castps_si512(even), odd_bits = _mm512_castps_si512(odd);
  const Vec even_rest = even - _mm512_castsi512_ps(_mm512_and_si512(even_bits, top));
  const Vec odd_rest = odd - _mm512_castsi512_ps(_mm512_and_si512(odd_bits, top));
  const __m512i even_lo = _mm512_add_epi32(_mm512_castps_si512(even_rest), half);
  const __m512i odd_lo = _mm512_add_epi32(_mm512_castps_si512(odd_rest), half);
  _mm512_store_si512(
      hi, _mm512_mask_blend_epi16(odd_words, _mm512_srli_epi32(even_bits, 16), odd_bits));
  _mm512_store_si512(lo,
                     _mm512_mask_blend_epi16(odd_words, _mm512_srli_epi32(even_lo, 16), odd_lo));
}

// Position of a tile of keys. first: position of key 0, less pos0. edge: key t is in the window of
// the rows whose last[] <= edge + t.
struct KeyTile {
  int first, edge;
};

// Values that turn the scores of 16 rows and one key tile into weights. A row sees keys from..to of
// the tile.
struct Softmax {
  __m512i from, to;
  Vec reference, sum_even, sum_odd;
};

template <bool kMasked>
inline __mmask16 sees(const Softmax& x, int t) {
  if (!kMasked) return 0xffff;
  const __m512i key = _mm512_set1_epi32(t);
  return _mm512_mask_cmpge_epi32_mask(_mm512_cmpge_epi32_mask(x.to, key), key, x.from);
}

// Raises the exponent reference where the scores require it, and rescales the sums made with the
// old reference.
template <bool kMasked>
inline Softmax softmax_begin(const float* score, const KeyTile& keys, const int32_t* last, float* m,
                             float* s, float* o, int d_padded) {
  Softmax x;
  x.to = _mm512_sub_epi32(_mm512_load_si512(last), _mm512_set1_epi32(keys.first));
  x.from = _mm512_sub_epi32(_mm512_load_si512(last), _mm512_set1_epi32(keys.edge));
  x.sum_even = x.sum_odd = _mm512_setzero_ps();
  Vec largest[4];
  for (int i = 0; i < 4; i++) largest[i] = _mm512_set1_ps(kNegInf);
  for (int t = 0; t < kKeyTile; t += 4)
    for (int i = 0; i < 4; i++)
      largest[i] = _mm512_mask_max_ps(largest[i], sees<kMasked>(x, t + i), largest[i],
                                      _mm512_load_ps(score + (t + i) * kTile));
  const Vec top =
      _mm512_max_ps(_mm512_max_ps(largest[0], largest[1]), _mm512_max_ps(largest[2], largest[3]));

  const Vec old = _mm512_load_ps(m);
  const __mmask16 grown = _mm512_cmp_ps_mask(top, old + _mm512_set1_ps(kSlack), _CMP_GT_OQ);
  x.reference = _mm512_mask_mov_ps(old, grown, top);
  if (grown == 0) return x;
  const Vec weight = _mm512_mask_mov_ps(_mm512_set1_ps(1), grown, exp2_fast(old - top));
  _mm512_store_ps(m, x.reference);
  _mm512_store_ps(s, _mm512_load_ps(s) * weight);
  for (int j = 0; j < d_padded; j++)
    _mm512_store_ps(o + j * kTile, _mm512_load_ps(o + j * kTile) * weight);
  return x;
}

// Weights of the keys [t, t + n).
template <bool kMasked>
inline void softmax_keys(Softmax& x, const float* score, int t, int n, uint16_t* p_hi,
                         uint16_t* p_lo) {
  for (const int end = t + n; t < end; t += 2) {
    Vec even = exp2_fast(_mm512_load_ps(score + t * kTile) - x.reference);
    Vec odd = exp2_fast(_mm512_load_ps(score + (t + 1) * kTile) - x.reference);
    if (kMasked) {
      even = _mm512_maskz_mov_ps(sees<kMasked>(x, t), even);
      odd = _mm512_maskz_mov_ps(sees<kMasked>(x, t + 1), odd);
    }
    x.sum_even = x.sum_even + even;
    x.sum_odd = x.sum_odd + odd;
    split_weights(even, odd, p_hi + t * kTile, p_lo + t * kTile);
  }
}

// Computes one group's weights while the tile unit multiplies for its neighbours: scores of the
// group at next, values of the group at previous (negative: none). The tile instructions are spread
// between slices of the softmax, near enough for the processor to run both at once.
template <bool kMasked>
inline void group_step(const Scratch& a, int row, const KeyTile& keys, int previous, int next) {
  constexpr int kSlice = 16, kSlices = 2 * kKeyTile / kSlice;
  const int parity = row / kGroup & 1;
  const float* score = a.score + parity * kKeyTile * kGroup;
  float* score_next = a.score + (1 - parity) * kKeyTile * kGroup;
  const int64_t p_at = parity * kKeyTile * kGroup, p_previous = (1 - parity) * kKeyTile * kGroup;
  const int n_scores = next >= 0 ? kKeySteps * a.d_steps : 0,
            n_values = previous >= 0 ? kKeySteps * a.d_steps : 0;
  const int n_steps = n_values + n_scores;
  int done = 0;
  Softmax x[2];
  for (int slice = 0; slice < kSlices; slice++) {
    for (const int due = n_steps * (slice + 1) / kSlices; done < due; done++) {
      if (done < n_values) value_step(a, previous, a.p_hi + p_previous, a.p_lo + p_previous, done);
      else score_step(a, next, score_next, done - n_values);
    }
    const int u = slice * kSlice / kKeyTile, t = slice * kSlice % kKeyTile, r = row + u * kTile;
    const float* score_u = score + u * kKeyTile * kTile;
    const int64_t p_u = p_at + u * kKeyTile * kTile;
    if (t == 0)
      x[u] = softmax_begin<kMasked>(score_u, keys, a.last + r, a.m + r, a.s + r,
                                    a.o + static_cast<int64_t>(r) * a.d_padded, a.d_padded);
    softmax_keys<kMasked>(x[u], score_u, t, kSlice, a.p_hi + p_u, a.p_lo + p_u);
    if (t + kSlice == kKeyTile)
      _mm512_store_ps(a.s + r, _mm512_load_ps(a.s + r) + (x[u].sum_even + x[u].sum_odd));
  }
  stores_before_tile_loads();
}

void write_outputs(const Scratch& a, int n_rows, int g, int d, float* out, int64_t ldo) {
  __m512i x[16];
  for (int r0 = 0; r0 < n_rows; r0 += kTile) {
    for (int j = 0; j < d; j += kTile) {
      for (int i = 0; i < 16; i++) {
        const Vec o =
            _mm512_load_ps(a.o + (static_cast<int64_t>(r0 / kTile) * a.d_padded + j + i) * kTile);
        // The tile unit treats subnormal sums as zero and may turn -0 into +0 in tiles that a row
        // does not see. This does the same for all rows.
        const __mmask16 normal =
            _mm512_cmp_ps_mask(_mm512_abs_ps(o), _mm512_set1_ps(0x1p-126f), _CMP_NLT_UQ);
        x[i] = _mm512_castps_si512(_mm512_maskz_div_ps(normal, o, _mm512_load_ps(a.s + r0)));
      }
      transpose(x);
      for (int r = 0; r < 16 && r0 + r < n_rows; r++) {
        float* to = out + (r0 + r) / g * ldo + (r0 + r) % g * d + j;
        _mm512_mask_storeu_ps(to, lanes_below(d - j), _mm512_castsi512_ps(x[r]));
      }
    }
  }
}

// Packing a key tile pays off over many rows, whose queries and outputs (8 * d bytes each) should
// stay in the L2 cache.
int prefill_tile(int g, int d) {
  const int rows = d <= 128 ? 512 : 256;
  return g < rows ? rows / g : 1;
}

size_t prefill_scratch_bytes(int n_q, int g, int d, int) {
  return Scratch(n_q, g, d, nullptr).bytes;
}

void attend_prefill(const float* q, int64_t ldq, int n_q, int g, int d, int64_t pos0,
                    int64_t window, const uint64_t* tiles, const void* const* blocks,
                    int block_size, KvType type, int64_t value_at, const float* sinks, float* out,
                    int64_t ldo, void* scratch) {
  const Scratch a(n_q, g, d, scratch);
  const int n_rows = n_q * g;
  begin_tiles();
  // The tile unit treats subnormals as zeros. So do these vector instructions, since a subnormal
  // would cost them a hundred cycles.
  const unsigned control = _mm_getcsr();
  _mm_setcsr(control | 0x8040);
  pack_queries(q, ldq, n_q, g, d, a);
  for (int row = 0; row < a.rows; row++) {
    a.m[row] = kNegInf, a.s[row] = 0;
    a.last[row] =
        row < n_rows
            ? row / g
            : n_q - 1;  // padding rows of the last group see the same keys as the last real row
  }
  __builtin_memset(a.o, 0, sizeof(float) * static_cast<size_t>(a.rows) * a.d_padded);

  const int64_t n_keys = pos0 + n_q, row_bytes = kv_row_bytes(type, d);
  const int64_t seen_from =
      window > 0 && pos0 >= window ? pos0 - window + 1 : 0;  // first key in any window
  for (int64_t t0 = seen_from / kKeyTile * kKeyTile; t0 < n_keys; t0 += kKeyTile) {
    if (!has_tile(tiles, t0)) continue;
    const char *key[kKeyTile], *value[kKeyTile];
    const int n = static_cast<int>(n_keys - t0 < kKeyTile ? n_keys - t0 : kKeyTile);
    for (int t = 0; t < n; t++) {
      const int64_t token = (t0 + t) % block_size;
      key[t] = static_cast<const char*>(blocks[(t0 + t) / block_size]) + token * row_bytes;
      value[t] = key[t] + value_at;
    }
    pack_keys(key, n, type, d, a);
    pack_values(value, n, type, d, a);
    int begin = 0;  // the first group with a row that sees this tile
    while (t0 > pos0 + a.last[begin + kGroup - 1]) begin += kGroup;
    // Where a window hides keys, the edge fits 32 bits. Without a window, no key is hidden.
    const int64_t edge = window > 0 ? t0 - pos0 + window - 1 : INT32_MAX / 2;
    const KeyTile keys{static_cast<int>(t0 - pos0),
                       static_cast<int>(edge < INT32_MAX / 2 ? edge : INT32_MAX / 2)};
    int end = begin + kGroup;  // end of the last such group
    while (end < a.rows && a.last[end] <= edge + kKeyTile - 1) end += kGroup;
    stores_before_tile_loads();
    const int64_t begin_p = begin / kGroup & 1, end_p = (end / kGroup - 1) & 1;
    const int n_steps = kKeySteps * a.d_steps;
    for (int i = 0; i < n_steps; i++)
      score_step(a, begin, a.score + begin_p * kKeyTile * kGroup, i);
    for (int row = begin; row < end; row += kGroup) {
      const int previous = row == begin ? -1 : row - kGroup,
                next = row + kGroup < end ? row + kGroup : -1;
      if (t0 + kKeyTile - 1 > pos0 + a.last[row] || a.last[row + kGroup - 1] > edge)
        group_step<true>(a, row, keys, previous, next);
      else group_step<false>(a, row, keys, previous, next);
    }
    const int64_t p_at = end_p * kKeyTile * kGroup;
    for (int i = 0; i < n_steps; i++) value_step(a, end - kGroup, a.p_hi + p_at, a.p_lo + p_at, i);
  }
  _tile_release();
  for (int row = 0; sinks != nullptr && row < n_rows; row++)  // scores are in units of ln 2
    a.s[row] += __builtin_exp2f(sinks[row % g] * 1.44269504f - a.m[row]);
  write_outputs(a, n_rows, g, d, out, ldo);
  _mm_setcsr(control);
}

}  // namespace

void attention_amx(AttentionKernels* k) {
  k->prefill_tile = prefill_tile;
  k->prefill_scratch_bytes = prefill_scratch_bytes;
  k->attend_prefill = attend_prefill;
}

}  // namespace riffle::cpu
