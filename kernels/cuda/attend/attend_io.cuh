// Data movement of decode attention: asynchronous copies into a warp's ring of stages, words that
// CTAs pass to each other, reads of host memory.
#pragma once
#include "kernels/cuda/load.cuh"
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda {

__device__ __forceinline__ void copy_async(void* shared, const void* from) {
#if __CUDA_ARCH__ >= 800
  cp_async16(shared_address(shared), from);
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(from);
#endif
}
__device__ __forceinline__ void copy_async_or_zero(void* shared, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  cp_async16_or_zero(shared_address(shared), from, valid);
#else
  *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}
__device__ __forceinline__ void commit_async() {
#if __CUDA_ARCH__ >= 800
  cp_async_commit();
#endif
}
// Waits until at most `pending` of this lane's groups are in flight.
__device__ __forceinline__ void wait_async(int pending) {
#if __CUDA_ARCH__ >= 800
  if (pending <= 0) cp_async_wait<0>();
  else if (pending == 1) cp_async_wait<1>();
  else cp_async_wait<2>();
#else
  (void)pending;
#endif
}

// A value and the tag of its wave in one word: a reader that sees the tag sees the value.
__device__ __forceinline__ unsigned long long tagged(uint32_t value, uint32_t tag) {
  return static_cast<unsigned long long>(tag) << 32 | value;
}
__device__ __forceinline__ void store_word(unsigned long long* at, unsigned long long word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ __forceinline__ unsigned long long load_word(const unsigned long long* at) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Returns the place of chunk c (16 bytes) of token t in a stage, in chunks: the eight rows that
// ldmatrix takes at once fall into different banks. The swizzle depends only on t % 8.
template <int kChunks>
__device__ __forceinline__ int chunk_swizzle(int t) {
  return kChunks >= 8 ? t & 7 : t >> 1 & 3;
}
template <int kChunks>
__device__ __forceinline__ int stage_chunk(int t, int c) {
  return t * kChunks + (c ^ chunk_swizzle<kChunks>(t));
}

}  // namespace riffle::cuda
