// Decode products of the weights of 4 to 6 bits for AVX-512 with VNNI, see linear_blocks.h. Codes are unpacked to unsigned
// bytes; hi, which is signed, takes them as they are, mid and lo, unsigned, take them less the offset of the type, and the
// starting value of the sum makes up for hi (linear_avx512.cpp). A sum of 8 products stays below 8 * 32 * 2^21 = 2^29.
#include "kernels/cpu/linear_avx512.h"
#include "kernels/cpu/linear_limbs.h"

namespace riffle::cpu {
namespace {

inline __m512i splat(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
inline __m512i low_half(__m512i v) { return _mm512_and_si512(v, splat(15)); }
inline __m512i high_half(__m512i v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), splat(15)); }
inline __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// 16 bytes at each of four places.
inline __m512i load_four(const uint8_t* p, int stride) {
  __m512i v = _mm512_castsi128_si512(load16(p));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load16(p + stride));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load16(p + 2 * stride));
  return _mm512_mask_broadcast_i32x4(v, 0xf000, load16(p + 3 * stride));
}
// Bit 4 of those codes whose bit of `high` is set.
inline __m512i with_bit4(__m512i code, __mmask64 high) { return _mm512_mask_add_epi8(code, high, code, splat(16)); }

// Types of 32 values: four blocks at a time, as vectors of their first and of their second halves.
template <WType T>
struct Small {
  static constexpr WType kType = T;
  static constexpr int kBytes = 4 * dtype_info(T).block_bytes;
  static constexpr bool kFive = T == WType::Q5_0 || T == WType::Q5_1;
  using Header = __m128;

  static __m128 halves(const uint8_t* p) {
    constexpr int b = dtype_info(T).block_bytes;
    const uint64_t all = load_u16(p) | static_cast<uint64_t>(load_u16(p + b)) << 16 |
                         static_cast<uint64_t>(load_u16(p + 2 * b)) << 32 | static_cast<uint64_t>(load_u16(p + 3 * b)) << 48;
    return _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(all)));
  }
  static Header scales(const uint8_t* p) { return halves(p); }
  static Header mins(const uint8_t* p) { return _mm_xor_ps(halves(p + 2), _mm_set1_ps(-0.0f)); }
  static void codes(const uint8_t* p, __m512i* u) {
    constexpr int b = dtype_info(T).block_bytes, header = has_min(T) ? 4 : 2;
    const __m512i q = load_four(p + header + (kFive ? 4 : 0), b);
    u[0] = low_half(q), u[1] = high_half(q);
    if constexpr (kFive) {
      uint32_t h[4];
      for (int i = 0; i < 4; ++i) memcpy(&h[i], p + header + i * b, 4);
      const auto word = [&](int shift) {
        const uint64_t a = (h[0] >> shift & 0xffff) | (h[1] >> shift & 0xffff) << 16;
        const uint64_t c = (h[2] >> shift & 0xffff) | (h[3] >> shift & 0xffff) << 16;
        return _cvtu64_mask64(a | c << 32);
      };
      u[0] = with_bit4(u[0], word(0)), u[1] = with_bit4(u[1], word(16));
    }
  }
  static Header act(const float* p) { return _mm_load_ps(p); }
  static Header mul(Header a, Header b) { return _mm_mul_ps(a, b); }
  static Header fma(Header a, Header b, Header c) { return _mm_fmadd_ps(a, b, c); }
  static Header zero() { return _mm_setzero_ps(); }
  static __m512 wide(Header a) { return _mm512_zextps128_ps512(a); }
  // The scale of each lane of the sum of the p-th pair of limbs.
  static __m512 expand(Header s, int) {
    const __m512i lane = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(lane, _mm512_castps128_ps512(s));
  }
};

// Q4_K and Q5_K: the first halves of groups 0, 2, 4, 6, their second halves, then those of groups 1, 3, 5, 7.
template <WType T>
struct Large {
  static constexpr WType kType = T;
  static constexpr int kBytes = dtype_info(T).block_bytes;
  using Header = __m256;

