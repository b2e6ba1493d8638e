// The product of a prompt's rows with the matrices of their experts, many experts in one launch. A
// chunk of a prompt gives each of many experts few rows; a launch for each would leave the device
// waiting for the host. A CTA has a tile of rows of one expert and 128 rows of its matrix.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/tile_product.cuh"

namespace riffle::cuda {
namespace {

static_assert(kExpertTileRows == TileProduct::kRows);

struct Params {
  const uint16_t *a, *w;
  const float* bias;
  const ExpertTile* tiles;
  int64_t cols, rows;  // rows: of each matrix
  void* out;
  int first_expert;
  WType out_type;
};

__device__ __forceinline__ void store_two(void* out, WType type, int64_t at, float x, float y) {
  if (type == WType::F32) {
    *reinterpret_cast<float2*>(static_cast<float*>(out) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(out) + at) = pack_16_bits(type, x, y);
  }
}

template <bool kBf16>
__global__ void __launch_bounds__(TileProduct::kThreads, 2)
    prompt_product_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) unsigned char shared[];
  const ExpertTile tile = p.tiles[blockIdx.y];
  // column: of the results.
  const int64_t column = static_cast<int64_t>(blockIdx.x) * TileProduct::kRows,
                matrix = static_cast<int64_t>(tile.expert - p.first_expert) * p.rows;
  const TileRows a = {p.a + tile.first * p.cols, p.cols, tile.n},
                 w = {p.w + (matrix + column) * p.cols, p.cols,
                      static_cast<int>(
                          min(static_cast<int64_t>(TileProduct::kRows), p.rows - column))};
  tile_product<kBf16>(a, w, p.cols, shared, [&](int row, int col, float x, float y) {
    float2 b = {};
    if (p.bias) b = *reinterpret_cast<const float2*>(p.bias + tile.expert * p.rows + column + col);
    store_two(p.out, p.out_type, (tile.first + row) * p.rows + column + col, x + b.x, y + b.y);
  });
#endif
}

}  // namespace

bool prompt_product_supported(WType type, int64_t rows, int64_t cols, const DeviceLimits& limits) {
  return (type == WType::F16 || type == WType::BF16) && limits.compute >= 80 &&
         limits.smem_per_block >= TileProduct::kSharedBytes && rows % 2 == 0 && cols % 8 == 0;
}

Status prompt_product(const PromptProduct& a, const DeviceLimits& limits, cudaStream_t stream) {
  if (!prompt_product_supported(a.w.type, a.rows, a.w.cols, limits)) return cudaErrorNotSupported;
  if (a.n_tiles < 1 || a.n_tiles > 65535 || a.rows < 1 || a.w.cols < 1 || a.first_expert < 0 ||
      a.out_type > WType::BF16)
    return cudaErrorInvalidValue;
  using T = TileProduct;
  const auto kernel =
      a.w.type == WType::BF16 ? prompt_product_kernel<true> : prompt_product_kernel<false>;
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           T::kSharedBytes);
      status != cudaSuccess)
    return status;
  Params p;
  p.a = static_cast<const uint16_t*>(a.a), p.w = static_cast<const uint16_t*>(a.w.data);
  p.bias = a.bias, p.tiles = a.tiles, p.cols = a.w.cols, p.rows = a.rows, p.out = a.out;
  p.first_expert = a.first_expert, p.out_type = a.out_type;
  const dim3 grid(static_cast<unsigned>((a.rows + T::kRows - 1) / T::kRows),
                  static_cast<unsigned>(a.n_tiles));
  kernel<<<grid, T::kThreads, T::kSharedBytes, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
