// The product of two tiles of 128 rows by tensor cores, for kernels that multiply many small
// matrices in one launch. Compute capability 8.0 and later; tile_product_hopper.cuh has the same
// for 9.0 alone.
//
// Operands pass through shared memory in kStages stages. A result does not depend on its tile: its
// sum goes over the columns in one order.
#pragma once
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda {

// Tile sizes of TileProduct and HopperProduct.
struct TileSizes {
  static constexpr int kRows = 128, kCols = 64, kStages = 3;  // kCols: of a stage
  static constexpr int kPieces = kCols / 8;                   // 16-byte pieces in a row of a stage
  static constexpr int kRowBytes = 2 * kCols, kTileBytes = kRows * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
};
static_assert(TileSizes::kPieces == 8, "the swizzle exchanges eight pieces");

// Rows of a matrix of 16-bit values, row-major. Each row begins at a multiple of 16 bytes.
struct TileRows {
  const uint16_t* data;
  int64_t ld;  // values from row to row
  int n;       // rows; the others of a tile count as zeros
};

#if __CUDA_ARCH__ >= 800

// A thread's part of a tile: piece `thread % 8` of every kStep-th row. No address behind the rows
// and the columns is read.
template <int kThreads>
struct TileLoader {
  using T = TileSizes;
  static constexpr int kStep = kThreads / T::kPieces, kEach = T::kRows / kStep;
  TileRows rows;
  int64_t cols;
  int row = static_cast<int>(threadIdx.x) / T::kPieces,
      piece = static_cast<int>(threadIdx.x) % T::kPieces;
  __device__ __forceinline__ void load(int64_t k, uint32_t to) const {
    const int64_t col = k + 8 * piece;
    const uint16_t* from = rows.data + row * rows.ld + col;
    const bool inside = col < cols;
    // Rows of a thread differ by multiples of 8, which swizzled() does not tell apart.
    const uint32_t at = to + swizzled<T::kRowBytes>(row, piece);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool valid = inside && row + i * kStep < rows.n;
      cp_async16_or_zero(at + i * kStep * T::kRowBytes,
                         valid ? from + i * kStep * rows.ld : rows.data, valid);
    }
  }
};

// The stages in shared memory, from `base` on, through which both tiles pass.
template <int kThreads>
struct TileStages {
  using T = TileSizes;
  TileLoader<kThreads> a, w;
  uint32_t base;
  int steps;
  // Begins to load the first stages.
  __device__ __forceinline__ TileStages(const TileRows& a_rows, const TileRows& w_rows,
                                        int64_t cols, uint32_t shared)
      : a{a_rows, cols},
        w{w_rows, cols},
        base(shared),
        steps(static_cast<int>((cols + T::kCols - 1) / T::kCols)) {
    for (int s = 0; s < T::kStages - 1; ++s) load(s);
  }
  __device__ __forceinline__ uint32_t at(int step) const {
    return base + step % T::kStages * T::kStageBytes;
  }
  // Commits a group of copies, which is empty behind the last step.
  __device__ __forceinline__ void load(int step) const {
    if (step < steps) {
      a.load(static_cast<int64_t>(step) * T::kCols, at(step));
      w.load(static_cast<int64_t>(step) * T::kCols, at(step) + T::kTileBytes);
    }
    cp_async_commit();
  }
};

template <bool kBf16>
__device__ __forceinline__ void tile_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kBf16) mma_bf16(c, a, b0, b1);
  else mma_16816(c, a, b0, b1);
}

// The fragments of 16 columns: of 64 rows of a (m_tiles of four groups of 16 exist) and of 64 rows
// of w.
struct TileFragments {
  uint32_t a[4][4], b[4][4];
  __device__ __forceinline__ void load(uint32_t a_rows, uint32_t b_rows, int step, int m_tiles) {
    // The same holds for the rows of a lane.
    const int lane = static_cast<int>(threadIdx.x) % 32, row7 = lane & 7;
    const uint32_t a_at = a_rows + (((2 * step + lane / 16) ^ row7) << 4);
    const uint32_t b_at = b_rows + (((2 * step + lane / 8 % 2) ^ row7) << 4);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < m_tiles) ldmatrix4(a[i], a_at + i * 16 * TileSizes::kRowBytes);
#pragma unroll
    for (int j = 0; j < 4; ++j) ldmatrix4(b[j], b_at + j * 16 * TileSizes::kRowBytes);
  }
};

#endif

struct TileProduct : TileSizes {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;  // two by two, each 64 x 64 results
  static constexpr int kSharedBytes = kStages * kStageBytes;
  // Calls f(row of a, row of w, x, y) for pairs of results: x is the product of these rows and y
  // that of the next row of w. `cols` is a multiple of 8, and w.n is even. All kThreads threads of
  // a CTA call it, with kSharedBytes of shared memory.
  template <bool kBf16, class F>
  __device__ static void multiply(const TileRows& a, const TileRows& w, int64_t cols,
                                  unsigned char* shared, F&& f);
};

#if __CUDA_ARCH__ >= 800

template <bool kBf16, class F>
__device__ __forceinline__ void TileProduct::multiply(const TileRows& a, const TileRows& w,
                                                      int64_t cols, unsigned char* shared, F&& f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp / 2 * 64, warp_n = warp % 2 * 64;
  const TileStages<kThreads> stages(a, w, cols, shared_address(shared));

  // Groups of 16 rows of this warp that exist.
  const int m_tiles = max(0, min(4, (a.n - warp_m + 15) / 16));
  // ldmatrix's rows: those of a in quarters (rows, columns) = (0, 0), (8, 0), (0, 8), (8, 8), those
  // of w in (0, 0), (0, 8), (8, 0), (8, 8).
  const uint32_t a_row = static_cast<uint32_t>(warp_m + lane % 16) * kRowBytes,
                 b_row = kTileBytes +
                         static_cast<uint32_t>(warp_n + lane % 8 + lane / 16 * 8) * kRowBytes;
  float c[4][8][4] = {};
  for (int step = 0; step < stages.steps; ++step) {
    cp_async_wait<kStages - 2>();
    __syncthreads();
    stages.load(step + kStages - 1);
    const uint32_t at = stages.at(step);
    TileFragments fragments[2];
    fragments[0].load(at + a_row, at + b_row, 0, m_tiles);
#pragma unroll
    for (int s = 0; s < kCols / 16; ++s) {
      if (s + 1 < kCols / 16) fragments[(s + 1) % 2].load(at + a_row, at + b_row, s + 1, m_tiles);
      const TileFragments& now = fragments[s % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i >= m_tiles) continue;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          tile_mma<kBf16>(c[i][2 * j], now.a[i], now.b[j][0], now.b[j][1]);
          tile_mma<kBf16>(c[i][2 * j + 1], now.a[i], now.b[j][2], now.b[j][3]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_m + 16 * i + lane / 4 + 8 * half;
      if (row >= a.n) continue;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int col = warp_n + 8 * j + lane % 4 * 2;
        if (col < w.n) f(row, col, c[i][j][2 * half], c[i][j][2 * half + 1]);
      }
    }
  }
}

#endif

}  // namespace riffle::cuda
