// The kernel of prompt_product.cu and prompt_product_hopper.cu. A CTA has a tile of rows of one
// expert and 128 rows of its matrix.
#pragma once
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/tile_product.cuh"

namespace riffle::cuda::prompt_product_parts {

static_assert(kExpertTileRows == TileSizes::kRows);

struct Params {
  const uint16_t *a, *w;
  const float* bias;
  const ExpertTile* tiles;
  int64_t cols, rows;  // rows: of each matrix
  void* out;
  int first_used;
  WType out_type;
};

__device__ __forceinline__ void store_two(void* out, WType type, int64_t at, float x, float y) {
  if (type == WType::F32) {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out) + at) = pack_16_bits(type, x, y);
  }
}

// Product: TileProduct or HopperProduct.
template <class Product, bool kBf16>
__global__ void __launch_bounds__(Product::kThreads, 2) kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const ExpertTile tile = p.tiles[blockIdx.y];
  // column: of the results.
  const int64_t column = static_cast<int64_t>(blockIdx.x) * Product::kRows,
                matrix = p.first_used < 0 ? tile.expert : tile.used - p.first_used;
  const TileRows a = {p.a + tile.first * p.cols, p.cols, tile.n},
                 w = {p.w + (matrix * p.rows + column) * p.cols, p.cols,
                      static_cast<int>(min(static_cast<int64_t>(Product::kRows), p.rows - column))};
  Product::template multiply<kBf16>(a, w, p.cols, shared, [&](int row, int col, float x, float y) {
    float2 b = {};
    if (p.bias) b = *reinterpret_cast<const float2*>(p.bias + tile.expert * p.rows + column + col);
    store_two(p.out, p.out_type, (tile.first + row) * p.rows + column + col, x + b.x, y + b.y);
  });
#endif
}

template <class Product>
Status launch(const PromptProduct& a, cudaStream_t stream) {
  const auto of_type = a.w.type == WType::BF16 ? kernel<Product, true> : kernel<Product, false>;
  if (Status status = cudaFuncSetAttribute(of_type, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           Product::kSharedBytes);
      status != cudaSuccess)
    return status;
  Params p;
  p.a = static_cast<const uint16_t*>(a.a), p.w = static_cast<const uint16_t*>(a.w.data);
  p.bias = a.bias, p.tiles = a.tiles, p.cols = a.w.cols, p.rows = a.rows, p.out = a.out;
  p.first_used = a.first_used, p.out_type = a.out_type;
  const dim3 grid(static_cast<unsigned>((a.rows + Product::kRows - 1) / Product::kRows),
                  static_cast<unsigned>(a.n_tiles));
  of_type<<<grid, Product::kThreads, Product::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace riffle::cuda::prompt_product_parts
