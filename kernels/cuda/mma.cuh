// The PTX instructions that CUDA C++ has no name for, one thin wrapper each: asynchronous copies
// into shared memory, ldmatrix and the warp's matrix product (compute capability 8.0 and later), a
// cluster's barrier and shared memory (9.0). PTX ISA 9.7.9, 9.7.13, 9.7.15.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>

namespace riffle::cuda {

#if __CUDA_ARCH__ >= 800

// Copies 16 bytes from global to shared memory, bypassing L1. Both addresses are 16-byte aligned.
__device__ __forceinline__ void cp_async16(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
// The same, but if !valid nothing is read and zeros are written.
__device__ __forceinline__ void cp_async16_or_zero(uint32_t shared, const void* global,
                                                   bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kLeft of this thread's groups are in flight.
template <int kLeft>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8. In
// r[m], lane i gets the values (i / 4, 2 * (i % 4) + {0, 1}) of matrix m; _trans: of its transpose.
__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ void ldmatrix4_trans(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// c[16][8] += a[16][16] b[16][8], f16 in, f32 out. Lane i holds of c: (i / 4, 2 * (i % 4) + {0, 1})
// in c[0], c[1] and the same columns of row i / 4 + 8 in c[2], c[3]. a: 8x8 quarters (rows, k) =
// (0,0), (8,0), (0,8), (8,8); b: k = 0, 8.
__device__ __forceinline__ void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with bf16 in.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Returns the bf16s nearest to two floats, the first in the low half; *a and *b become the
// remainders.
__device__ __forceinline__ uint32_t split_bf16(float* a, float* b) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(*b), "f"(*a));
  *a -= __uint_as_float(both << 16);
  *b -= __uint_as_float(both & 0xffff0000u);
  return both;
}

#endif

#if __CUDA_ARCH__ >= 900

// The barrier of a cluster's threads: writes made before arriving are visible to all threads after
// the wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Returns the address in another block that corresponds to `shared` in this one.
__device__ __forceinline__ uint32_t in_block(uint32_t shared, int rank) {
  uint32_t at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared), "r"(rank));
  return at;
}
__device__ __forceinline__ void store_far(uint32_t at, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ __forceinline__ void store_far(uint32_t at, float x, float y) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}

#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Byte offset of 16-byte piece c of a row in shared memory. The eight rows that ldmatrix takes at
// once fall into different banks.
template <int kRowBytes>
__device__ __forceinline__ uint32_t swizzled(int row, int c) {
  return static_cast<uint32_t>(row * kRowBytes + ((c ^ (row & 7)) << 4));
}

// 2^x, about 2 ulp; 2^-inf = 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(h);
}

}  // namespace riffle::cuda