  static __m256 bytes(uint64_t v) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(v)))); }
  static Header scales(const uint8_t* p) {
    uint64_t scale, min;
    scales_mins_k(p + 4, &scale, &min);
    return _mm256_mul_ps(_mm256_set1_ps(V16::scale_f16(p)), bytes(scale));
  }
  static Header mins(const uint8_t* p) {
    uint64_t scale, min;
    scales_mins_k(p + 4, &scale, &min);
    return _mm256_mul_ps(_mm256_set1_ps(V16::scale_f16(p + 2)), bytes(min));
  }
  static void codes(const uint8_t* p, __m512i* u) {
    const uint8_t* q = p + (T == WType::Q5_K ? 48 : 16);
    const __m512i a = _mm512_loadu_si512(q), b = _mm512_loadu_si512(q + 64);
    const __m512i first = _mm512_shuffle_i32x4(a, b, 0x88), second = _mm512_shuffle_i32x4(a, b, 0xdd);
    u[0] = low_half(first), u[1] = low_half(second), u[2] = high_half(first), u[3] = high_half(second);
    if constexpr (T == WType::Q5_K) {
      const __m512i h0 = _mm512_broadcast_i32x4(load16(p + 16)), h1 = _mm512_broadcast_i32x4(load16(p + 32));
      const __m512i even = _mm512_set_epi32(0x40404040, 0x40404040, 0x40404040, 0x40404040, 0x10101010, 0x10101010,
                                            0x10101010, 0x10101010, 0x04040404, 0x04040404, 0x04040404, 0x04040404,
                                            0x01010101, 0x01010101, 0x01010101, 0x01010101);
      const __m512i odd = _mm512_add_epi8(even, even);
      u[0] = with_bit4(u[0], _mm512_test_epi8_mask(h0, even)), u[1] = with_bit4(u[1], _mm512_test_epi8_mask(h1, even));
      u[2] = with_bit4(u[2], _mm512_test_epi8_mask(h0, odd)), u[3] = with_bit4(u[3], _mm512_test_epi8_mask(h1, odd));
    }
  }
  static Header act(const float* p) { return _mm256_load_ps(p); }
  static Header mul(Header a, Header b) { return _mm256_mul_ps(a, b); }
  static Header fma(Header a, Header b, Header c) { return _mm256_fmadd_ps(a, b, c); }
  static Header zero() { return _mm256_setzero_ps(); }
  static __m512 wide(Header a) { return _mm512_zextps256_ps512(a); }
  static __m512 expand(Header s, int p) {
    const __m512i lane = _mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(p)), _mm512_castps256_ps512(s));
  }
};

// Q6_K: columns in their order, four groups of 16 to a limb.
struct Six {
  static constexpr WType kType = WType::Q6_K;
  static constexpr int kBytes = dtype_info(kType).block_bytes;
  using Header = __m512;

  static Header scales(const uint8_t* p) {
    return _mm512_mul_ps(_mm512_set1_ps(V16::scale_f16(p + 208)), V16::load_i8(p + 192));
  }
  static Header mins(const uint8_t*) { return zero(); }
  static void codes(const uint8_t* p, __m512i* u) {
    const __m512i pair = splat(0x30), shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
    for (int part = 0; part < 2; ++part) {
      const __m512i low = _mm512_loadu_si512(p + 64 * part);
      const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 128 + 32 * part)));
      // Quarters 0 and 1 have their pairs at bits 0 and 2, quarters 2 and 3 at bits 4 and 6; all go to bit 4.
      const __m512i h01 = _mm512_srlv_epi64(_mm512_slli_epi64(high, 4), shift), h23 = _mm512_srlv_epi64(high, shift);
      u[2 * part] = _mm512_ternarylogic_epi32(h01, pair, low_half(low), 0xea);  // (a & b) | c
      u[2 * part + 1] = _mm512_ternarylogic_epi32(h23, pair, high_half(low), 0xea);
    }
  }
  static Header act(const float* p) { return _mm512_load_ps(p); }
  static Header mul(Header a, Header b) { return _mm512_mul_ps(a, b); }
  static Header fma(Header a, Header b, Header c) { return _mm512_fmadd_ps(a, b, c); }
  static Header zero() { return _mm512_setzero_ps(); }
  static __m512 wide(Header a) { return a; }
  static __m512 expand(Header s, int p) {
    const __m512i lane = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(4 * p)), s);
  }
};

// R rows with N activation vectors, form F.
template <class F, int R, int N>
struct Tile {
  static constexpr WType kType = F::kType;
  static constexpr int kLimbs = static_cast<int>(step_cols(kType) / 64), kShare = has_pairs(kType) ? 2 : 1;
  static constexpr int kScales = static_cast<int>(step_cols(kType) / group_values(kType));
  static constexpr int kOffset = code_offset(kType), kSmallBlocks = has_256(kType) ? 0 : 4;
  const uint8_t* w;
  int64_t row_bytes, steps, left;  // left: blocks after the last whole step
  const uint8_t* act;
  int64_t act_stride, scales_at, sums_at, ahead;
  float* y;  // at activation 0, row 0
  int64_t ldy;

