// Products of prompts, for any instruction set and any type of weights: the loops over W, the
// activations and their columns. Two template parameters hold the differences:
//
// Panel: some columns of some rows of W, as the products read them.
//   kCols, kDepth          the most rows and columns of W in a panel
//   kTogether              panels filled before each pass over the activations
//   takes(type)            whether it can hold weights of a type
//   bytes(k)               size of a panel of W with k columns
//   fill<type>(w, row_bytes, rows, k0, k1, panel)
//                          columns [k0, k1) of rows that begin at w, as zeros beyond `rows`
// Micro: products with a panel.
//   kRows                  rows of activations in a tile
//   kPackRows              packing can be cut at multiples of this many rows
//   kScratch               bytes that it needs besides the panels
//   pack_bytes, pack       as in GemmKernels
//   Micro(packed, m, k, scratch)
//   tile<type>(i, k0, k1, panel, c, ldc, rows, cols)
//                          sets c[rows][cols] to the products of the rows from i on with columns
//                          [k0, k1), or adds them if k0 > 0
#pragma once
#include "kernels/cpu/linear/linear_common.h"

namespace riffle::cpu {
namespace {

template <class Panel, class Micro>
struct Gemm {
  static constexpr int kRows = Micro::kRows, kCols = Panel::kCols, kTogether = Panel::kTogether;

  static size_t scratch_bytes(int64_t k) {
    return static_cast<size_t>(kTogether * Panel::bytes(k) + Micro::kScratch);
  }

  // Columns are cut first: a part of the activations that fits the L2 cache is multiplied by all
  // rows of W before the next part. Products wait for arithmetic, so the weights of the next panels
  // are prefetched meanwhile, some rows before each tile.
  template <WType T>
  static void run(const uint8_t* w, int64_t k, int64_t r0, int64_t r1, const void* packed,
                  int64_t m, float* c, int64_t ldc, uint8_t* panels) {
    constexpr int64_t kStep = kTogether * kCols;  // rows of W in the panels
    const int64_t row_bytes = bytes_of_row(T, k), panel_bytes = Panel::bytes(k);
    const int64_t tiles = (m + kRows - 1) / kRows;
    const Micro micro(packed, m, k, panels + kTogether * panel_bytes);
    for (int64_t k0 = 0; k0 < k; k0 += Panel::kDepth) {
      const int64_t k1 = least(k0 + Panel::kDepth, k);
      for (int64_t first = r0; first < r1; first += kStep) {
        const int64_t last = least(first + kStep, r1);
        uint8_t* panel = panels;
        for (int64_t r = first; r < last; r += kCols, panel += panel_bytes)
          Panel::template fill<T>(w + r * row_bytes, row_bytes,
                                  static_cast<int>(least(kCols, last - r)), k0, k1, panel);
        const int64_t next_k = last < r1 ? k0 : k1, next = last < r1 ? last : r0;
        const int64_t next_rows = next_k < k ? least(kStep, r1 - next) : 0;
        const int64_t next_bytes = bytes_of_row(T, least(Panel::kDepth, k - next_k));
        const uint8_t* const next_w = w + next * row_bytes + bytes_of_row(T, next_k);
        const int64_t pieces = tiles * ((last - first + kCols - 1) / kCols);
        int64_t piece = 0;
        for (int64_t i = 0; i < m; i += kRows) {
          panel = panels;
          for (int64_t r = first; r < last; r += kCols, panel += panel_bytes, ++piece) {
            const int64_t end = next_rows * (piece + 1) / pieces;
            for (int64_t of_next = next_rows * piece / pieces; of_next < end; ++of_next)
              fetch(next_w + of_next * row_bytes, next_bytes);
            micro.template tile<T>(i, k0, k1, panel, c + i * ldc + r, ldc,
                                   static_cast<int>(least(kRows, m - i)),
                                   static_cast<int>(least(kCols, last - r)));
          }
        }
      }
    }
  }

  // Prefetches into the L2 cache.
  static void fetch(const uint8_t* p, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at, 0, 2);
  }

  static void run_any(WType type, const void* w, int64_t k, int64_t r0, int64_t r1,
                      const void* packed, int64_t m, float* c, int64_t ldc, void* scratch) {
    with_type(type, [&]<WType T>() {
      if constexpr (Panel::takes(T))
        run<T>(static_cast<const uint8_t*>(w), k, r0, r1, packed, m, c, ldc,
               static_cast<uint8_t*>(scratch));
    });
  }

  static constexpr GemmKernels kKernels = {Micro::kPackRows, kCols,         Micro::pack_bytes,
                                           Micro::pack,      scratch_bytes, run_any};
  // Sets the products of all types that a panel can hold.
  static void set(GemmKernels (&kernels)[kNumDTypes]) {
    for (int type = 0; type < kNumDTypes; ++type)
      if (Panel::takes(static_cast<WType>(type))) kernels[type] = kKernels;
  }
};

// Sums of a tile of MR rows and NV vectors in registers, loaded from c and stored there.
template <class S, int MR, int NV>
struct TileSums {
  using Vec = typename S::Vec;
  static constexpr int L = S::kLanes;

  static inline __attribute__((always_inline)) Vec load(const float* c, int cols) {
    return cols >= L ? S::load(c) : cols > 0 ? S::load_n(c, cols) : S::set1(0);
  }
  static inline __attribute__((always_inline)) void store(float* c, Vec x, int cols) {
    if (cols >= L) S::store(c, x);
    else if (cols > 0) S::store_n(c, x, cols);
  }
  static inline __attribute__((always_inline)) void begin(Vec (&sum)[MR][NV], const float* c,
                                                          int64_t ldc, int rows, int cols,
                                                          bool more) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[i][v] = S::set1(0);
    if (!more) return;
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        if (i < rows) sum[i][v] = load(c + i * ldc + v * L, cols - v * L);
  }
  static inline __attribute__((always_inline)) void end(const Vec (&sum)[MR][NV], float* c,
                                                        int64_t ldc, int rows, int cols) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v)
        if (i < rows) store(c + i * ldc + v * L, sum[i][v], cols - v * L);
  }
  // Prefetches the rows of c, which are pages apart.
  static inline __attribute__((always_inline)) void fetch(const float* c, int64_t ldc, int rows) {
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
      for (int v = 0; v < NV && i < rows; ++v) __builtin_prefetch(c + i * ldc + v * L, 1);
  }
};

}  // namespace
}  // namespace riffle::cpu
