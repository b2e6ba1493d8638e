// Decode products of quantised weights for AVX2, see linear_blocks.h. Codes are bytes, which
// vpmaddubsw multiplies by the two signed bytes of an activation of 16 bits, or only by the first
// if the second ones of a step are all 0. vpmaddwd multiplies these sums of two products by 256 or,
// in types with groups of 16, by the integer scale of the group, which leaves one conversion and
// one FMA for 32 products. A sum of 4 products stays below 4 * 128 * 2^15, times a scale of Q6_K
// below 4 * 63 * 2^15 * 128, which is less than 2^31.
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_codes.h"

namespace riffle::cpu {
namespace {

// Returns the number of columns processed together: a block of 256, or four blocks of 32.
constexpr int64_t step_cols(WType type) { return has_256(type) ? 256 : 128; }
inline int64_t steps_of(WType type, int64_t cols) {
  return round_up(cols, step_cols(type)) / step_cols(type);
}

// Types that store 32 neighbouring values in 16 bytes, without separate high bits: two such groups
// are unpacked together, into their low and their high halves. So activations lie in that order:
// the first halves of both groups, then their second halves.
constexpr bool in_pairs(WType type) {
  return dtype_info(type).codes == Codes::Halves && dtype_info(type).high_bits == 0;
}
// Codes with a sign: vpmaddubsw takes their magnitudes, and the activations get the signs.
constexpr bool has_signs(WType type) { return dtype_info(type).is_signed(); }
// Tells whether the sum of four products of a code and a signed byte fits 16 bits.
constexpr bool adds_in_16(WType type) {
  int most = has_signs(type) ? 128 : (1 << dtype_info(type).bits()) - 1;
  if (dtype_info(type).table == CodeTable::E2m1) most = 12;
  return 4 * most * 128 < 1 << 15;
}
// Tells whether the offset of the codes is applied through the sums of the activations.
constexpr bool has_sums(WType type) {
  return has_min(type) || (code_offset(type) != 0 && !has_signs(type));
}

// Types with small codes and integer scales, -32 to 31: the scales of a step's activations become
// integers too, times one float, so that a step is summed in integers. A product of two scales fits
// 16 bits. A lane of the sum has 8 * 4 products of codes up to 7 and bytes up to 128, times that:
// less than 2^30.
constexpr bool in_integers(WType type) { return fits_scale(type); }
constexpr float kMostPart = 1023;

// Encoded activations of a step, with zeros beyond the last column.
template <WType T>
struct alignas(64) Step {
  static constexpr int kCount = step_cols(T) / 32, kSums = step_cols(T) / group_values(T);
  int8_t first[kCount][32], second[kCount][32];  // values: (first * 256 + second) * scale
  // in_integers: only the first one, for all groups; the integer factors of each 32, twice.
  float scale[kCount];
  alignas(32) int16_t part[in_integers(T) ? 2 * kCount : 1];
  alignas(32) float sum[kSums];  // has_sums: of each group, times the codes' offset, if any
  int32_t deep;                  // nonzero: second bytes count
};

// A block with groups of 16: its scale; the integer scales of the first groups of each 32 columns,
// then those of the second ones; the factor of the activations' sums.
struct Sixteen {
  float d;
  __m256i scale;
  __m256 taken[2];
};
template <WType T>
inline Sixteen sixteen(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  const Bytes16 bytes = sixteen_bytes<T>(b);
  const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  Sixteen of;
  of.d = half_of(b + type.d_at);
  of.scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes.scale, apart));
  const __m256 factor = _mm256_set1_ps(has_min(T) ? half_of(b + type.dmin_at) : of.d);
  of.taken[0] = _mm256_mul_ps(factor, f32_of(bytes.min, true));
  of.taken[1] = _mm256_mul_ps(factor, f32_of(_mm_unpackhi_epi64(bytes.min, bytes.min), true));
  return of;
}

// Factors of a block with groups of 32: scales of the groups, and factors of the activations' sums.
struct Eight {
  __m256 scale, taken;
};
template <WType T>
inline Eight eight(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  if constexpr (type.scales == Scales::Split) {
    const __m256 scale = split_scales<T>(b);
    return {scale, scale};
  } else if constexpr (type.scales == Scales::Pairs) {
    static_assert(type.dmin_at == type.d_at + 2);
    const __m128i bytes = scales_mins_k(b + type.scales_at);
    const __m128 both = _mm_cvtph_ps(_mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(b + type.d_at)));  // d, dmin and the bytes after them
    return {_mm256_mul_ps(_mm256_broadcastss_ps(both), f32_of(bytes, false)),
            _mm256_mul_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(both)),
                          f32_of(_mm_unpackhi_epi64(bytes, bytes), false))};
  } else {
    static_assert(type.scales == Scales::Half);
    const __m256 scale = _mm256_set1_ps(half_of(b + type.d_at));
    return {scale, has_min(T) ? _mm256_set1_ps(-half_of(b + type.dmin_at)) : scale};
  }
}

