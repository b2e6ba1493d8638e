// Decode products of quantised weights for AVX-512 with VNNI, see linear_blocks.h. Codes are
// unpacked to unsigned bytes, which vpdpbusd multiplies by the two signed bytes of an activation of
// 16 bits, or by the first alone where the second ones of a step are all 0; a sum of 8 products
// stays below 8 * 255 * 2^15 < 2^31. What the type takes off its codes goes with the sums of the
// activations.
#include "kernels/cpu/linear/linear_limbs.h"
#include "kernels/cpu/simd/avx512.h"

namespace riffle::cpu {
namespace {

inline __m512i splat(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
inline __m512i low_half(__m512i v) { return _mm512_and_si512(v, splat(15)); }
inline __m512i high_half(__m512i v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), splat(15)); }
inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// 16 bytes at each of four places.
inline __m512i load_four(const uint8_t* p, int stride) {
  __m512i v = _mm512_castsi128_si512(load16(p));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load16(p + stride));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load16(p + 2 * stride));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load16(p + 3 * stride));
}
// Bit 4 of those codes whose bit of `high` is set.
inline __m512i with_bit4(__m512i code, __mmask64 high) {
  return _mm512_mask_add_epi8(code, high, code, splat(16));
}

template <WType T>
inline __m512i from_table(__m512i codes) {
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table_from<T>(unsigned_offset(T))), codes);
}

// A form F of blocks has:
//   codes(p, u): the codes of a step, one vector for each limb
//   Header, header(p): scales and minima of a step
//   apply(h, x, low): scales times those of the activations x; what is to be taken away is added to
//   low expand(d, k): of those, the scale of each lane of the k-th pair of limbs finish(acc, low):
//   acc less low

// Types of 32 values: four blocks at a time, as vectors of their first and of their second halves.
template <WType T>
struct Small {
  static constexpr WType kType = T;
  static constexpr int kBlock = dtype_info(T).block_bytes, kBytes = 4 * kBlock;
  static constexpr bool kFive = T == WType::Q5_0 || T == WType::Q5_1;
  struct Header {
    __m128 scale, min;
  };
  using Low = __m128;

  static __m128 halves(const uint8_t* p) {
    const uint64_t low = load_u16(p) | static_cast<uint64_t>(load_u16(p + kBlock)) << 16;
    const uint64_t high = load_u16(p + 2 * kBlock) | static_cast<uint64_t>(load_u16(p + 3 * kBlock))
                                                         << 16;
    return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(low | high << 32)));
  }
  static Header header(const uint8_t* p) {
    const __m128 scale = T == WType::MXFP4 ? scales_mxfp4(p) : halves(p);
    return {scale, has_min(T) ? halves(p + 2) : scale};
  }
  static void codes(const uint8_t* p, __m512i* u) {
    constexpr int header = has_min(T) ? 4 : T == WType::MXFP4 ? 1 : 2;
    if constexpr (T == WType::Q8_0) {
      u[0] = _mm512_xor_si512(load_four(p + header, kBlock), splat(-128));
      u[1] = _mm512_xor_si512(load_four(p + header + 16, kBlock), splat(-128));
      return;
    }
    const __m512i q = load_four(p + header + (kFive ? 4 : 0), kBlock);
    u[0] = low_half(q), u[1] = high_half(q);
    if constexpr (has_table(T)) u[0] = from_table<T>(u[0]), u[1] = from_table<T>(u[1]);
    if constexpr (kFive) {
      uint32_t h[4];
      for (int i = 0; i < 4; ++i) memcpy(&h[i], p + header + i * kBlock, 4);
      const uint64_t first = (h[0] & 0xffff) | h[1] << 16, first2 = (h[2] & 0xffff) | h[3] << 16;
      const uint64_t second = h[0] >> 16 | (h[1] & 0xffff0000),
                     second2 = h[2] >> 16 | (h[3] & 0xffff0000);
      u[0] = with_bit4(u[0], _cvtu64_mask64(first | first2 << 32));
      u[1] = with_bit4(u[1], _cvtu64_mask64(second | second2 << 32));
    }
  }
  static __m512 apply(const Header& h, const float* x, Low* low) {
    if constexpr (T != WType::MXFP4)
      *low = has_min(T) ? _mm_fnmadd_ps(h.min, _mm_load_ps(x + 4), *low)
                        : _mm_fmadd_ps(h.min, _mm_load_ps(x + 4), *low);
    return _mm512_castps128_ps512(_mm_mul_ps(h.scale, _mm_load_ps(x)));
  }
  static __m512 expand(__m512 d, int) {
    return _mm512_permutexvar_ps(_mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0),
                                 d);
  }
  static __m512 finish(__m512 acc, Low low) {
    return _mm512_sub_ps(acc, _mm512_zextps128_ps512(low));
  }
};

