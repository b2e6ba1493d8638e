// Mean keys of key tiles (TileMeans).
#include <algorithm>

#include "kernels/common/agreed.h"
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {
namespace {

// A CTA makes one tile's mean; a thread takes every blockDim.x-th column.
__global__ void mean_kernel(const TileMeans a) {
  const int64_t tile = a.first + blockIdx.x, head = blockIdx.y;
  const int d = a.layout.head_dim, size = a.layout.block_size;
  const std::byte* from = a.blocks + head * a.n_blocks * a.layout.block_bytes;
  __half* to = static_cast<__half*>(a.out) + (head * a.stride + tile) * d;
  for (int j = static_cast<int>(threadIdx.x); j < d; j += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int t = 0; t < kKeyTile; t++) {
      const int64_t key = tile * kKeyTile + t;
      sum += kv_at(a.layout.type, from + key / size * a.layout.block_bytes, d, key % size, j);
    }
    to[j] = __float2half_rn(sum / kKeyTile);
  }
}

}  // namespace

Status tile_means(const TileMeans& a, cudaStream_t stream) {
  if (a.layout.type == KvType::Q8 || a.first < 0 || a.last > a.stride) return cudaErrorInvalidValue;
  if (a.last <= a.first) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(a.last - a.first), a.n_kv_heads);
  mean_kernel<<<grid, std::min(256, (a.layout.head_dim + 31) / 32 * 32), 0, stream>>>(a);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