// The same factors for four blocks of 32 values.
struct Four {
  __m128 scale, taken;
};
template <WType T>
inline Four four(const uint8_t* b) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr int n = type.block_bytes;
  if constexpr (type.scales == Scales::Exponent) {
    const auto bits = [b](int i) {
      return static_cast<int>(half_e8m0_bits(b[type.scales_at + i * n]));
    };
    const __m128 scale = _mm_castsi128_ps(_mm_setr_epi32(bits(0), bits(1), bits(2), bits(3)));
    return {scale, scale};
  } else {
    const auto halves = [b](int at) {
      __m128i all = _mm_cvtsi32_si128(load_u16(b + at));
      all = _mm_insert_epi16(all, load_u16(b + at + n), 1);
      all = _mm_insert_epi16(all, load_u16(b + at + 2 * n), 2);
      return _mm_cvtph_ps(_mm_insert_epi16(all, load_u16(b + at + 3 * n), 3));
    };
    const __m128 scale = halves(type.d_at);
    return {scale, has_min(T) ? _mm_xor_ps(halves(type.dmin_at), _mm_set1_ps(-0.0f)) : scale};
  }
}

// Multiplies N activation vectors by one row.
template <WType T, int N>
struct Row {
  static constexpr int kChains = 2;  // sums that do not wait for each other
  static constexpr bool kSixteen = group_values(T) == 16;
  using Act = Step<T>;

  // each: scales of a step's weights, or of its block, times those of the activations. low += the
  // excess of the step's codes over its weights. integer: scales of groups of 16.
  static inline __attribute__((always_inline)) void scale_step(const uint8_t* b,
                                                               const Act* const (&x)[N],
                                                               float (&each)[N][8],
                                                               __m256 (&low)[N], __m256i* integer) {
    if constexpr (!has_256(T)) {
      const Four of = four<T>(b);
      for (int i = 0; i < N; ++i) {
        _mm_store_ps(each[i], _mm_mul_ps(of.scale, _mm_load_ps(x[i]->scale)));
        if constexpr (has_sums(T))
          low[i] = _mm256_add_ps(
              low[i], _mm256_zextps128_ps256(_mm_mul_ps(of.taken, _mm_load_ps(x[i]->sum))));
      }
    } else if constexpr (kSixteen) {
      const Sixteen of = sixteen<T>(b);
      *integer = of.scale;
      for (int i = 0; i < N; ++i) {
        if constexpr (in_integers(T)) each[i][0] = of.d * 256 * x[i]->scale[0];
        else
          _mm256_store_ps(each[i],
                          _mm256_mul_ps(_mm256_set1_ps(of.d), _mm256_load_ps(x[i]->scale)));
        for (int h = 0; h < 2; ++h)
          low[i] = _mm256_fmadd_ps(of.taken[h], _mm256_load_ps(x[i]->sum + 8 * h), low[i]);
      }
    } else {
      const Eight of = eight<T>(b);
      for (int i = 0; i < N; ++i) {
        _mm256_store_ps(each[i], _mm256_mul_ps(of.scale, _mm256_load_ps(x[i]->scale)));
        if constexpr (has_sums(T))
          low[i] = _mm256_fmadd_ps(of.taken, _mm256_load_ps(x[i]->sum), low[i]);
      }
    }
  }