// Q4_K and Q5_K: the first halves of groups 0, 2, 4, 6, their second halves, then those of groups
// 1, 3, 5, 7.
template <WType T>
struct Large {
  static constexpr WType kType = T;
  static constexpr int kBytes = dtype_info(T).block_bytes;
  using Header = __m512;  // eight scales, eight minima
  using Low = __m512;     // in the upper eight lanes

  static Header header(const uint8_t* p) {
    const __m512i lane = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m128 d = _mm_cvtph_ps(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));  // d, dmin and what follows
    return _mm512_mul_ps(_mm512_permutexvar_ps(lane, _mm512_castps128_ps512(d)),
                         _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scales_mins_k(p + 4))));
  }
  static void codes(const uint8_t* p, __m512i* u) {
    const uint8_t* q = p + (T == WType::Q5_K ? 48 : 16);
    const __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 64);
    const __m512i first = _mm512_shuffle_i32x4(a, b, 0x88),
                  second = _mm512_shuffle_i32x4(a, b, 0xdd);
    u[0] = low_half(first), u[1] = low_half(second), u[2] = high_half(first),
    u[3] = high_half(second);
    if constexpr (T == WType::Q5_K) {
      const __m512i h0 = _mm512_broadcast_i32x4(load16(p + 16)),
                    h1 = _mm512_broadcast_i32x4(load16(p + 32));
      const __m512i even =
          _mm512_set_epi32(0x40404040, 0x40404040, 0x40404040, 0x40404040, 0x10101010, 0x10101010,
                           0x10101010, 0x10101010, 0x04040404, 0x04040404, 0x04040404, 0x04040404,
                           0x01010101, 0x01010101, 0x01010101, 0x01010101);
      const __m512i odd = _mm512_add_epi8(even, even);
      u[0] = with_bit4(u[0], _mm512_test_epi8_mask(h0, even)),
      u[1] = with_bit4(u[1], _mm512_test_epi8_mask(h1, even));
      u[2] = with_bit4(u[2], _mm512_test_epi8_mask(h0, odd)),
      u[3] = with_bit4(u[3], _mm512_test_epi8_mask(h1, odd));
    }
  }
  static __m512 apply(Header h, const float* x, Low* low) {
    const __m512 d = _mm512_mul_ps(h, _mm512_load_ps(x));
    *low = _mm512_add_ps(*low, d);
    return d;
  }
  static __m512 expand(__m512 d, int k) {
    const __m512i lane = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(k)), d);
  }
  static __m512 finish(__m512 acc, Low low) { return _mm512_mask_sub_ps(acc, 0xff00, acc, low); }
};

// Q6_K: of each 16 bytes of low halves of the two parts of a block the first eight, then the last
// eight: a pair of limbs for the groups 0 to 3 and 8 to 11, another for 4 to 7 and 12 to 15.
struct Six {
  static constexpr WType kType = WType::Q6_K;
  static constexpr int kBytes = dtype_info(kType).block_bytes;
  using Header = __m512;
  using Low = __m512;

  static Header header(const uint8_t* p) {
    return _mm512_mul_ps(_mm512_set1_ps(Avx512::f16_at(p + 208)), Avx512::load_i8(p + 192));
  }
  static void codes(const uint8_t* p, __m512i* u) {
    const __m512i pair = splat(0x30), shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    const __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + 64);
    const __m512i ha =
        _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 128)));
    const __m512i hb =
        _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 160)));
    for (int eight = 0; eight < 2; ++eight) {
      const __m512i low = eight ? _mm512_unpackhi_epi64(a, b) : _mm512_unpacklo_epi64(a, b);
      // Quarters 0 and 1 have their pairs at bits 0 and 2, quarters 2 and 3 at bits 4 and 6; all go
      // to bit 4.
      const __m512i high = _mm512_srlv_epi64(
          eight ? _mm512_unpackhi_epi64(ha, hb) : _mm512_unpacklo_epi64(ha, hb), shift);
      u[eight] = _mm512_ternarylogic_epi32(_mm512_slli_epi64(high, 4), pair, low_half(low),
                                           0xea);  // (a & b) | c
      u[2 + eight] = _mm512_ternarylogic_epi32(high, pair, high_half(low), 0xea);
    }
  }
  static __m512 apply(Header h, const float* x, Low* low) {
    *low = _mm512_fmadd_ps(h, _mm512_load_ps(x + 16), *low);
    return _mm512_mul_ps(h, _mm512_load_ps(x));
  }
  static __m512 expand(__m512 d, int k) {
    const __m512i lane = _mm512_set_epi32(11, 11, 3, 3, 10, 10, 2, 2, 9, 9, 1, 1, 8, 8, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * k)), d);
  }
  static __m512 finish(__m512 acc, Low low) { return _mm512_sub_ps(acc, low); }
};

