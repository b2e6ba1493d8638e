// Products in f32 for any vector instruction set S (kernels/cpu/simd/simd.h lists the members of a
// set): for decode with weights of F32, F16 and BF16, and for prompts with weights of every type.
// Internal linkage throughout.
#pragma once
#include "kernels/cpu/linear/linear_gemm.h"
#include "kernels/cpu/linear/quants.h"
#include "kernels/cpu/simd/simd.h"

namespace riffle::cpu {
namespace {

// Decodes the values of a block with vectors of S. Each architecture has its own (linear_codes.h in
// its folder).
template <class S, WType T>
void decode_block(const uint8_t* b, float* out);

// Return kLanes weights of a row of F32, F16 or BF16 from column j on; j is a multiple of kLanes.
// weights_part: only the first n (1 <= n < kLanes) exist.
template <class S, WType T>
inline typename S::Vec weights(const uint8_t* row, int64_t j) {
  if constexpr (T == WType::F32) return S::load(reinterpret_cast<const float*>(row) + j);
  if constexpr (T == WType::F16) return S::load_f16(row + j * 2);
  if constexpr (T == WType::BF16) return S::load_bf16(row + j * 2);
}
template <class S, WType T>
inline typename S::Vec weights_part(const uint8_t* row, int64_t j, int64_t n) {
  constexpr int kSize = dtype_info(T).block_bytes;
  alignas(64) uint8_t buffer[S::kLanes * 4] = {};
  memcpy(buffer, row + j * kSize, n * kSize);
  return weights<S, T>(buffer, 0);
}

// ---- decode ----

inline size_t f32_act_bytes(int64_t cols) { return static_cast<size_t>(round_up(cols * 4, 64)); }
inline void f32_act_encode(const float* x, int64_t cols, void* act) {
  memcpy(act, x, sizeof(float) * cols);
  memset(static_cast<float*>(act) + cols, 0, f32_act_bytes(cols) - sizeof(float) * cols);
}

// Multiplies one row of F32, F16 or BF16 by N activation vectors, in four chains of sums that are
// the same for every N.
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
    __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8192, 0, 2);
    if (T == WType::F32 || L == 16)
      __builtin_prefetch(row + j * (T == WType::F32 ? 4 : 2) + 8256, 0, 2);
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

// Not inlined: inside its callers the loop would run out of registers.
template <class S, WType T, int N>
__attribute__((noinline)) void dot_rows(const uint8_t* w, int64_t row_bytes, int64_t cols,
                                        int64_t r0, int64_t r1, const float* x, int64_t stride,
                                        float* y, int64_t ldy) {
  for (int64_t r = r0; r < r1; ++r)
    dot_row<S, T, N>(w + r * row_bytes, cols, x, stride, y + r, ldy);
}

template <class S, WType T, int kMost>
inline void gemv_f32(const void* w, int64_t cols, int64_t r0, int64_t r1, const void* acts,
                     int64_t n, float* y, int64_t ldy) {
  const int64_t row_bytes = bytes_of_row(T, cols),
                stride = static_cast<int64_t>(f32_act_bytes(cols) / 4);
  for_groups<kMost>(row_bytes, r0, r1, n, [&]<int N>(int64_t i, int64_t r, int64_t end) {
    dot_rows<S, T, N>(static_cast<const uint8_t*>(w), row_bytes, cols, r, end,
                      static_cast<const float*>(acts) + i * stride, stride, y + i * ldy, ldy);
  });
}

// ---- prefill: each c is one chain of FMAs in the order of k ----
// packed a: [tile of MR rows][k][MR]; panel of W: [kDepth][NV * kLanes].

template <class S, int NV>
struct PanelF32 {
  using Vec = typename S::Vec;
  static constexpr int L = S::kLanes, kCols = NV * L, kTogether = 1;
  static constexpr int64_t kDepth = 512;  // 32 KB of an AVX2 panel, which fit the L1 cache
  static constexpr bool takes(WType) { return true; }
  static int64_t bytes(int64_t k) { return least(round_up(k, L), kDepth) * kCols * 4; }

  template <WType T>
  static void fill(const uint8_t* w, int64_t row_bytes, int rows, int64_t k0, int64_t k1,
                   uint8_t* at) {
    auto* const panel = reinterpret_cast<float*>(at);
    for (int v = 0; v < NV; ++v)
      if constexpr (is_quantised(T)) fill_blocks<T>(w, row_bytes, rows, v, k0, k1, panel);
      else fill_values<T>(w, row_bytes, rows, v, k0, k1, panel);
  }

  // Whole blocks of W's rows are decoded first.
  template <WType T>
  static void fill_blocks(const uint8_t* w, int64_t row_bytes, int rows, int v, int64_t k0,
                          int64_t k1, float* panel) {
    constexpr DTypeInfo info = dtype_info(T);
    alignas(64) float values[L][info.block_values];
    for (int64_t p = k0; p < k1; p += info.block_values) {
      for (int r = 0; r < L; ++r) {
        if (v * L + r < rows)
          decode_block<S, T>(w + (v * L + r) * row_bytes + p / info.block_values * info.block_bytes,
                             values[r]);
        else memset(values[r], 0, sizeof values[r]);
      }
      for (int j = 0; j < info.block_values; j += L) {
        Vec block[L];
        for (int r = 0; r < L; ++r) block[r] = S::load(values[r] + j);
        S::transpose(block);
        for (int r = 0; r < L; ++r) S::store(panel + (p - k0 + j + r) * kCols + v * L, block[r]);
      }
    }
  }
  template <WType T>
  static void fill_values(const uint8_t* w, int64_t row_bytes, int rows, int v, int64_t k0,
                          int64_t k1, float* panel) {
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
      for (int r = 0; r < some; ++r) S::store(panel + (p - k0 + r) * kCols + v * L, block[r]);
    }
  }
};

template <class S, int MR, int NV>
struct MicroF32 {
  using Vec = typename S::Vec;
  using Sums = TileSums<S, MR, NV>;
  static constexpr int L = S::kLanes, NR = NV * L, kRows = MR, kPackRows = MR, kScratch = 0;

  static size_t pack_bytes(int64_t m, int64_t k) {
    return static_cast<size_t>(round_up(round_up(m, MR) * k * 4, 64));
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

  const float* packed;
  int64_t k;
  MicroF32(const void* packed, int64_t, int64_t k, void*)
      : packed(static_cast<const float*>(packed)), k(k) {}

  template <WType>
  void tile(int64_t i, int64_t k0, int64_t k1, const uint8_t* panel, float* c, int64_t ldc,
            int rows, int cols) const {
    multiply(k1 - k0, packed + i * k + k0 * MR, reinterpret_cast<const float*>(panel), c, ldc, rows,
             cols, k0 > 0);
  }
  static __attribute__((noinline)) void multiply(int64_t depth, const float* a, const float* panel,
                                                 float* c, int64_t ldc, int rows, int cols,
                                                 bool more) {
    Vec acc[MR][NV];
    Sums::begin(acc, c, ldc, rows, cols, more);
    for (int64_t p = 0; p < depth; ++p) {
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
    Sums::end(acc, c, ldc, rows, cols);
  }
};

template <class S, int MR, int NV>
using GemmF32 = Gemm<PanelF32<S, NV>, MicroF32<S, MR, NV>>;

}  // namespace
}  // namespace riffle::cpu