  // Products of 32 codes u and bytes x, summed over 2 neighbours in each lane.
  static inline __attribute__((always_inline)) __m256i products(__m256i u, __m256i codes,
                                                                const int8_t* x) {
    __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(x));
    if constexpr (has_signs(T)) bytes = _mm256_sign_epi8(bytes, codes);
    return _mm256_maddubs_epi16(u, bytes);
  }
  // The same, multiplied by `factor` and summed over 4 neighbours in each lane.
  static inline __attribute__((always_inline)) __m256i dot(__m256i u, __m256i codes,
                                                           const int8_t* x, __m256i factor) {
    return _mm256_madd_epi16(products(u, codes, x), factor);
  }
  // Does the same for the 64 codes of a pair, whose first group is in the lower lanes.
  static inline __attribute__((always_inline)) __m256i dot_pair(const __m256i (&u)[2],
                                                                const __m256i (&codes)[2],
                                                                const int8_t (&x)[2][32],
                                                                __m256i factor) {
    const __m256i low = products(u[0], codes[0], x[0]), high = products(u[1], codes[1], x[1]);
    if constexpr (adds_in_16(T)) return _mm256_madd_epi16(_mm256_add_epi16(low, high), factor);
    return _mm256_add_epi32(_mm256_madd_epi16(low, factor), _mm256_madd_epi16(high, factor));
  }

  template <bool kDeep>
  static inline __attribute__((always_inline)) void step_in_pairs(const uint8_t* b,
                                                                  const Act* const (&x)[N],
                                                                  __m256 (&acc)[N][kChains],
                                                                  __m256 (&low)[N]) {
    alignas(32) float each[N][8];
    scale_step(b, x, each, low, nullptr);
    constexpr int block = has_256(T) ? 16 : dtype_info(T).block_bytes;
    constexpr int first = dtype_info(T).codes_at;
#pragma GCC unroll 4
    for (int p = 0; p < Act::kCount / 2; ++p) {
      const uint8_t* const at = b + first + 2 * p * block;
      const auto sixteen_at = [](const uint8_t* q) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
      };
      const __m256i bytes = has_256(T)
                                ? bytes32(at)
                                : _mm256_inserti128_si256(_mm256_castsi128_si256(sixteen_at(at)),
                                                          sixteen_at(at + block), 1);
      __m256i codes[2] = {field(bytes, 0, 0, 15), field(bytes, 4, 0, 15)}, u[2];
      for (int h = 0; h < 2; ++h) {
        if constexpr (has_table(T))
          codes[h] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table_of<T>()), codes[h]);
        u[h] = has_signs(T) ? _mm256_abs_epi8(codes[h]) : codes[h];
      }
      const __m256i lanes =
          _mm256_setr_epi32(2 * p, 2 * p, 2 * p, 2 * p, 2 * p + 1, 2 * p + 1, 2 * p + 1, 2 * p + 1);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const auto pair = [p](const int8_t(&bytes)[Act::kCount][32]) -> const int8_t(&)[2][32] {
          return reinterpret_cast<const int8_t(&)[2][32]>(bytes[2 * p]);
        };
        __m256i sum = dot_pair(u, codes, pair(x[i]->first), _mm256_set1_epi16(256));
        if (kDeep)
          sum = _mm256_add_epi32(sum, dot_pair(u, codes, pair(x[i]->second), _mm256_set1_epi16(1)));
        // Four scales were stored as 16 bytes: a load of 32 would stall on store forwarding.
        const __m256 all =
            has_256(T) ? _mm256_load_ps(each[i]) : _mm256_castps128_ps256(_mm_load_ps(each[i]));
        const __m256 scales = _mm256_permutevar8x32_ps(all, lanes);
        __m256& to = acc[i][p % kChains];
        to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scales, to);
      }
    }
  }

  // Multiplies the blocks from b on by the step x of each activation vector, whose activations have
  // 16 bits (kDeep) or 8.
  template <bool kDeep>
  static inline __attribute__((always_inline)) void step(const uint8_t* b, const Act* const (&x)[N],
                                                         __m256 (&acc)[N][kChains],
                                                         __m256 (&low)[N]) {
    alignas(32) float each[N][8];
    __m256i integer = _mm256_set1_epi16(1);
    scale_step(b, x, each, low, &integer);
    constexpr int block = has_256(T) ? 0 : dtype_info(T).block_bytes;
    const __m256i integer_256 = _mm256_slli_epi16(integer, 8);
#pragma GCC unroll 8
    for (int k = 0; k < Act::kCount; ++k) {
      const __m256i codes = codes32<T>(b + k * block, has_256(T) ? k : 0);
      const __m256i u = has_signs(T) ? _mm256_abs_epi8(codes) : codes;
      // The groups of 16 of these columns have the k-th scales of both halves.
      const __m256i pick = _mm256_set1_epi16(static_cast<short>(0x0100 + 0x0202 * k));
      const __m256i one = kSixteen ? _mm256_shuffle_epi8(integer, pick) : integer,
                    of_256 = kSixteen ? _mm256_shuffle_epi8(integer_256, pick) : integer_256;
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        __m256i sum = dot(u, codes, x[i]->first[k], of_256);
        if (kDeep) sum = _mm256_add_epi32(sum, dot(u, codes, x[i]->second[k], one));
        __m256& to = acc[i][k % kChains];
        to = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(each[i][k]), to);
      }
    }
  }

  // Does the same for types whose blocks are summed in integers.
  template <bool kDeep>
  static inline __attribute__((always_inline)) void step_in_integers(const uint8_t* b,
                                                                     const Act* const (&x)[N],
                                                                     __m256 (&acc)[N][kChains],
                                                                     __m256 (&low)[N]) {
    float each[N][8];
    __m256i integer, factor[N], sum[N], rest[N];
    scale_step(b, x, each, low, &integer);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      factor[i] = _mm256_mullo_epi16(
          integer, _mm256_load_si256(reinterpret_cast<const __m256i*>(x[i]->part)));
      sum[i] = rest[i] = _mm256_setzero_si256();
    }
