// Linear kernels for any vector instruction set S (kernels/cpu/simd/simd.h says what a set gives).
// Internal linkage throughout.
#pragma once
#include "kernels/cpu/linear/quants.h"
#include "kernels/cpu/simd/simd.h"

namespace riffle::cpu {
namespace {

// kLanes weights of a row from column j on, as f32; not of the types with 2 to 6 bits. j is a
// multiple of kLanes. part: only the first n (1 <= n < kLanes) exist.
template <class S, WType T>
inline typename S::Vec weights(const uint8_t* row, int64_t j) {
  if constexpr (T == WType::F32) return S::load(reinterpret_cast<const float*>(row) + j);
  if constexpr (T == WType::F16) return S::load_f16(row + j * 2);
  if constexpr (T == WType::BF16) return S::load_bf16(row + j * 2);
  if constexpr (T == WType::Q8_0) {
    const uint8_t* block = row + j / kQ8 * kQ8Bytes;
    return S::set1(S::f16_at(block)) * S::load_i8(block + 2 + j % kQ8);
  }
}
template <class S, WType T>
inline typename S::Vec weights_part(const uint8_t* row, int64_t j, int64_t n) {
  constexpr int kSize = T == WType::F32 ? 4 : 2;  // Q8_0 rows are whole blocks and never come here
  alignas(64) uint8_t buffer[S::kLanes * 4] = {};
  memcpy(buffer, row + j * kSize, n * kSize);
  if constexpr (T == WType::F32) return S::load(reinterpret_cast<const float*>(buffer));
  if constexpr (T == WType::F16) return S::load_f16(buffer);
  return S::load_bf16(buffer);
}

// ---- decode ----

inline size_t f32_act_bytes(int64_t cols) { return static_cast<size_t>(round_up(cols * 4, 64)); }
inline void f32_act_prepare(const float* x, int64_t cols, void* act) {
  memcpy(act, x, sizeof(float) * cols);
  memset(static_cast<float*>(act) + cols, 0, f32_act_bytes(cols) - sizeof(float) * cols);
}

// One row of F32, F16 or BF16 with N activation vectors. Four chains of sums, the same whatever N.
template <class S, WType T, int N>
inline void dot_row(const uint8_t* row, int64_t cols, const float* x, int64_t stride, float* y,
                    int64_t ldy) {
  constexpr int L = S::kLanes;
  typename S::Vec acc[N][4];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) acc[i][u] = S::set1(0);
  int64_t j = 0;
  for (; j + 4 * L <= cols; j += 4 * L) {
    __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8192);
    if (T == WType::F32 || L == 16) __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8256);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const typename S::Vec w = weights<S, T>(row, j + u * L);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i)
        acc[i][u] = S::fma(w, S::load(x + i * stride + j + u * L), acc[i][u]);
    }
  }
  for (; j < cols; j += L) {
    const typename S::Vec w =
        j + L <= cols ? weights<S, T>(row, j) : weights_part<S, T>(row, j, cols - j);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[i][0] = S::fma(w, S::load(x + i * stride + j), acc[i][0]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
    y[i * ldy] = S::sum((acc[i][0] + acc[i][1]) + (acc[i][2] + acc[i][3]));
}

// Walks rows in chunks that stay in the second-level cache, activations in groups of at most kMost.
// Group<N>::row(row, cols, acts, act_stride, y, ldy) does one row for N activation vectors; y
// points at (act, r).
template <template <int> class Group, int kMost, class Act>
inline void for_rows(const void* w, int64_t row_bytes, int64_t cols, int64_t r0, int64_t r1,
                     const Act* acts, int64_t stride, int64_t n, float* y, int64_t ldy) {
  const int64_t fit = (int64_t{512} << 10) / (row_bytes > 0 ? row_bytes : 1),
                chunk = n <= kMost ? r1 - r0
                        : fit < 1  ? 1
                                   : fit;
  for (int64_t rc = r0; rc < r1; rc += chunk)
    for (int64_t i = 0; i < n;) {
      const int64_t left = n - i, step = left >= kMost ? kMost : left >= 2 ? 2 : 1;
      for (int64_t r = rc; r < least(rc + chunk, r1); ++r) {
        const uint8_t* row = static_cast<const uint8_t*>(w) + r * row_bytes;
        const Act* x = acts + i * stride;
        float* out = y + i * ldy + r;
        if (step == kMost) Group<kMost>::row(row, cols, x, stride, out, ldy);
        else if (step == 2) Group<2>::row(row, cols, x, stride, out, ldy);
        else Group<1>::row(row, cols, x, stride, out, ldy);
      }
      i += step;
    }
}

template <class S, WType T>
struct Dots {
  template <int N>
  struct Group {
    static void row(const uint8_t* row, int64_t cols, const float* x, int64_t stride, float* y,
                    int64_t ldy) {
      dot_row<S, T, N>(row, cols, x, stride, y, ldy);
    }
  };
};

template <class S, WType T, int kMost>
inline void gemv_float(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
                       int64_t n, float* y, int64_t ldy) {
  for_rows<Dots<S, T>::template Group, kMost>(
      w, bytes_of_row(T, cols), cols, r0, r1, static_cast<const float*>(acts),
      static_cast<int64_t>(f32_act_bytes(cols) / 4), n, y, ldy);
}

// ---- prefill in f32: each c is one chain of FMAs in the order of k ----
// packed a: [tile of MR rows][k][MR]; panel of W in scratch: [kKChunk][NV*kLanes].

constexpr int64_t kKChunk = 1024;  // columns of W in a panel, so that panels and scratch stay small

template <class S, int MR, int NV>
struct GemmF32 {
  using Vec = typename S::Vec;
  static constexpr int L = S::kLanes, NR = NV * L;

  static size_t pack_bytes(int64_t m, int64_t k) {
    return static_cast<size_t>(round_up(round_up(m, MR) * k * 4, 64));
  }
  static size_t scratch_bytes(int64_t k) {
    return static_cast<size_t>(least(round_up(k, L), kKChunk) * NR * 4);
  }

  static void pack(const float* a, int64_t lda, int64_t m, int64_t k, int64_t m0, int64_t m1,
                   void* packed) {
    for (int64_t i0 = m0; i0 < m1; i0 += MR) {
      float* dst = static_cast<float*>(packed) + i0 * k;
      const int rows = static_cast<int>(least(MR, m - i0));
      for (int64_t p = 0; p < k; ++p)
        for (int i = 0; i < MR; ++i) dst[p * MR + i] = i < rows ? a[(i0 + i) * lda + p] : 0.0f;
    }
  }

  // Types with 2 to 6 bits: whole blocks of W rows are decoded first.
  template <WType T>
  static void fill_panel_blocks(const uint8_t* w, int64_t row_bytes, int64_t rows, int64_t k0,
                                int64_t k1, float* panel) {
    constexpr DTypeInfo info = dtype_info(T);
    alignas(64) float values[L][info.block_values];
    for (int v = 0; v < NV; ++v)
      for (int64_t p = k0; p < k1; p += info.block_values) {
        for (int r = 0; r < L; ++r) {
          if (v * L + r < rows)
            dequant_block(T, w + (v * L + r) * row_bytes + p / info.block_values * info.block_bytes,
                          values[r]);
          else memset(values[r], 0, sizeof values[r]);
        }
        for (int j = 0; j < info.block_values; j += L) {
          Vec block[L];
          for (int r = 0; r < L; ++r) block[r] = S::load(values[r] + j);
          S::transpose(block);
          for (int r = 0; r < L; ++r) S::store(panel + (p - k0 + j + r) * NR + v * L, block[r]);
        }
      }
  }

  template <WType T>
  static void fill_panel(const uint8_t* w, int64_t row_bytes, int64_t rows, int64_t k0, int64_t k1,
                         float* panel) {
    if constexpr (is_quantised(T) && T != WType::Q8_0)
      return fill_panel_blocks<T>(w, row_bytes, rows, k0, k1, panel);
    else
      for (int v = 0; v < NV; ++v)
        for (int64_t p = k0; p < k1; p += L) {
          const int64_t some = least(L, k1 - p);
          Vec block[L];
          for (int r = 0; r < L; ++r) {
            const uint8_t* row = w + (v * L + r) * row_bytes;
            block[r] = v * L + r >= rows ? S::set1(0)
                       : some == L       ? weights<S, T>(row, p)
                                         : weights_part<S, T>(row, p, some);
          }
          S::transpose(block);
          for (int r = 0; r < some; ++r) S::store(panel + (p - k0 + r) * NR + v * L, block[r]);
        }
  }

  // c[0..rows)[0..cols) (+)= a . panel over kc values of k.
  static void tile(int64_t kc, const float* a, const float* panel, float* c, int64_t ldc, int rows,
                   int cols, bool more) {
    Vec acc[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = S::set1(0);
    if (more)
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v)
          if (i < rows && v * L < cols)
            acc[i][v] = cols - v * L >= L ? S::load(c + i * ldc + v * L)
                                          : S::load_n(c + i * ldc + v * L, cols - v * L);
    for (int64_t p = 0; p < kc; ++p) {
      Vec b[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) b[v] = S::load(panel + p * NR + v * L);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const Vec x = S::set1(a[p * MR + i]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[i][v] = S::fma(x, b[v], acc[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        if (i < rows && v * L < cols) {
          if (cols - v * L >= L) S::store(c + i * ldc + v * L, acc[i][v]);
          else S::store_n(c + i * ldc + v * L, acc[i][v], cols - v * L);
        }
  }

  template <WType T>
  static void run(const uint8_t* w, int64_t k, int64_t r0, int64_t r1, const float* packed,
                  int64_t m, float* c, int64_t ldc, float* panel) {
    const int64_t row_bytes = bytes_of_row(T, k);
    for (int64_t r = r0; r < r1; r += NR)
      for (int64_t k0 = 0; k0 < k; k0 += kKChunk) {
        const int64_t k1 = least(k0 + kKChunk, k), cols = least(NR, r1 - r);
        fill_panel<T>(w + r * row_bytes, row_bytes, cols, k0, k1, panel);
        for (int64_t i = 0; i < m; i += MR)
          tile(k1 - k0, packed + i * k + k0 * MR, panel, c + i * ldc + r, ldc,
               static_cast<int>(least(MR, m - i)), static_cast<int>(cols), k0 > 0);
      }
  }

  static void gemm(WType type, const void* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
                   int64_t m, float* c, int64_t ldc, void* scratch) {
    const uint8_t* wb = static_cast<const uint8_t*>(w);
    const float* a = static_cast<const float*>(packed);
    float* panel = static_cast<float*>(scratch);
    switch (type) {
      case WType::F32: return run<WType::F32>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::F16: return run<WType::F16>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::BF16: return run<WType::BF16>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q8_0: return run<WType::Q8_0>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q4_0: return run<WType::Q4_0>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q4_1: return run<WType::Q4_1>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q5_0: return run<WType::Q5_0>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q5_1: return run<WType::Q5_1>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q4_K: return run<WType::Q4_K>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q5_K: return run<WType::Q5_K>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q6_K: return run<WType::Q6_K>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::IQ4_NL: return run<WType::IQ4_NL>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::IQ4_XS: return run<WType::IQ4_XS>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q3_K: return run<WType::Q3_K>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::Q2_K: return run<WType::Q2_K>(wb, k, r0, r1, a, m, c, ldc, panel);
      case WType::MXFP4: return run<WType::MXFP4>(wb, k, r0, r1, a, m, c, ldc, panel);
    }
  }
};

// ---- rows ----

template <class S, WType T>
inline void dequant(const uint8_t* row, int64_t cols, float* dst) {
  int64_t j = 0;
  for (; j + S::kLanes <= cols; j += S::kLanes) S::store(dst + j, weights<S, T>(row, j));
  for (; j < cols; ++j) dst[j] = weight_at(T, row, j);
}
template <class S>
void simd_dequant_row(WType type, const void* w, int64_t cols, int64_t r, float* dst) {
  const uint8_t* row = static_cast<const uint8_t*>(w) + r * bytes_of_row(type, cols);
  switch (type) {
    case WType::F32: return dequant<S, WType::F32>(row, cols, dst);
    case WType::F16: return dequant<S, WType::F16>(row, cols, dst);
    case WType::BF16: return dequant<S, WType::BF16>(row, cols, dst);
    case WType::Q8_0: return dequant<S, WType::Q8_0>(row, cols, dst);
    default: return dequant_blocks(type, row, cols, dst);
  }
}

template <class S>
void simd_rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps,
                  float* out) {
  for (int64_t i = 0; i < n; ++i, x += dim, out += dim) {
    const double mean = S::sum_squares(x, dim) / static_cast<double>(dim);
    const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + eps));
    const typename S::Vec s = S::set1(scale);
    int64_t j = 0;
    for (; j + S::kLanes <= dim; j += S::kLanes)
      S::store(out + j, S::load(x + j) * s * S::load(weight + j));
    for (; j < dim; ++j) out[j] = x[j] * scale * weight[j];
  }
}

template <class S>
void simd_add(float* x, const float* y, int64_t count) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes) S::store(x + j, S::load(x + j) + S::load(y + j));
  for (; j < count; ++j) x[j] += y[j];
}