// IQ4_XS: the first halves of groups 0 to 3, their second halves, then those of groups 4 to 7.
struct Indices {
  static constexpr WType kType = WType::IQ4_XS;
  static constexpr int kBytes = dtype_info(kType).block_bytes;
  using Header = __m256;
  using Low = __m256;

  static Header header(const uint8_t* p) { return scales_iq4_xs(p); }
  static void codes(const uint8_t* p, __m512i* u) {
    for (int part = 0; part < 2; ++part) {
      const __m512i q = _mm512_loadu_si512(p + 8 + 64 * part);
      u[2 * part] = from_table<kType>(low_half(q));
      u[2 * part + 1] = from_table<kType>(high_half(q));
    }
  }
  static __m512 apply(Header h, const float* x, Low* low) {
    *low = _mm256_fmadd_ps(h, _mm256_load_ps(x + 8), *low);
    return _mm512_castps256_ps512(_mm256_mul_ps(h, _mm256_load_ps(x)));
  }
  static __m512 expand(__m512 d, int k) {
    const __m512i lane = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * k)), d);
  }
  static __m512 finish(__m512 acc, Low low) {
    return _mm512_sub_ps(acc, _mm512_zextps256_ps512(low));
  }
};

// Q3_K and Q2_K: the first, then the last eight of each 16 values of the groups of 32 0, 1, 4, 5,
// then of 2, 3, 6, 7.
template <WType T>
struct Pairs {
  static constexpr WType kType = T;
  static constexpr int kBytes = dtype_info(T).block_bytes;
  struct Header {
    __m512 scale, taken;
  };
  using Low = __m512;

  static Header header(const uint8_t* p) {
    if constexpr (T == WType::Q2_K) {
      const __m512i bytes = _mm512_cvtepu8_epi32(load16(p));
      const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
      return {_mm512_mul_ps(_mm512_set1_ps(Avx512::f16_at(p + 80)), _mm512_cvtepi32_ps(low)),
              _mm512_mul_ps(_mm512_set1_ps(Avx512::f16_at(p + 82)),
                            _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4)))};
    } else {
      const __m512 scale =
          _mm512_mul_ps(_mm512_set1_ps(Avx512::f16_at(p + 108)),
                        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales_q3_k(p + 96))));
      return {scale, scale};
    }
  }
  static void codes(const uint8_t* p, __m512i* u) {
    const __m512i q = _mm512_loadu_si512(p + (T == WType::Q3_K ? 32 : 16));
    const __m512i eights[2] = {_mm512_unpacklo_epi64(q, q), _mm512_unpackhi_epi64(q, q)};
    const __m512i shift = _mm512_set_epi64(2, 0, 2, 0, 2, 0, 2, 0);
    for (int eight = 0; eight < 2; ++eight) {
      const __m512i v = _mm512_srlv_epi64(eights[eight], shift);
      u[eight] = _mm512_and_si512(v, splat(3));
      u[2 + eight] = _mm512_and_si512(_mm512_srli_epi64(v, 4), splat(3));
    }
    if constexpr (T == WType::Q3_K) {
      const __m512i h =
          _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
      // Bit g of a byte belongs to group g of 32: for the first pair bits 0, 1 and then 4, 5.
      constexpr int64_t ones = 0x0101010101010101;
      const __m512i first = _mm512_set_epi64(ones << 5, ones << 4, ones << 5, ones << 4, ones << 1,
                                             ones, ones << 1, ones);
      const __m512i second = _mm512_slli_epi64(first, 2);
      for (int eight = 0; eight < 2; ++eight) {
        const __m512i v = eight ? _mm512_unpackhi_epi64(h, h) : _mm512_unpacklo_epi64(h, h);
        u[eight] = with_bit2(u[eight], _mm512_test_epi8_mask(v, first));
        u[2 + eight] = with_bit2(u[2 + eight], _mm512_test_epi8_mask(v, second));
      }
    }
  }
  static __m512i with_bit2(__m512i code, __mmask64 high) {
    return _mm512_mask_add_epi8(code, high, code, splat(4));
  }
  static __m512 apply(const Header& h, const float* x, Low* low) {
    *low = _mm512_fmadd_ps(h.taken, _mm512_load_ps(x + 16), *low);
    return _mm512_mul_ps(h.scale, _mm512_load_ps(x));
  }
  static __m512 expand(__m512 d, int k) {
    const __m512i lane = _mm512_set_epi32(11, 11, 9, 9, 10, 10, 8, 8, 3, 3, 1, 1, 2, 2, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * k)), d);
  }
  static __m512 finish(__m512 acc, Low low) { return _mm512_sub_ps(acc, low); }
};