#pragma GCC unroll 8
    for (int k = 0; k < Act::kCount; ++k) {
      const __m256i codes = codes32<T>(b, k);
      const __m256i pick = _mm256_set1_epi16(static_cast<short>(0x0100 + 0x0202 * k));
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) {
        const __m256i of = _mm256_shuffle_epi8(factor[i], pick);
        sum[i] = _mm256_add_epi32(sum[i], dot(codes, codes, x[i]->first[k], of));
        if (kDeep) rest[i] = _mm256_add_epi32(rest[i], dot(codes, codes, x[i]->second[k], of));
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      __m256 all = _mm256_cvtepi32_ps(sum[i]);
      if (kDeep) all = _mm256_fmadd_ps(_mm256_cvtepi32_ps(rest[i]), _mm256_set1_ps(0x1p-8f), all);
      acc[i][0] = _mm256_fmadd_ps(all, _mm256_set1_ps(each[i][0]), acc[i][0]);
    }
  }

  static inline __attribute__((always_inline)) void either_step(const uint8_t* b,
                                                                const Act* const (&x)[N],
                                                                __m256 (&acc)[N][kChains],
                                                                __m256 (&low)[N]) {
    int deep = 0;  // the same for all rows, so it is predicted
    for (int i = 0; i < N; ++i) deep |= x[i]->deep;
    if constexpr (in_pairs(T)) {
      if (deep) step_in_pairs<true>(b, x, acc, low);
      else step_in_pairs<false>(b, x, acc, low);
    } else if constexpr (in_integers(T)) {
      if (deep) step_in_integers<true>(b, x, acc, low);
      else step_in_integers<false>(b, x, acc, low);
    } else {
      if (deep) step<true>(b, x, acc, low);
      else step<false>(b, x, acc, low);
    }
  }

  // `act` holds N activation vectors, each of `steps` steps.
  static void row(const uint8_t* p, int64_t cols, int64_t ahead, const Act* act, int64_t steps,
                  float* y, int64_t ldy) {
    constexpr int64_t n = step_cols(T), bytes = row_bytes(T, n);
    __m256 acc[N][kChains], low[N];
    const Act* x[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      low[i] = _mm256_setzero_ps();
      x[i] = act + i * steps;
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) acc[i][c] = _mm256_setzero_ps();
    }
    for (const uint8_t* end = p + cols / n * bytes; p != end; p += bytes) {
      for (int64_t line = 0; line < bytes; line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(p) + ahead + line, _MM_HINT_T1);
      either_step(p, x, acc, low);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) ++x[i];
    }
    if (!has_256(T) && cols % n > 0) {  // up to three blocks, padded with zeros
      uint8_t part[bytes] = {};
      memcpy(part, p, static_cast<size_t>(row_bytes(T, cols % n)));
      either_step(part, x, acc, low);
    }
    for (int i = 0; i < N; ++i) {
      __m256 sum = acc[i][0];
      for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, acc[i][c]);
      y[i * ldy] = Avx2::sum(_mm256_sub_ps(sum, low[i]));
    }
  }

  static void rows(const uint8_t* w, int64_t cols, int64_t r0, int64_t r1, const Act* act,
                   int64_t steps, float* y, int64_t ldy) {
    const int64_t bytes = bytes_of_row(T, cols), ahead = fetch_ahead(bytes);
    for (int64_t r = r0; r < r1; ++r) row(w + r * bytes, cols, ahead, act, steps, y + r, ldy);
  }
};

// Returns the unit of the scales of a step's activations: the largest scale is kMostPart units.
template <WType T>
inline float unit_of(const float* x) {
  float most = 0;
  for (int k = 0; k < Step<T>::kCount; ++k) {
    const Group32 g = group32(x + 32 * k);
    if (g.broken()) return __builtin_nanf("");
    most = most > g.top ? most : g.top;
  }
  return GroupTop{most}.tiny() ? 0 : most / kMostPart;
}

