// Decode products of quantised weights for AVX2, see linear_blocks.h. Codes are widened to 16 bits,
// and vpmaddwd multiplies them by activations of 16 bits; a sum of 4 products stays below 4 * 255 *
// 2^15 < 2^31. A group's integer is converted and scaled once.
#include "kernels/cpu/linear/linear_blocks.h"
#include "kernels/cpu/simd/avx2.h"

namespace riffle::cpu {
namespace {

// Prepared activations: a Words for each 32 columns; then the scale of each group of weights; then
// its sum, times the offset of the codes if there is one. All is padded with zeros to steps. `a`
// and `b` have the columns in the order in which the codes come (in_halves).
struct alignas(32) Words {
  int16_t a[16], b[16];
};
// Columns worked on together: a block, or four of 32.
constexpr int64_t step_cols(WType type) { return has_256(type) ? 256 : 128; }
inline int64_t words_of(WType type, int64_t cols) { return round_up(cols, step_cols(type)) / 32; }
inline int64_t groups_of(WType type, int64_t cols) {
  return words_of(type, cols) * 32 / group_values(type);
}

// Whether a group's first 16 columns come apart from the last 16. In other types the even columns
// come apart from the odd ones.
constexpr bool in_halves(WType type) {
  return type == WType::Q8_0 || type == WType::Q4_0 || type == WType::Q4_1;
}

inline __m256i load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline __m256i splat(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
inline __m256i low_half(__m256i v) { return _mm256_and_si256(v, splat(15)); }
inline __m256i high_half(__m256i v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), splat(15)); }
// The low halves of 16 bytes, then their high halves.
inline __m256i both_halves(const uint8_t* p) {
  const __m256i shift = _mm256_setr_epi64x(0, 0, 4, 4);
  return low_half(_mm256_srlv_epi64(_mm256_broadcastsi128_si256(load16(p)), shift));
}

// 16 where bit j of high is set, for byte j.
inline __m256i bit4_of(uint32_t high) {
  const __m256i byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2,
                                        2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(high)), byte);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), splat(16));
}

// The 32 codes of group g of a block, bytes in the order of the columns, unsigned but for MXFP4.
// The values of IQ4's table are increased by code_offset.
template <WType T>
inline __m256i codes(const uint8_t* b, int g) {
  if constexpr (has_table(T)) {
    const int at = T == WType::IQ4_XS ? 8 + 16 * g : T == WType::MXFP4 ? 1 : 2;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table_from<T>(code_offset(T))),
                               both_halves(b + at));
  } else if constexpr (!has_256(T)) {  // Q5_0, Q5_1
    const uint8_t* high = b + (has_min(T) ? 4 : 2);
    uint32_t bits;
    memcpy(&bits, high, 4);
    return _mm256_or_si256(both_halves(high + 4), bit4_of(bits));
  } else if constexpr (T == WType::Q3_K || T == WType::Q2_K) {
    const __m256i q = load32(b + (T == WType::Q3_K ? 32 : 16) + g / 4 * 32);
    const __m256i v = _mm256_and_si256(_mm256_srli_epi16(q, g % 4 * 2), splat(3));
    if constexpr (T == WType::Q2_K) return v;
    const __m256i all = load32(b),
                  high = g < 2 ? _mm256_slli_epi16(all, 2 - g) : _mm256_srli_epi16(all, g - 2);
    return _mm256_or_si256(v, _mm256_and_si256(high, splat(4)));
  } else if constexpr (T == WType::Q6_K) {
    const int part = g / 4, quarter = g % 4;
    const __m256i low = load32(b + 64 * part + quarter % 2 * 32),
                  pairs = load32(b + 128 + 32 * part);
    const __m256i high = quarter == 0   ? _mm256_slli_epi16(pairs, 4)
                         : quarter == 1 ? _mm256_slli_epi16(pairs, 2)
                         : quarter == 2 ? pairs
                                        : _mm256_srli_epi16(pairs, 2);
    return _mm256_or_si256(quarter < 2 ? low_half(low) : high_half(low),
                           _mm256_and_si256(high, splat(0x30)));
  } else {
    static_assert(T == WType::Q5_K);
    const __m256i q = load32(b + 48 + g / 2 * 32);
    const __m256i v = g % 2 ? high_half(q) : low_half(q);
    const __m256i all = load32(b + 16),
                  high = g < 4 ? _mm256_slli_epi16(all, 4 - g) : _mm256_srli_epi16(all, g - 4);
    return _mm256_or_si256(v, _mm256_and_si256(high, splat(16)));
  }
}

