// Moves scattered KV blocks with one launch, like FlashH2D and FlashD2H of SparseServe (section
// 3.2): the multiprocessors read and write pinned host memory themselves, so that a block costs a
// descriptor instead of a call of the copy engine.
#include <algorithm>

#include "kernels/cuda/load.cuh"
#include "kernels/cuda/pool/pool.h"

namespace riffle::cuda {
namespace {

// A pass of a CTA is 16 KB; a thread issues all its loads before its first store. Two small CTAs on
// each multiprocessor keep megabytes in flight, while PCIe needs about 100 KB (55 GB/s times 2 us),
// and leave room for other kernels.
constexpr int kThreads = 128, kEach = 8, kCtasPerSm = 2;

__device__ __forceinline__ Copy load_copy(const Copy* p) {
  static_assert(sizeof(Copy) == 16);
  const ulonglong2 words = *reinterpret_cast<const ulonglong2*>(p);
  return {reinterpret_cast<const std::byte*>(words.x), reinterpret_cast<std::byte*>(words.y)};
}

// words: 16-byte words of a block.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Copy* copies, int64_t n, int64_t words) {
  int64_t i = blockIdx.x;
  if (i >= n) return;
  Copy next = load_copy(copies + i);
  while (i < n) {
    const Copy copy = next;
    i += gridDim.x;
    if (i < n) next = load_copy(copies + i);  // descriptors may be far away, too: request early
    const uint4* src = reinterpret_cast<const uint4*>(copy.src);
    uint4* dst = reinterpret_cast<uint4*>(copy.dst);
    int64_t at = threadIdx.x;
    for (; at + (kEach - 1) * kThreads < words; at += kEach * kThreads) {
      uint4 x[kEach];
#pragma unroll
      for (int j = 0; j < kEach; j++) x[j] = load_once(src + at + j * kThreads);
#pragma unroll
      for (int j = 0; j < kEach; j++) dst[at + j * kThreads] = x[j];
    }
    uint4 x[kEach];  // the rest, which for blocks below 16 KB is all
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      if (at + j * kThreads < words) x[j] = load_once(src + at + j * kThreads);
    }
#pragma unroll
    for (int j = 0; j < kEach; j++) {
      if (at + j * kThreads < words) dst[at + j * kThreads] = x[j];
    }
  }
}

}  // namespace

Status gather(const Copy* copies, int64_t n, int64_t block_bytes, int n_sm, cudaStream_t stream) {
  if (n < 0 || n_sm <= 0 || block_bytes <= 0 || block_bytes % 16 != 0) return cudaErrorInvalidValue;
  if (n == 0) return cudaSuccess;
  const int64_t grid = std::min<int64_t>(n, static_cast<int64_t>(kCtasPerSm) * n_sm);
  gather_kernel<<<static_cast<unsigned>(grid), kThreads, 0, stream>>>(copies, n, block_bytes / 16);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
