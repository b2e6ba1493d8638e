// TileProduct for compute capability 9.0: two warpgroups by wgmma, each 64 x 128 results. Two CTAs
// share a multiprocessor, so one computes while the other waits for its operands.
#pragma once
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tile_product.cuh"

namespace riffle::cuda {

struct HopperProduct : TileSizes {
  static constexpr int kWarpgroups = 2, kThreads = 128 * kWarpgroups;
  static constexpr int kAlignment = 1024;  // bytes; swizzled rows need it
  static constexpr int kSharedBytes = kStages * kStageBytes + kAlignment;

  // Does the same as TileProduct::multiply.
  template <bool kBf16, class F>
  __device__ static void multiply(const TileRows& a, const TileRows& w, int64_t cols,
                                  unsigned char* shared, F&& f);
};

#if __CUDA_ARCH__ >= 900

template <bool kBf16, class F>
__device__ __forceinline__ void HopperProduct::multiply(const TileRows& a, const TileRows& w,
                                                        int64_t cols, unsigned char* shared,
                                                        F&& f) {
  const int thread = static_cast<int>(threadIdx.x), group = thread / 128;
  const TileStages<kThreads> stages(
      a, w, cols, (shared_address(shared) + kAlignment - 1) / kAlignment * kAlignment);

  const bool has_rows = group * 64 < a.n;
  float c[64] = {};
  for (int step = 0; step < stages.steps; ++step) {
    cp_async_wait<kStages - 2>();
    wgmma_wait<0>();
    fence_async();    // wgmma reads what cp.async wrote through another proxy
    __syncthreads();  // both warpgroups have read the stage that is loaded next
    const uint32_t at = stages.at(step);
    if (has_rows) {
      const uint64_t rows = matrix_descriptor(at + group * 64 * kRowBytes, 16),
                     columns = matrix_descriptor(at + kTileBytes, 16);
      pin(c);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kCols / 16; ++k) {
        const uint64_t ahead = k * 32 >> 4;  // 16 columns take 32 bytes
        if constexpr (kBf16) wgmma_shared_bf16(c, rows + ahead, columns + ahead, 1);
        else wgmma_shared(c, rows + ahead, columns + ahead, 1);
      }
      wgmma_commit();
    }
    stages.load(step + kStages - 1);
  }
  wgmma_wait<0>();
  pin(c);

  const int lane = thread % 32, first = group * 64 + thread % 128 / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + 8 * half;
    if (row >= a.n) continue;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const int col = 8 * j + lane % 4 * 2;
      if (col < w.n) f(row, col, c[4 * j + 2 * half], c[4 * j + 2 * half + 1]);
    }
  }
}

#endif

}  // namespace riffle::cuda