// The codes of group g as 16-bit numbers, to meet Words::a and Words::b.
struct Wide {
  __m256i a, b;
};
template <WType T>
inline Wide wide(const uint8_t* b, int g) {
  const __m256i nibble = _mm256_set1_epi16(15);
  if constexpr (T == WType::Q8_0) {
    return {_mm256_cvtepi8_epi16(load16(b + 2)), _mm256_cvtepi8_epi16(load16(b + 18))};
  } else if constexpr (T == WType::Q4_0 || T == WType::Q4_1) {
    const __m256i q = _mm256_cvtepu8_epi16(load16(b + (has_min(T) ? 4 : 2)));
    return {_mm256_and_si256(q, nibble), _mm256_srli_epi16(q, 4)};
  } else if constexpr (T == WType::Q4_K) {
    const __m256i q = load32(b + 16 + g / 2 * 32);
    if (g % 2) return {_mm256_and_si256(_mm256_srli_epi16(q, 4), nibble), _mm256_srli_epi16(q, 12)};
    return {_mm256_and_si256(q, nibble), _mm256_and_si256(_mm256_srli_epi16(q, 8), nibble)};
  } else {
    const __m256i code = codes<T>(b, g);
    if constexpr (T == WType::MXFP4)
      return {_mm256_srai_epi16(_mm256_slli_epi16(code, 8), 8), _mm256_srai_epi16(code, 8)};
    return {_mm256_and_si256(code, _mm256_set1_epi16(255)), _mm256_srli_epi16(code, 8)};
  }
}

inline __m256 floats_of_bytes(__m128i v) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)); }

// Of a block with groups of 16: their scales, and what goes with the sums of the activations.
struct Sixteen {
  __m256 scale[2], taken[2];
};
template <WType T>
inline Sixteen sixteen(const uint8_t* b) {
  Sixteen of;
  if constexpr (T == WType::Q2_K) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(b));
    const __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15)),
                  high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
    const __m256 d = Avx2::set1(Avx2::f16_at(b + 80)), dmin = Avx2::set1(Avx2::f16_at(b + 82));
    of.scale[0] = d * floats_of_bytes(low),
    of.scale[1] = d * floats_of_bytes(_mm_srli_si128(low, 8));
    of.taken[0] = dmin * floats_of_bytes(high),
    of.taken[1] = dmin * floats_of_bytes(_mm_srli_si128(high, 8));
  } else {
    const __m128i bytes = T == WType::Q3_K
                              ? scales_q3_k(b + 96)
                              : _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 192));
    const __m256 d = Avx2::set1(Avx2::f16_at(b + (T == WType::Q3_K ? 108 : 208)));
    of.scale[0] = d * _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    of.scale[1] = d * _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)));
    of.taken[0] = of.scale[0], of.taken[1] = of.scale[1];
  }
  return of;
}

// N activation vectors with one row.
template <WType T, int N>
struct Row {
  static constexpr int kChains = 2;  // sums that do not wait for each other
  const uint8_t* act;
  int64_t stride, scales_at, sums_at;

  Row(const void* act, int64_t cols)
      : act(static_cast<const uint8_t*>(act)),
        stride(static_cast<int64_t>(blocks_act_bytes_avx2(T, cols))),
        scales_at(words_of(T, cols) * static_cast<int64_t>(sizeof(Words))),
        sums_at(scales_at + groups_of(T, cols) * 4) {}

  // Of the step that begins with the g-th 32 columns.
  const float* scales(int i, int64_t g) const {
    return reinterpret_cast<const float*>(act + i * stride + scales_at) + g * 32 / group_values(T);
  }
  const float* sums(int i, int64_t g) const {
    return reinterpret_cast<const float*>(act + i * stride + sums_at) + g * 32 / group_values(T);
  }

