// Loads that take no place in L1.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Loads data that is read once, such as host blocks on their way into slots.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p)
               : "memory");
  return x;
}

// Loads 16 bytes that are read once. They take no place in L1, and whole lines go into L2. If
// `wanted` is 0, v stays unchanged.
__device__ __forceinline__ void load_weights(uint4& v, const char* p, int wanted) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
      " @p ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(wanted));
#else
  if (wanted) v = __ldg(reinterpret_cast<const uint4*>(p));
#endif
}
__device__ __forceinline__ void load_scale(uint32_t& v, const char* p, int wanted) {
  asm volatile(
      "{\n .reg .pred p;\n .reg .u16 h;\n setp.ne.s32 p, %2, 0;\n cvt.u16.u32 h, %0;\n"
      " @p ld.global.nc.u16 h, [%1];\n cvt.u32.u16 %0, h;\n}"
      : "+r"(v)
      : "l"(p), "r"(wanted));
}

}  // namespace riffle::cuda