// x[j] = f(x[j], y[j]), on vectors.
template <class S, class F>
inline void pairwise(float* x, const float* y, int64_t count, const F& f) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes) S::store(x + j, f(S::load(x + j), S::load(y + j)));
  if (const int n = static_cast<int>(count - j))
    S::store_n(x + j, f(S::load_n(x + j, n), S::load_n(y + j, n)), n);
}

// e^x for x <= 0 (NaN stays NaN), with subnormal results, which S::exp need not have: x = n ln2 +
// r, |r| <= ln2/2, Taylor to r^7 (truncation below 1e-8 of the result).
template <class S>
inline typename S::Vec exp_nonpositive(typename S::Vec x) {
  using Vec = typename S::Vec;
  x = S::max(S::set1(-104.0f), x);  // e^-104 rounds to 0
  const Vec n = S::round(x * S::set1(1.44269504f));
  Vec r = S::fnma(n, S::set1(0.693145752f),
                  x);  // ln2 in two parts; the first has 15 bits, so n times it is exact
  r = S::fnma(n, S::set1(1.42860677e-6f), r);
  Vec p = S::set1(1.0f / 5040);
  p = S::fma(p, r, S::set1(1.0f / 720));
  p = S::fma(p, r, S::set1(1.0f / 120));
  p = S::fma(p, r, S::set1(1.0f / 24));
  p = S::fma(p, r, S::set1(1.0f / 6));
  p = S::fma(p, r, S::set1(0.5f));
  p = S::fma(p, r, S::set1(1.0f));
  p = S::fma(p, r, S::set1(1.0f));
  return S::ldexp(p, n);
}