  // Scales of a step's weights times those of the activations; low += what the step's codes exceed
  // its weights by.
  inline __attribute__((always_inline)) void scale_step(const uint8_t* b, int64_t g,
                                                        float (&each)[N][16],
                                                        __m256 (&low)[N]) const {
    if constexpr (!has_256(T)) {
      constexpr int block = dtype_info(T).block_bytes;
      const auto halves = [b](int at) {
        const uint64_t first = load_u16(b + at) | static_cast<uint64_t>(load_u16(b + at + block))
                                                      << 16;
        const uint64_t second = load_u16(b + at + 2 * block) |
                                static_cast<uint64_t>(load_u16(b + at + 3 * block)) << 16;
        return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(first | second << 32)));
      };
      const __m128 scale = T == WType::MXFP4 ? scales_mxfp4(b) : halves(0),
                   taken = has_min(T) ? _mm_xor_ps(halves(2), _mm_set1_ps(-0.0f)) : scale;
      for (int i = 0; i < N; ++i) {
        _mm_store_ps(each[i], _mm_mul_ps(scale, _mm_load_ps(scales(i, g))));
        if constexpr (code_offset(T) != 0 || has_min(T))
          low[i] = _mm256_add_ps(
              low[i], _mm256_zextps128_ps256(_mm_mul_ps(taken, _mm_load_ps(sums(i, g)))));
      }
    } else if constexpr (group_values(T) == 16) {
      const Sixteen of = sixteen<T>(b);
      for (int h = 0; h < 2; ++h)
        for (int i = 0; i < N; ++i) {
          _mm256_store_ps(each[i] + 8 * h,
                          _mm256_mul_ps(of.scale[h], _mm256_load_ps(scales(i, g) + 8 * h)));
          low[i] = _mm256_fmadd_ps(of.taken[h], _mm256_load_ps(sums(i, g) + 8 * h), low[i]);
        }
    } else {
      __m256 scale, taken;
      if constexpr (T == WType::IQ4_XS) {
        taken = scale = scales_iq4_xs(b);
      } else {
        const __m128i bytes = scales_mins_k(b + 4);
        const __m128 both = _mm_cvtph_ps(
            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b)));  // d, dmin and what follows
        scale = _mm256_mul_ps(_mm256_broadcastss_ps(both), floats_of_bytes(bytes));
        taken = _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(both)),
                              floats_of_bytes(_mm_srli_si128(bytes, 8)));
      }
      for (int i = 0; i < N; ++i) {
        _mm256_store_ps(each[i], _mm256_mul_ps(scale, _mm256_load_ps(scales(i, g))));
        low[i] = _mm256_fmadd_ps(taken, _mm256_load_ps(sums(i, g)), low[i]);
      }
    }
  }

  // Blocks from b on, their first group of 32 columns being the g-th of the row.
  inline __attribute__((always_inline)) void step(const uint8_t* b, int64_t g,
                                                  __m256 (&acc)[N][kChains],
                                                  __m256 (&low)[N]) const {
    alignas(32) float each[N][16];
    scale_step(b, g, each, low);
    constexpr int block = has_256(T) ? 0 : dtype_info(T).block_bytes;
    constexpr int words = static_cast<int>(step_cols(T) / 32);
#pragma GCC unroll 8
    for (int k = 0; k < words; ++k) {
      const Wide code = wide<T>(b + k * block, k);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const Words* x = reinterpret_cast<const Words*>(act + i * stride) + g + k;
        const auto at = [](const int16_t* p) {
          return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
        };
        const __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(code.a, at(x->a)),
                                             _mm256_madd_epi16(code.b, at(x->b)));
        const __m256 d = group_values(T) == 32
                             ? _mm256_broadcast_ss(each[i] + k)
                             : _mm256_blend_ps(_mm256_broadcast_ss(each[i] + 2 * k),
                                               _mm256_broadcast_ss(each[i] + 2 * k + 1), 0xf0);
        __m256& to = acc[i][k % kChains];
        to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), d, to);
      }
    }
  }

  void row(const uint8_t* p, int64_t cols, int64_t ahead, float* y, int64_t ldy) const {
    constexpr int64_t n = step_cols(T), bytes = row_bytes(T, n);
    __m256 acc[N][kChains], low[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      low[i] = _mm256_setzero_ps();
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) acc[i][c] = _mm256_setzero_ps();
    }
    int64_t j = 0;
    for (; j + n <= cols; j += n, p += bytes) {
      for (int64_t line = 0; line < bytes; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p) + ahead + line, _MM_HINT_T0);
      step(p, j / 32, acc, low);
    }
    if (!has_256(T) && j < cols) {  // up to three blocks, and zeros
      uint8_t part[bytes] = {};
      memcpy(part, p, static_cast<size_t>(row_bytes(T, cols - j)));
      step(part, j / 32, acc, low);
    }
    for (int i = 0; i < N; ++i) {
      __m256 sum = acc[i][0];
      for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, acc[i][c]);
      y[i * ldy] = Avx2::sum(_mm256_sub_ps(sum, low[i]));
    }
  }
};