  Tile(const void* w, int64_t cols, const void* act, float* y, int64_t ldy)
      : w(static_cast<const uint8_t*>(w)),
        row_bytes(bytes_of_row(kType, cols)),
        steps(cols / step_cols(kType)),
        left(cols % step_cols(kType) / dtype_info(kType).block_values),
        act(static_cast<const uint8_t*>(act)),
        act_stride(static_cast<int64_t>(blocks_act_bytes_avx512(kType, cols))),
        scales_at(limbs_of(kType, cols) * static_cast<int64_t>(sizeof(Limbs))),
        sums_at(scales_at + scales_of(kType, cols) * 4),
        ahead(fetch_ahead(R * row_bytes)),
        y(y),
        ldy(ldy) {}

  void rows(int64_t r0, int64_t r1) const {
    for (int64_t r = r0; r < r1; r += R) {
      __m512 acc[R][N];
      typename F::Header low[R][N];  // what the minima take away
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i) acc[j][i] = V16::zero(), low[j][i] = F::zero();
      const uint8_t* p[R];
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) p[j] = w + (r + j) * row_bytes;
      for (int64_t s = 0; s < steps; ++s) {
        step(p, s, acc, low);
#pragma GCC unroll 4
        for (int j = 0; j < R; ++j) p[j] += F::kBytes;
      }
      if (kSmallBlocks > 0 && left > 0) {  // up to three blocks, and zeros
        uint8_t part[R][F::kBytes] = {};
        const uint8_t* parts[R];
        for (int j = 0; j < R; ++j) {
          memcpy(part[j], p[j], static_cast<size_t>(left * dtype_info(kType).block_bytes));
          parts[j] = part[j];
        }
        step(parts, steps, acc, low);
      }
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j)
#pragma GCC unroll 4
        for (int i = 0; i < N; ++i)
          y[i * ldy + r + j] = V16::sum(has_min(kType) ? _mm512_sub_ps(acc[j][i], F::wide(low[j][i])) : acc[j][i]);
    }
  }

  inline __attribute__((always_inline)) void step(const uint8_t* const (&p)[R], int64_t s, __m512 (&acc)[R][N],
                                                  typename F::Header (&low)[R][N]) const {
    __m512i u[R][kLimbs], c[R][kLimbs];
    typename F::Header scale[R], min[R];
#pragma GCC unroll 4
    for (int j = 0; j < R; ++j) {
#pragma GCC unroll 4
      for (int line = 0; line < F::kBytes; line += 64) _mm_prefetch(p[j] + ahead + line, _MM_HINT_T0);
      F::codes(p[j], u[j]);
      scale[j] = F::scales(p[j]);
      if (has_min(kType)) min[j] = F::mins(p[j]);
#pragma GCC unroll 4
      for (int k = 0; k < kLimbs; ++k) c[j][k] = kOffset > 0 ? _mm512_sub_epi8(u[j][k], splat(kOffset)) : u[j][k];
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const uint8_t* a = act + i * act_stride;
      const Limbs* limbs = reinterpret_cast<const Limbs*>(a) + s * kLimbs;
      const typename F::Header x = F::act(reinterpret_cast<const float*>(a + scales_at) + s * kScales);
#pragma GCC unroll 4
      for (int j = 0; j < R; ++j) {
        const typename F::Header d = F::mul(scale[j], x);
        if (has_min(kType))
          low[j][i] = F::fma(min[j], F::act(reinterpret_cast<const float*>(a + sums_at) + s * kScales), low[j][i]);
#pragma GCC unroll 4
        for (int k = 0; k < kLimbs; k += kShare) {
          const Limbs* l = limbs + k;
          __m512i t = kOffset > 0 ? _mm512_load_si512(l->start) : _mm512_setzero_si512();
#pragma GCC unroll 2
          for (int h = 0; h < kShare; ++h) t = _mm512_dpbusd_epi32(t, u[j][k + h], _mm512_load_si512(l[h].hi));
          t = _mm512_slli_epi32(t, 8);
#pragma GCC unroll 2
          for (int h = 0; h < kShare; ++h) t = _mm512_dpbusd_epi32(t, _mm512_load_si512(l[h].mid), c[j][k + h]);
          t = _mm512_slli_epi32(t, 8);
#pragma GCC unroll 2
          for (int h = 0; h < kShare; ++h) t = _mm512_dpbusd_epi32(t, _mm512_load_si512(l[h].lo), c[j][k + h]);
          acc[j][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t), F::expand(d, k / kShare), acc[j][i]);
        }
      }
    }
  }
};