// silu(g) u with e = e^-|g|: g/(1+e) for g >= 0, g e/(1+e) below, so that nothing overflows;
// silu(-inf) = 0.
template <class S>
inline typename S::Vec silu_mul(typename S::Vec g, typename S::Vec u) {
  using Vec = typename S::Vec;
  const Vec e = exp_nonpositive<S>(S::negative_abs(g));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (S::set1(1.0f) + e) * u;
}
template <class S>
void simd_swiglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return silu_mul<S>(l, r); });
}

// As geglu of linear_scalar.cpp.
template <class S>
inline typename S::Vec gelu_mul(typename S::Vec g, typename S::Vec up) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f);
  const Vec u = S::set1(0.7978845608028654f) * g * S::fma(S::set1(0.044715f) * g, g, one);
  const Vec e = exp_nonpositive<S>(S::set1(2.0f) * S::negative_abs(u));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (one + e) * up;
}
template <class S>
void simd_geglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return gelu_mul<S>(l, r); });
}

// As clamped_swiglu of linear_scalar.cpp. min(a, b) is -max(-a, -b).
template <class S>
inline typename S::Vec clamped_silu_mul(typename S::Vec g, typename S::Vec up) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f), least = S::set1(-7.0f);
  g = -S::max(least, -g);
  up = S::max(least, -S::max(least, -up));
  const Vec e = exp_nonpositive<S>(S::set1(1.702f) * S::negative_abs(g));
  const Vec below = S::max(S::set1(-__FLT_MAX__), g) * e;
  return S::select_negative(g, below, g) / (one + e) * (up + one);
}
template <class S>
void simd_clamped_swiglu(float* gate, const float* up, int64_t count) {
  pairwise<S>(gate, up, count, [](auto l, auto r) { return clamped_silu_mul<S>(l, r); });
}

