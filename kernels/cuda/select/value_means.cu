// Mean values of blocks, d f16 numbers each, bit for bit those of select/int4_keys.cpp: they stand
// for blocks that are not read (SparQ, arXiv 2312.04985, section 3).
#include "kernels/cuda/kv_q8.cuh"
#include "kernels/cuda/select/select.h"

namespace riffle::cuda {
namespace {

struct ValueMeans {
  const std::byte* base;
  int64_t n_blocks, first, max_blocks;
  KvLayout layout;
  uint16_t* means;
};

// Block (b, h) of the grid: block first + b of head h; a thread has a dimension.
__global__ void mean_kernel(const __grid_constant__ ValueMeans a) {
  const int d = a.layout.head_dim, j = threadIdx.x;
  const int64_t block = a.first + blockIdx.x, head = blockIdx.y;
  if (j >= d) return;
  const void* values =
      a.base + (head * a.n_blocks + block) * a.layout.block_bytes + a.layout.value_offset;
  float sum = 0;
  for (int t = 0; t < a.layout.block_size; ++t)
    sum = __fadd_rn(sum, kv_at(a.layout.type, values, d, t, j));
  sum *= 1.0f / static_cast<float>(a.layout.block_size);
  a.means[(head * a.max_blocks + block) * d + j] = __half_as_ushort(__float2half_rn(sum));
}

}  // namespace

Status mean_values(const std::byte* base, int64_t n_blocks, int64_t first, int64_t last,
                   int n_kv_heads, const KvLayout& layout, uint16_t* means, int64_t max_blocks,
                   cudaStream_t stream) {
  if (first < 0 || last > n_blocks || last > max_blocks) return cudaErrorInvalidValue;
  if (first >= last) return cudaSuccess;
  const ValueMeans args = {base, n_blocks, first, max_blocks, layout, means};
  const dim3 grid(static_cast<unsigned>(last - first), n_kv_heads);
  mean_kernel<<<grid, (layout.head_dim + 31) / 32 * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