template <WType T, int N>
inline void rows(const uint8_t* w, int64_t row_bytes, int64_t cols, int64_t r0, int64_t r1,
                 const uint8_t* act, float* y, int64_t ldy) {
  const Row<T, N> one(act, cols);
  for (int64_t r = r0; r < r1; ++r)
    one.row(w + r * row_bytes, cols, fetch_ahead(row_bytes), y + r, ldy);
}

template <WType T>
void gemv(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n,
          float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(T, cols),
                stride = static_cast<int64_t>(blocks_act_bytes_avx2(T, cols));
  const int64_t fit = (int64_t{512} << 10) /
                      (row_bytes > 0 ? row_bytes : 1);  // rows to keep in L2 between activations
  const int64_t chunk = n <= 2 ? r1 - r0 : fit < 1 ? 1 : fit;
  const uint8_t *wb = static_cast<const uint8_t*>(w), *act = static_cast<const uint8_t*>(acts);
  for (int64_t rc = r0; rc < r1; rc += chunk) {
    const int64_t re = least(rc + chunk, r1);
    int64_t i = 0;
    for (; i + 2 <= n; i += 2)
      rows<T, 2>(wb, row_bytes, cols, rc, re, act + i * stride, y + i * ldy, ldy);
    if (i < n) rows<T, 1>(wb, row_bytes, cols, rc, re, act + i * stride, y + i * ldy, ldy);
  }
}

}  // namespace

size_t blocks_act_bytes_avx2(WType type, int64_t cols) {
  return static_cast<size_t>(
      round_up(words_of(type, cols) * static_cast<int64_t>(sizeof(Words)) +
                   2 * groups_of(type, cols) * static_cast<int64_t>(sizeof(float)),
               64));
}

void blocks_act_prepare_avx2(WType type, const float* x, int64_t cols, void* act) {
  Words* words = static_cast<Words*>(act);
  float *scale = reinterpret_cast<float*>(words + words_of(type, cols)),
        *sums = scale + groups_of(type, cols);
  if (cols < words_of(type, cols) * 32)
    memset(words + cols / 32, 0,
           blocks_act_bytes_avx2(type, cols) - static_cast<size_t>(cols / 32) * sizeof(Words));
  const float taken = has_min(type) ? 1.0f : static_cast<float>(code_offset(type));
  const __m256i apart = _mm256_broadcastsi128_si256(  // even columns, then odd ones
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  for (int64_t g = 0; g < cols / 32; ++g) {
    const Fixed16 f = fixed16(x + g * 32, kAllDeep);
    __m256i a = f.half[0], b = f.half[1];
    if (!in_halves(type)) {
      const __m256i p = _mm256_shuffle_epi8(a, apart), q = _mm256_shuffle_epi8(b, apart);
      a = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(p, q), 0xd8);
      b = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(p, q), 0xd8);
    }
    _mm256_store_si256(reinterpret_cast<__m256i*>(words[g].a), a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(words[g].b), b);
    if (group_values(type) == 16)
      for (int half = 0; half < 2; ++half)
        scale[2 * g + half] = f.scale,
                      sums[2 * g + half] = static_cast<float>(f.sum[half]) * f.scale * taken;
    else scale[g] = f.scale, sums[g] = static_cast<float>(f.sum[0] + f.sum[1]) * f.scale * taken;
  }
}

void blocks_gemv_avx2(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                      const void* acts, int64_t n, float* y, int64_t ldy) {
  switch (type) {
    case WType::Q8_0: return gemv<WType::Q8_0>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_0: return gemv<WType::Q4_0>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_1: return gemv<WType::Q4_1>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_0: return gemv<WType::Q5_0>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_1: return gemv<WType::Q5_1>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_K: return gemv<WType::Q4_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_K: return gemv<WType::Q5_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q6_K: return gemv<WType::Q6_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::IQ4_NL: return gemv<WType::IQ4_NL>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::IQ4_XS: return gemv<WType::IQ4_XS>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q3_K: return gemv<WType::Q3_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q2_K: return gemv<WType::Q2_K>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::MXFP4: return gemv<WType::MXFP4>(w, cols, r0, r1, acts, n, y, ldy);
    default: return;
  }
}

}  // namespace riffle::cpu