// The same as fixed16 with a scale that is a whole number of units, not below the scale of fixed16.
// So the error is at most half a unit / 127 larger.
struct InUnits {
  Fixed16 fixed;
  int16_t part;
};
inline InUnits fixed16_in_units(const float* x, float large, float unit) {
  Group32 g = group32(x);
  const bool deep = g.top > large;
  const float units = unit > 0 ? __builtin_ceilf(g.top / unit) : 0,
              part = units < kMostPart ? units : kMostPart;
  // Both kinds of groups get the scale part * unit / (127 * 256).
  g.top = part * unit * (deep ? kFixedMax / (127 * 256) : 1);
  if (!(unit >= 0)) g.top = unit;  // NaN
  return {fixed16(g, deep), static_cast<int16_t>(part)};
}

template <WType T>
void encode(const float* x, int64_t cols, bool all_deep, Step<T>* act) {
  if (cols % step_cols(T) > 0) memset(&act[cols / step_cols(T)], 0, sizeof *act);
  const float taken = has_min(T) ? 1.0f : static_cast<float>(code_offset(T));
  const float large = all_deep ? kAllDeep : large_of(x, cols);
  float unit = 0;
  for (int64_t g = 0; g < cols / 32; ++g) {
    Step<T>& to = act[g / Step<T>::kCount];
    const int64_t k = g % Step<T>::kCount;
    Fixed16 f;
    if constexpr (in_integers(T)) {
      if (k == 0) unit = unit_of<T>(x + g * 32), to.scale[0] = unit * (1 / (127 * 256.0f));
      const InUnits units = fixed16_in_units(x + g * 32, large, unit);
      f = units.fixed, to.part[k] = to.part[Step<T>::kCount + k] = units.part;
    } else {
      f = fixed16(x + g * 32, large);
    }
    to.deep = (k > 0 && to.deep) || f.deep;
    const auto packed = [](__m256i a, __m256i b) {
      return _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
    };
    const auto first = [](__m256i v) {
      return _mm256_srai_epi16(_mm256_add_epi16(v, _mm256_set1_epi16(128)), 8);
    };
    const auto second = [](__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); };
    // -128, which vpsignb cannot negate, becomes -127: an error of 2^-15 of the largest value.
    const __m256i rest = _mm256_max_epi8(packed(second(f.half[0]), second(f.half[1])),
                                         _mm256_set1_epi8(has_signs(T) ? -127 : -128));
    const auto put = [k](__m256i bytes, int8_t(&to)[Step<T>::kCount][32]) {
      const __m128i half[2] = {_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)};
      for (int h = 0; h < 2; ++h) {
        int8_t* const at = in_pairs(T) ? to[k / 2 * 2 + h] + k % 2 * 16 : to[k] + h * 16;
        _mm_store_si128(reinterpret_cast<__m128i*>(at), half[h]);
      }
    };
    put(packed(first(f.half[0]), first(f.half[1])), to.first);
    put(rest, to.second);
    if constexpr (!in_integers(T)) to.scale[k] = f.scale;
    if (!has_sums(T)) continue;
    if (group_values(T) == 16)
      for (int half = 0; half < 2; ++half)
        to.sum[2 * k + half] = static_cast<float>(f.sum[half]) * f.scale * taken;
    else to.sum[k] = static_cast<float>(f.sum[0] + f.sum[1]) * f.scale * taken;
  }
}

}  // namespace

size_t blocks_act_bytes_avx2(WType type, int64_t cols) {
  return with_codes(
      type, [&]<WType T>() { return static_cast<size_t>(steps_of(T, cols)) * sizeof(Step<T>); });
}

void blocks_act_encode_avx2(WType type, const float* x, int64_t cols, bool all_deep, void* act) {
  with_codes(type, [&]<WType T>() { encode<T>(x, cols, all_deep, static_cast<Step<T>*>(act)); });
}

void blocks_gemv_avx2(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                      const void* acts, int64_t n, float* y, int64_t ldy) {
  with_codes(type, [&]<WType T>() {
    const int64_t steps = steps_of(T, cols);
    for_groups<2>(bytes_of_row(T, cols), r0, r1, n, [&]<int N>(int64_t i, int64_t rc, int64_t re) {
      Row<T, N>::rows(static_cast<const uint8_t*>(w), cols, rc, re,
                      static_cast<const Step<T>*>(acts) + i * steps, steps, y + i * ldy, ldy);
    });
  });
}

}  // namespace riffle::cpu
