// Linear kernels for any vector type V (linear_avx2.cpp: 8 floats, linear_avx512.h: 16). Internal
// linkage throughout.
//
// V provides: F (a vector of W floats), zero, set1, load, load_part (the first n lanes, others 0),
// store, store_part, load_f16, load_bf16, load_i8 (W weights of that form as f32), load_pairs (2W
// values into evens and odds), add, mul, div, fma(a,b,c) = a*b+c, fnma = c-a*b, min/max (the second
// operand where one is NaN), abs, is-negative select, round, ldexp(v, n) = v*2^n with gradual
// underflow, sum (fixed order), sum_squares (in double), transpose (W vectors).
#pragma once
#include "kernels/cpu/linear/quants.h"

namespace riffle::cpu {
namespace {

// W weights of a row from column j on, as f32; not of the types with 4 to 6 bits. j is a multiple
// of W. part: only the first n (1 <= n < W) exist.
template <class V, WType T>
inline typename V::F weights(const uint8_t* row, int64_t j) {
  if constexpr (T == WType::F32) return V::load(reinterpret_cast<const float*>(row) + j);
  if constexpr (T == WType::F16) return V::load_f16(row + j * 2);
  if constexpr (T == WType::BF16) return V::load_bf16(row + j * 2);
  if constexpr (T == WType::Q8_0) {
    const uint8_t* block = row + j / kQ8 * kQ8Bytes;
    return V::mul(V::set1(V::scale_f16(block)), V::load_i8(block + 2 + j % kQ8));
  }
}
template <class V, WType T>
inline typename V::F weights_part(const uint8_t* row, int64_t j, int64_t n) {
  constexpr int kSize = T == WType::F32 ? 4 : 2;  // Q8_0 rows are whole blocks and never come here
  alignas(64) uint8_t buffer[V::W * 4] = {};
  memcpy(buffer, row + j * kSize, n * kSize);
  if constexpr (T == WType::F32) return V::load(reinterpret_cast<const float*>(buffer));
  if constexpr (T == WType::F16) return V::load_f16(buffer);
  return V::load_bf16(buffer);
}

// ---- decode ----

inline size_t f32_act_bytes(int64_t cols) { return static_cast<size_t>(round_up(cols * 4, 64)); }
inline void f32_act_prepare(const float* x, int64_t cols, void* act) {
  memcpy(act, x, sizeof(float) * cols);
  memset(static_cast<float*>(act) + cols, 0, f32_act_bytes(cols) - sizeof(float) * cols);
}

// One row of F32, F16 or BF16 with N activation vectors. Four chains of sums, the same whatever N.
template <class V, WType T, int N>
inline void dot_row(const uint8_t* row, int64_t cols, const float* x, int64_t stride, float* y,
                    int64_t ldy) {
  constexpr int W = V::W;
  typename V::F acc[N][4];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) acc[i][u] = V::zero();
  int64_t j = 0;
  for (; j + 4 * W <= cols; j += 4 * W) {
    __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8192);
    if (T == WType::F32 || W == 16) __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8256);
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      const typename V::F w = weights<V, T>(row, j + u * W);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i)
        acc[i][u] = V::fma(w, V::load(x + i * stride + j + u * W), acc[i][u]);
    }
  }
  for (; j < cols; j += W) {
    const typename V::F w =
        j + W <= cols ? weights<V, T>(row, j) : weights_part<V, T>(row, j, cols - j);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) acc[i][0] = V::fma(w, V::load(x + i * stride + j), acc[i][0]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
    y[i * ldy] = V::sum(V::add(V::add(acc[i][0], acc[i][1]), V::add(acc[i][2], acc[i][3])));
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

template <class V, WType T>
struct Dots {
  template <int N>
  struct Group {
    static void row(const uint8_t* row, int64_t cols, const float* x, int64_t stride, float* y,
                    int64_t ldy) {
      dot_row<V, T, N>(row, cols, x, stride, y, ldy);
    }
  };
};

template <class V, WType T, int kMost>
inline void gemv_float(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
                       int64_t n, float* y, int64_t ldy) {
  for_rows<Dots<V, T>::template Group, kMost>(
      w, bytes_of_row(T, cols), cols, r0, r1, static_cast<const float*>(acts),
      static_cast<int64_t>(f32_act_bytes(cols) / 4), n, y, ldy);
}

// ---- prefill in f32: each c is one chain of FMAs in the order of k ----
// packed a: [tile of MR rows][k][MR]; panel of W in scratch: [kKChunk][NV*W].

constexpr int64_t kKChunk = 1024;  // columns of W in a panel, so that panels and scratch stay small

template <class V, int MR, int NV>
struct GemmF32 {
  using F = typename V::F;
  static constexpr int W = V::W, NR = NV * W;

  static size_t pack_bytes(int64_t m, int64_t k) {
    return static_cast<size_t>(round_up(round_up(m, MR) * k * 4, 64));
  }
  static size_t scratch_bytes(int64_t k) {
    return static_cast<size_t>(least(round_up(k, W), kKChunk) * NR * 4);
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

  // Types with 4 to 6 bits: whole blocks of W rows are decoded first.
  template <WType T>
  static void fill_panel_blocks(const uint8_t* w, int64_t row_bytes, int64_t rows, int64_t k0,
                                int64_t k1, float* panel) {
    constexpr DTypeInfo info = dtype_info(T);
    alignas(64) float values[W][info.block_values];
    for (int v = 0; v < NV; ++v)
      for (int64_t p = k0; p < k1; p += info.block_values) {
        for (int r = 0; r < W; ++r) {
          if (v * W + r < rows)
            dequant_block(T, w + (v * W + r) * row_bytes + p / info.block_values * info.block_bytes,
                          values[r]);
          else memset(values[r], 0, sizeof values[r]);
        }
        for (int j = 0; j < info.block_values; j += W) {
          F block[W];
          for (int r = 0; r < W; ++r) block[r] = V::load(values[r] + j);
          V::transpose(block);
          for (int r = 0; r < W; ++r) V::store(panel + (p - k0 + j + r) * NR + v * W, block[r]);
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
        for (int64_t p = k0; p < k1; p += W) {
          const int64_t some = least(W, k1 - p);
          F block[W];
          for (int r = 0; r < W; ++r) {
            const uint8_t* row = w + (v * W + r) * row_bytes;
            block[r] = v * W + r >= rows ? V::zero()
                       : some == W       ? weights<V, T>(row, p)
                                         : weights_part<V, T>(row, p, some);
          }
          V::transpose(block);
          for (int r = 0; r < some; ++r) V::store(panel + (p - k0 + r) * NR + v * W, block[r]);
        }
  }

  // c[0..rows)[0..cols) (+)= a . panel over kc values of k.
  static void tile(int64_t kc, const float* a, const float* panel, float* c, int64_t ldc, int rows,
                   int cols, bool more) {
    F acc[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) acc[i][v] = V::zero();
    if (more)
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v)
          if (i < rows && v * W < cols)
            acc[i][v] = cols - v * W >= W ? V::load(c + i * ldc + v * W)
                                          : V::load_part(c + i * ldc + v * W, cols - v * W);
    for (int64_t p = 0; p < kc; ++p) {
      F b[NV];
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) b[v] = V::load(panel + p * NR + v * W);
#pragma GCC unroll 16
      for (int i = 0; i < MR; ++i) {
        const F x = V::set1(a[p * MR + i]);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) acc[i][v] = V::fma(x, b[v], acc[i][v]);
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        if (i < rows && v * W < cols) {
          if (cols - v * W >= W) V::store(c + i * ldc + v * W, acc[i][v]);
          else V::store_part(c + i * ldc + v * W, cols - v * W, acc[i][v]);
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
    }
  }
};

// ---- rows ----

template <class V, WType T>
inline void dequant(const uint8_t* row, int64_t cols, float* dst) {
  int64_t j = 0;
  for (; j + V::W <= cols; j += V::W) V::store(dst + j, weights<V, T>(row, j));
  for (; j < cols; ++j) dst[j] = weight_at(T, row, j);
}
template <class V>
void simd_dequant_row(WType type, const void* w, int64_t cols, int64_t r, float* dst) {
  const uint8_t* row = static_cast<const uint8_t*>(w) + r * bytes_of_row(type, cols);
  switch (type) {
    case WType::F32: return dequant<V, WType::F32>(row, cols, dst);
    case WType::F16: return dequant<V, WType::F16>(row, cols, dst);
    case WType::BF16: return dequant<V, WType::BF16>(row, cols, dst);
    case WType::Q8_0: return dequant<V, WType::Q8_0>(row, cols, dst);
    default: return dequant_blocks(type, row, cols, dst);
  }
}

template <class V>
void simd_rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps,
                  float* out) {
  for (int64_t i = 0; i < n; ++i, x += dim, out += dim) {
    const double mean = V::sum_squares(x, dim) / static_cast<double>(dim);
    const float scale = static_cast<float>(1.0 / __builtin_sqrt(mean + eps));
    const typename V::F s = V::set1(scale);
    int64_t j = 0;
    for (; j + V::W <= dim; j += V::W)
      V::store(out + j, V::mul(V::mul(V::load(x + j), s), V::load(weight + j)));
    for (; j < dim; ++j) out[j] = x[j] * scale * weight[j];
  }
}

template <class V>
void simd_add(float* x, const float* y, int64_t count) {
  int64_t j = 0;
  for (; j + V::W <= count; j += V::W) V::store(x + j, V::add(V::load(x + j), V::load(y + j)));
  for (; j < count; ++j) x[j] += y[j];
}

// e^x for x <= 0 (NaN stays NaN): x = n ln2 + r, |r| <= ln2/2, Taylor to r^7 (truncation below 1e-8
// of the result).
template <class V>
inline typename V::F exp_nonpositive(typename V::F x) {
  using F = typename V::F;
  x = V::max(V::set1(-104.0f), x);  // e^-104 rounds to 0
  const F n = V::round(V::mul(x, V::set1(1.44269504f)));
  F r = V::fnma(n, V::set1(0.693145752f),
                x);  // ln2 in two parts; the first has 15 bits, so n times it is exact
  r = V::fnma(n, V::set1(1.42860677e-6f), r);
  F p = V::set1(1.0f / 5040);
  p = V::fma(p, r, V::set1(1.0f / 720));
  p = V::fma(p, r, V::set1(1.0f / 120));
  p = V::fma(p, r, V::set1(1.0f / 24));
  p = V::fma(p, r, V::set1(1.0f / 6));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::ldexp(p, n);
}

// silu(g) u with e = e^-|g|: g/(1+e) for g >= 0, g e/(1+e) below, so that nothing overflows;
// silu(-inf) = 0.
template <class V>
inline typename V::F silu_mul(typename V::F g, typename V::F u) {
  using F = typename V::F;
  const F e = exp_nonpositive<V>(V::negative_abs(g));
  const F below = V::mul(V::max(V::set1(-__FLT_MAX__), g), e);
  return V::mul(V::div(V::select_negative(g, below, g), V::add(V::set1(1.0f), e)), u);
}
template <class V>
void simd_swiglu(float* gate, const float* up, int64_t count) {
  int64_t j = 0;
  for (; j + V::W <= count; j += V::W)
    V::store(gate + j, silu_mul<V>(V::load(gate + j), V::load(up + j)));
  if (const int n = static_cast<int>(count - j))
    V::store_part(gate + j, n, silu_mul<V>(V::load_part(gate + j, n), V::load_part(up + j, n)));
}

template <class V>
void simd_rope(float* x, int64_t n, int64_t ld, int n_heads, int head_dim, const float* cos_sin,
               const int32_t* pos, bool interleaved) {
  using F = typename V::F;
  const int half = head_dim / 2;
  const bool vectors = half % V::W == 0 && half <= kRopeMaxHalf;
  for (int64_t i = 0; i < n; ++i) {
    const float* cs = cos_sin + static_cast<int64_t>(pos[i]) * head_dim;
    for (int h = 0; h < n_heads; ++h) {
      float* p = x + i * ld + static_cast<int64_t>(h) * head_dim;
      if (!vectors) {
        rope_head(p, half, cs, interleaved);
        continue;
      }
      float second[kRopeMaxHalf];  // the upper half must not overwrite pairs not yet read
      float* upper = interleaved ? second : p + half;
      for (int j = 0; j < half; j += V::W) {
        F c, s, x0, x1;
        V::load_pairs(cs + 2 * j, &c, &s);
        if (interleaved) V::load_pairs(p + 2 * j, &x0, &x1);
        else x0 = V::load(p + j), x1 = V::load(p + half + j);
        V::store(p + j, V::fnma(x1, s, V::mul(x0, c)));
        V::store(upper + j, V::fma(x0, s, V::mul(x1, c)));
      }
      if (interleaved) memcpy(p + half, second, sizeof(float) * half);
    }
  }
}

// The entries that are the same code for every V. The row tile is MR, the column tile NV vectors.
template <class V, int MR, int NV>
inline void set_simd_entries(LinearKernels* t) {
  using Gemm = GemmF32<V, MR, NV>;
  t->gemm_row_tile = MR;
  t->gemm_col_tile = Gemm::NR;
  t->gemm_pack_bytes = Gemm::pack_bytes;
  t->gemm_pack = Gemm::pack;
  t->gemm_scratch_bytes = Gemm::scratch_bytes;
  t->gemm = Gemm::gemm;
  t->dequant_row = simd_dequant_row<V>;
  t->rmsnorm = simd_rmsnorm<V>;
  t->add = simd_add<V>;
  t->swiglu = simd_swiglu<V>;
  t->rope = simd_rope<V>;
}

}  // namespace
}  // namespace riffle::cpu
