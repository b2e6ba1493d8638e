// A warp's ring in shared memory that asynchronous copies fill with weights: what the two kernels
// of gemv_quant share.
#pragma once
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda::gemv_quant {

// 16 or 8 bytes, or 4 where the copies are asynchronous, or zeros.
template <int kBytes>
__device__ __forceinline__ void copy_or_zero(uint32_t shared, const char* p, bool valid) {
#if __CUDA_ARCH__ >= 800
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared), "l"(p),
                 "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(p), "r"(bytes),
                 "n"(kBytes)
                 : "memory");
#else
  if constexpr (kBytes == 16) {
    const uint4 v = valid ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  } else {
    const uint2 v = valid ? *reinterpret_cast<const uint2*>(p) : make_uint2(0, 0);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared), "r"(v.x), "r"(v.y) : "memory");
  }
#endif
}
// A ring of S stages lets copies of S - 2 stages be under way. How many groups of copies may be is
// a constant, so a stage is closed with as many groups, most of them empty, as make it so: 8 stages
// of one, 5 of 2, 4 of 3, 3 of 6.
constexpr int kGroupsLeft = 6;
constexpr bool stages_possible(int stages) { return stages > 2 && kGroupsLeft % (stages - 2) == 0; }
__device__ __forceinline__ void close_stage(int groups) {
#if __CUDA_ARCH__ >= 800
  cp_async_commit();
#pragma unroll 1
  for (int i = 1; i < groups; i++) cp_async_commit();
#endif
}
__device__ __forceinline__ void wait_for_stage() {
#if __CUDA_ARCH__ >= 800
  cp_async_wait<kGroupsLeft>();
#endif
}

}  // namespace riffle::cuda::gemv_quant