// N activation vectors with one row after the other, form F. Rows side by side would be streams of
// weights side by side, which took Zen 4 half of its memory bandwidth.
template <class F, int N>
struct Tile {
  static constexpr WType kType = F::kType;
  static constexpr int kLimbs = static_cast<int>(step_cols(kType) / 64);
  static constexpr int kFloats = step_floats(kType);
  const uint8_t* w;
  int64_t row_bytes, steps, left;  // left: blocks after the last whole step
  const uint8_t* act;
  int64_t act_stride, floats_at, deep_at, ahead;
  float* y;  // at activation 0, row 0
  int64_t ldy;

  Tile(const void* w, int64_t cols, const void* act, float* y, int64_t ldy)
      : w(static_cast<const uint8_t*>(w)),
        row_bytes(bytes_of_row(kType, cols)),
        steps(cols / step_cols(kType)),
        left(cols % step_cols(kType) / dtype_info(kType).block_values),
        act(static_cast<const uint8_t*>(act)),
        act_stride(static_cast<int64_t>(blocks_act_bytes_avx512(kType, cols))),
        floats_at(limbs_of(kType, cols) * static_cast<int64_t>(sizeof(Limbs))),
        deep_at(floats_at + floats_of(kType, cols) * static_cast<int64_t>(sizeof(float))),
        ahead(fetch_ahead(row_bytes)),
        y(y),
        ldy(ldy) {}

  void rows(int64_t r0, int64_t r1) const {
    for (int64_t r = r0; r < r1; ++r) {
      __m512 acc[N];
      typename F::Low low[N];
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) acc[i] = Avx512::set1(0), low[i] = typename F::Low{};
      const uint8_t* p = w + r * row_bytes;
      for (int64_t s = 0; s < steps; ++s, p += F::kBytes) step(p, s, acc, low);
      if (!has_256(kType) && left > 0) {  // up to three blocks, and zeros
        uint8_t part[F::kBytes] = {};
        memcpy(part, p, static_cast<size_t>(left * dtype_info(kType).block_bytes));
        step(part, steps, acc, low);
      }
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) y[i * ldy + r] = Avx512::sum(F::finish(acc[i], low[i]));
    }
  }

  inline __attribute__((always_inline)) void step(const uint8_t* p, int64_t s, __m512 (&acc)[N],
                                                  typename F::Low (&low)[N]) const {
    __m512i u[kLimbs];
#pragma GCC unroll 4
    for (int line = 0; line < F::kBytes; line += 64) _mm_prefetch(p + ahead + line, _MM_HINT_T1);
    F::codes(p, u);
    const typename F::Header header = F::header(p);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const uint8_t* a = act + i * act_stride;
      const Limbs* limbs = reinterpret_cast<const Limbs*>(a) + s * kLimbs;
      const float* x = reinterpret_cast<const float*>(a + floats_at) + s * kFloats;
      const bool deep = a[deep_at + s];  // the same for all rows, so that it is foreseen
      const __m512 d = F::apply(header, x, &low[i]);
#pragma GCC unroll 4
      for (int k = 0; k < kLimbs; k += 2) {
        const Limbs *l = limbs + k, *m = l + 1;
        __m512i t = _mm512_dpbusd_epi32(_mm512_setzero_si512(), u[k], _mm512_load_si512(l->hi));
        t = _mm512_slli_epi32(_mm512_dpbusd_epi32(t, u[k + 1], _mm512_load_si512(m->hi)), 8);
        if constexpr (kType == WType::MXFP4) t = _mm512_sub_epi32(t, _mm512_load_si512(x + 16));
        if (deep) {
          t = _mm512_dpbusd_epi32(t, u[k], _mm512_load_si512(l->lo));
          t = _mm512_dpbusd_epi32(t, u[k + 1], _mm512_load_si512(m->lo));
        }
        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t), F::expand(d, k / 2), acc[i]);
      }
    }
  }
};