template <class F>
void gemv(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n, float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(F::kType, cols);
  const int64_t stride = static_cast<int64_t>(blocks_act_bytes_avx512(F::kType, cols));
  const int64_t fit = (int64_t{512} << 10) / (row_bytes > 0 ? row_bytes : 1);  // rows to keep in L2 between activations
  const int64_t chunk = n == 1 || n == 2 || n == 4 ? r1 - r0 : fit < 2 ? 2 : fit / 2 * 2;
  for (int64_t rc = r0; rc < r1; rc += chunk) {
    const int64_t re = least(rc + chunk, r1), twos = rc + (re - rc) / 2 * 2;
    for (int64_t i = 0; i < n;) {
      const uint8_t* x = static_cast<const uint8_t*>(acts) + i * stride;
      float* out = y + i * ldy;
      if (n - i >= 4) {
        Tile<F, 1, 4>(w, cols, x, out, ldy).rows(rc, re);
        i += 4;
      } else if (n - i >= 2) {
        Tile<F, 1, 2>(w, cols, x, out, ldy).rows(rc, re);
        i += 2;
      } else {
        Tile<F, 2, 1>(w, cols, x, out, ldy).rows(rc, twos);
        Tile<F, 1, 1>(w, cols, x, out, ldy).rows(twos, re);
        i += 1;
      }
    }
  }
}

}  // namespace

size_t blocks_act_bytes_avx512(WType type, int64_t cols) {
  const int64_t floats = scales_of(type, cols) + (has_min(type) ? round_up(cols / 32, kScaleGroup) : 0);
  return static_cast<size_t>(limbs_of(type, cols)) * sizeof(Limbs) + static_cast<size_t>(floats) * sizeof(float);
}

void blocks_act_prepare_avx512(WType type, const float* x, int64_t cols, void* act) {
  Limbs* limbs = static_cast<Limbs*>(act);
  float* scale = reinterpret_cast<float*>(limbs + limbs_of(type, cols));
  float* sums = scale + scales_of(type, cols);
  const int64_t whole = cols / step_cols(type) * (step_cols(type) / 64);
  memset(limbs + whole, 0, blocks_act_bytes_avx512(type, cols) - static_cast<size_t>(whole) * sizeof(Limbs));
  const __m512i byte = _mm512_set1_epi32(255);
  const __m128i offset = _mm_set1_epi8(static_cast<char>(code_offset(type)));
  for (int64_t g = 0; g < cols / 32; ++g) {
    const __m512 v[2] = {_mm512_loadu_ps(x + 32 * g), _mm512_loadu_ps(x + 32 * g + 16)};
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])));
    const bool finite = _mm512_fpclass_ps_mask(v[0], 0x99) == 0 && _mm512_fpclass_ps_mask(v[1], 0x99) == 0;
    const int e = finite ? fixed_exponent(largest) : 0;
    __m512i total = _mm512_setzero_si512();
    __m128i start[2];
    for (int half = 0; half < 2; ++half) {
      const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v[half], V16::set1(power_of_two(-e))));
      const Place at = place_of(type, g, half);
      Limbs* l = limbs + at.limb;
      const __m128i hi = _mm512_cvtepi32_epi8(_mm512_srai_epi32(q, 16));
      _mm_store_si128(reinterpret_cast<__m128i*>(l->hi + at.at), hi);
      _mm_store_si128(reinterpret_cast<__m128i*>(l->mid + at.at),
                      _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srli_epi32(q, 8), byte)));
      _mm_store_si128(reinterpret_cast<__m128i*>(l->lo + at.at), _mm512_cvtepi32_epi8(_mm512_and_si512(q, byte)));
      start[half] = _mm_sub_epi32(_mm_setzero_si128(), _mm_dpbusd_epi32(_mm_setzero_si128(), offset, hi));
      total = _mm512_add_epi32(total, q);
    }
    if (has_pairs(type)) start[0] = _mm_add_epi32(start[0], start[1]);  // the first limb starts the sum of both
    for (int half = 0; half < 2; ++half) {
      const Place at = place_of(type, g, half);
      _mm_store_si128(reinterpret_cast<__m128i*>(limbs[at.limb].start + at.at / 4), start[half]);
    }
    // An infinity or NaN spoils the group's integers: let it be seen.
    const float s = finite ? power_of_two(e) : __builtin_nanf("");
    const int64_t each = 32 / group_values(type);
    for (int64_t i = 0; i < each; ++i) scale[g * each + i] = s;
    if (has_min(type)) sums[g] = static_cast<float>(_mm512_reduce_add_epi32(total)) * s;
  }
}

void blocks_gemv_avx512(WType type, const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts, int64_t n, float* y,
                        int64_t ldy) {
  switch (type) {
    case WType::Q4_0: return gemv<Small<WType::Q4_0>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_1: return gemv<Small<WType::Q4_1>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_0: return gemv<Small<WType::Q5_0>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_1: return gemv<Small<WType::Q5_1>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q4_K: return gemv<Large<WType::Q4_K>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q5_K: return gemv<Large<WType::Q5_K>>(w, cols, r0, r1, acts, n, y, ldy);
    case WType::Q6_K: return gemv<Six>(w, cols, r0, r1, acts, n, y, ldy);
    default: return;
  }
}

}  // namespace riffle::cpu
