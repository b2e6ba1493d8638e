// Blocks that ended (truncation, the end of a session) leave the pool.
#include "kernels/cuda/attend/decode.cuh"

namespace riffle::cuda {
namespace {

// Goes by the slots' words, since some slots may not be entered in the table (struct Pool: blocks
// that forks share). A row that takes such a slot later looks into the table of the slot's key, so
// none may be left when a table ends.
__global__ void forget_kernel(Pool pool, int32_t table, int32_t* page_table, int64_t n_heads,
                              int64_t max_blocks, int64_t first) {
  constexpr unsigned long long kEntryMask = (1ull << 30) - 1, kFree = kFreeWord >> kStampBits;
  const int64_t thread = blockIdx.x * int64_t(blockDim.x) + threadIdx.x,
                step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = thread; i < pool.n_slots; i += step) {
    const unsigned long long key = pool.words[i] >> kStampBits;
    if (key == kFree || static_cast<int32_t>(key >> 30) != table) continue;
    if (static_cast<int64_t>(key & kEntryMask) % max_blocks >= first) pool.words[i] = kFreeWord;
  }
  const int64_t width = max_blocks - first;
  for (int64_t i = thread; i < n_heads * width; i += step)
    page_table[i / width * max_blocks + first + i % width] = -1;
}

}  // namespace

Status forget_blocks(const Pool& pool, int32_t table, int32_t* page_table, int64_t n_heads,
                     int64_t max_blocks, int64_t first, cudaStream_t stream) {
  if (pool.n_slots == 0 || first >= max_blocks) return cudaSuccess;
  const int64_t entries = n_heads * (max_blocks - first),
                n = entries > pool.n_slots ? entries : pool.n_slots;
  const int64_t grid = (n + 255) / 256;
  forget_kernel<<<static_cast<unsigned>(grid < 1024 ? grid : 1024), 256, 0, stream>>>(
      pool, table, page_table, n_heads, max_blocks, first);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
