// Blocks that ended (truncation, the end of a session) leave the pool.
#include "kernels/cuda.h"

namespace riffle::cuda {
namespace {

__global__ void forget_kernel(Pool pool, int32_t* page_table, int64_t n_heads, int64_t max_blocks, int64_t first) {
  const int64_t width = max_blocks - first;
  for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < n_heads * width; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t entry = i / width * max_blocks + first + i % width;
    const int32_t slot = page_table[entry];
    if (slot < 0) continue;
    pool.words[slot] = kFreeWord;
    page_table[entry] = -1;
  }
}

}  // namespace

Status forget_blocks(const Pool& pool, int32_t, int32_t* page_table, int64_t n_heads, int64_t max_blocks, int64_t first,
                     cudaStream_t stream) {
  if (pool.n_slots == 0 || first >= max_blocks) return cudaSuccess;
  const int64_t n = n_heads * (max_blocks - first), grid = (n + 255) / 256;
  forget_kernel<<<static_cast<unsigned>(grid < 1024 ? grid : 1024), 256, 0, stream>>>(pool, page_table, n_heads, max_blocks,
                                                                                    first);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