// As sigmoid_gate of linear_scalar.cpp.
template <class S>
inline typename S::Vec sigmoid_mul(typename S::Vec x, typename S::Vec g) {
  const auto e = exp_nonpositive<S>(S::negative_abs(g));
  return S::select_negative(g, x * e, x) / (S::set1(1.0f) + e);
}
template <class S>
void simd_sigmoid_gate(float* x, const float* gate, int64_t count) {
  pairwise<S>(x, gate, count, [](auto l, auto r) { return sigmoid_mul<S>(l, r); });
}

// As softcap of linear_scalar.cpp.
template <class S>
inline typename S::Vec capped(typename S::Vec x, typename S::Vec cap) {
  using Vec = typename S::Vec;
  const Vec one = S::set1(1.0f), u = x / cap,
            e = exp_nonpositive<S>(S::set1(2.0f) * S::negative_abs(u));
  const Vec t = (one - e) / (one + e);
  return cap * S::select_negative(u, -t, t);
}
template <class S>
void simd_softcap(float* x, int64_t count, float cap) {
  int64_t j = 0;
  for (; j + S::kLanes <= count; j += S::kLanes)
    S::store(x + j, capped<S>(S::load(x + j), S::set1(cap)));
  if (const int n = static_cast<int>(count - j))
    S::store_n(x + j, capped<S>(S::load_n(x + j, n), S::set1(cap)), n);
}

