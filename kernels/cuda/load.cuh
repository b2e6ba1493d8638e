// Loads that need no place in L1.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Of what is read once, such as host blocks on their way into slots.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(p)
               : "memory");
  return x;
}

}  // namespace riffle::cuda
