// The pool lends the memory of its last slots, and gets it back.
#include "kernels/cuda/attend/decode.cuh"

namespace riffle::cuda {
namespace {

// The victims of the last step may be lent slots, so the list is empty until the next step makes
// it.
__global__ void lend_kernel(Pool pool, int64_t first) {
  constexpr unsigned long long kEntryMask = (1ull << 30) - 1, kFree = kFreeWord >> kStampBits;
  const int64_t thread = blockIdx.x * int64_t(blockDim.x) + threadIdx.x,
                step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t i = first + thread; i < pool.n_slots; i += step) {
    const unsigned long long owner = pool.words[i] >> kStampBits;
    if (owner == kFree) continue;
    int32_t* entry = pool.page_tables[owner >> 30] + (owner & kEntryMask);
    if (*entry == static_cast<int32_t>(i)) *entry = -1;
    pool.words[i] = kFreeWord;
  }
  if (thread > 0) return;
  *pool.n_usable = static_cast<int32_t>(first);
  *pool.n_victims = 0;
}

}  // namespace

Status lend_slots(const Pool& pool, int64_t first, cudaStream_t stream) {
  const int64_t grid = (pool.n_slots - first + 255) / 256;
  lend_kernel<<<static_cast<unsigned>(grid < 1      ? 1
                                      : grid < 1024 ? grid
                                                    : 1024),
                256, 0, stream>>>(pool, first);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