template <class S>
void simd_rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
               const int32_t* pos, RopePairs pairs) {
  using Vec = typename S::Vec;
  const int half = head_dim / 2;
  const bool interleaved = pairs.interleaved;
  const bool vectors = half % S::kLanes == 0 && (interleaved || pairs.rotated == head_dim);
  for (int64_t i = 0; i < n; ++i) {
    const float* cs = cos_sin + static_cast<int64_t>(pos[i]) * head_dim;
    for (int h = 0; h < n_heads; ++h) {
      float* p = x + i * ld + static_cast<int64_t>(h) * head_dim;
      if (!vectors) {
        rope_head(p, half, cs, pairs);
        continue;
      }
      float second[kRopeMaxHalf];  // the upper half must not overwrite pairs not yet read
      float* upper = interleaved ? second : p + half;
      for (int j = 0; j < half; j += S::kLanes) {
        Vec c, s, x0, x1;
        S::load_pairs(cs + 2 * j, &c, &s);
        if (interleaved) S::load_pairs(p + 2 * j, &x0, &x1);
        else x0 = S::load(p + j), x1 = S::load(p + half + j);
        S::store(p + j, S::fnma(x1, s, x0 * c));
        S::store(upper + j, S::fma(x0, s, x1 * c));
      }
      if (interleaved) memcpy(p + half, second, sizeof(float) * half);
    }
  }
}

// The entries that are the same code for every S. The row tile is MR, the column tile NV vectors.
template <class S, int MR, int NV>
inline void set_simd_entries(LinearKernels* t) {
  using Gemm = GemmF32<S, MR, NV>;
  set_gemm(t, {MR, Gemm::NR, Gemm::pack_bytes, Gemm::pack, Gemm::scratch_bytes, Gemm::gemm});
  t->dequant_row = simd_dequant_row<S>;
  t->rmsnorm = simd_rmsnorm<S>;
  t->add = simd_add<S>;
  t->swiglu = simd_swiglu<S>;
  t->geglu = simd_geglu<S>;
  t->clamped_swiglu = simd_clamped_swiglu<S>;
  t->sigmoid_gate = simd_sigmoid_gate<S>;
  t->softcap = simd_softcap<S>;
  t->rope = simd_rope<S>;
}

}  // namespace
}  // namespace riffle::cpu