template <class F>
void gemv(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n,
          float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(F::kType, cols);
  const int64_t stride = static_cast<int64_t>(blocks_act_bytes_avx512(F::kType, cols));
  const int64_t fit = (int64_t{512} << 10) /
                      (row_bytes > 0 ? row_bytes : 1);  // rows to keep in L2 between activations
  const int64_t chunk = n == 1 || n == 2 || n == 4 ? r1 - r0 : fit < 1 ? 1 : fit;
  for (int64_t rc = r0; rc < r1; rc += chunk) {
    const int64_t re = least(rc + chunk, r1);
    for (int64_t i = 0; i < n;) {
      const uint8_t* x = static_cast<const uint8_t*>(acts) + i * stride;
      float* out = y + i * ldy;
      if (n - i >= 4) {
        Tile<F, 4>(w, cols, x, out, ldy).rows(rc, re);
        i += 4;
      } else if (n - i >= 2) {
        Tile<F, 2>(w, cols, x, out, ldy).rows(rc, re);
        i += 2;
      } else {
        Tile<F, 1>(w, cols, x, out, ldy).rows(rc, re);
        i += 1;
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

void blocks_act_prepare_avx512(WType type, const float* x, int64_t cols, bool all_deep, void* act) {
  Limbs* limbs = static_cast<Limbs*>(act);
  float* floats = reinterpret_cast<float*>(limbs + limbs_of(type, cols));
  uint8_t* deep = reinterpret_cast<uint8_t*>(floats + floats_of(type, cols));
  const int64_t whole = cols / step_cols(type) * (step_cols(type) / 64);
  if (whole < limbs_of(type, cols))
    memset(limbs + whole, 0,
           blocks_act_bytes_avx512(type, cols) - static_cast<size_t>(whole) * sizeof(Limbs));
  // Groups in a step, and of what the sums are: of the activations alone for a minimum, else times
  // the offset of the codes.
  const int64_t groups = step_cols(type) / group_values(type);
  const float taken = has_min(type) ? 1.0f : static_cast<float>(unsigned_offset(type));
  const float large = all_deep ? kAllDeep : large_of(x, cols);
  memset(deep, 0, static_cast<size_t>(steps_of(type, cols)));
  for (int64_t g = 0; g < cols / 32; ++g) {
    const Fixed16 of = fixed16(x + 32 * g, large);
    deep[g * 32 / step_cols(type)] |= of.deep;
    for (int half = 0; half < 2; ++half) {
      const __m256i up = _mm256_add_epi16(of.half[half], _mm256_set1_epi16(128));
      const __m128i hi = _mm256_cvtepi16_epi8(_mm256_srai_epi16(up, 8)),
                    lo = _mm256_cvtepi16_epi8(of.half[half]);
      for (int eight = 0; eight < 2; ++eight) {
        const Place at = place_of(type, 4 * g + 2 * half + eight);
        Limbs* l = limbs + at.limb;
        _mm_storel_epi64(reinterpret_cast<__m128i*>(l->hi + at.at),
                         eight ? _mm_unpackhi_epi64(hi, hi) : hi);
        _mm_storel_epi64(reinterpret_cast<__m128i*>(l->lo + at.at),
                         eight ? _mm_unpackhi_epi64(lo, lo) : lo);
      }
    }
    if (group_values(type) == 16) {
      float* f = floats + g / 8 * 32 + g % 8 * 2;
      for (int half = 0; half < 2; ++half)
        f[half] = of.scale, f[16 + half] = static_cast<float>(of.sum[half]) * of.scale * taken;
    } else {
      float* f = floats + g / groups * step_floats(type) + g % groups;
      f[0] = of.scale;
      if (type == WType::MXFP4) {
        const __m256i offset = _mm256_set1_epi16(static_cast<short>(unsigned_offset(type)));
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

void blocks_gemv_avx512(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1,
                        const void* acts, int64_t n, float* y, int64_t ldy) {
  switch (type) {
    case WType::Q8_0: return gemv<Small<WType::Q8_0>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_0: return gemv<Small<WType::Q4_0>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_1: return gemv<Small<WType::Q4_1>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_0: return gemv<Small<WType::Q5_0>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_1: return gemv<Small<WType::Q5_1>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_K: return gemv<Large<WType::Q4_K>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_K: return gemv<Large<WType::Q5_K>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q6_K: return gemv<Six>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::IQ4_NL: return gemv<Small<WType::IQ4_NL>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::MXFP4: return gemv<Small<WType::MXFP4>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::IQ4_XS: return gemv<Indices>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q3_K: return gemv<Pairs<WType::Q3_K>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q2_K: return gemv<Pairs<WType::Q2_K>>(w, cols, r0, r1, acts, n, y, ldy);
    default: return;
  }
}

}  // namespace riffle::cpu
