// The kernel of expand_latents.cu and expand_latents_hopper.cu.
#pragma once
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/tile_product.cuh"

namespace riffle::cuda::expand_latents_parts {

// CTA (x, y, h): tokens of tile y of head h. The last x copies the rotated keys and writes zeros
// behind keys and values; the others multiply.
//
// Product: TileProduct or HopperProduct.
template <class Product>
__global__ void __launch_bounds__(Product::kThreads, 2)
    kernel(const __grid_constant__ ExpandLatents a) {
#if __CUDA_ARCH__ >= 800
  using T = Product;
  extern __shared__ __align__(128) unsigned char shared[];
  const int64_t first = a.first + static_cast<int64_t>(blockIdx.y) * T::kRows, head = blockIdx.z;
  const int n = static_cast<int>(min(static_cast<int64_t>(T::kRows), a.last - first));
  const int d = a.head_dim;
  const auto* const latents = static_cast<const uint16_t*>(a.latents);
  auto* const out = static_cast<uint16_t*>(a.out) + head * a.n_blocks * a.block_size * 2 * d;
  const auto at = [&](int row, bool value) {
    const uint32_t t = static_cast<uint32_t>(first) + row, size = a.block_size;
    return out + ((2 * static_cast<int64_t>(t / size) + value) * size + t % size) * d;
  };
  if (blockIdx.x + 1 == gridDim.x) {
    const int width = d - a.nope_dim;
    for (int i = static_cast<int>(threadIdx.x); i < n * width; i += T::kThreads) {
      const int row = i / width, c = i % width;
      at(row, false)[a.nope_dim + c] =
          c < kLatentRopeDim ? latents[(first + row) * kLatentDim + kLatentValueDim + c] : 0;
    }
    const int rest = d - a.value_dim;
    for (int i = static_cast<int>(threadIdx.x); i < n * rest; i += T::kThreads)
      at(i / rest, true)[a.value_dim + i % rest] = 0;
    return;
  }
  const int rows = a.nope_dim + a.value_dim, column = static_cast<int>(blockIdx.x) * T::kRows;
  const auto* const w =
      static_cast<const uint16_t*>(a.matrices) + (head * rows + column) * kLatentValueDim;
  const TileRows x = {latents + first * kLatentDim, kLatentDim, n},
                 y = {w, kLatentValueDim, min(T::kRows, rows - column)};
  T::template multiply<false>(
      x, y, kLatentValueDim, shared, [&](int row, int col, float low, float high) {
        const int c = column + col;
        const bool value = c >= a.nope_dim;
        *reinterpret_cast<uint32_t*>(at(row, value) + (value ? c - a.nope_dim : c)) =
            pack_16_bits(WType::F16, low, high);
      });
#endif
}

template <class Product>
Status launch(const ExpandLatents& a, cudaStream_t stream) {
  if (Status status = cudaFuncSetAttribute(
          kernel<Product>, cudaFuncAttributeMaxDynamicSharedMemorySize, Product::kSharedBytes);
      status != cudaSuccess)
    return status;
  const auto tiles = [](int64_t n) {
    return static_cast<unsigned>((n + Product::kRows - 1) / Product::kRows);
  };
  const dim3 grid(tiles(a.nope_dim + a.value_dim) + 1, tiles(a.last - a.first),
                  static_cast<unsigned>(a.n_heads));
  kernel<Product><<<grid, Product::kThreads, Product::kSharedBytes, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace riffle::cuda::expand_latents_parts
