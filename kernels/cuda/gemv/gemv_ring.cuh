// A warp's ring in shared memory that asynchronous copies fill with weights, and the plan of a
// launch: parts that the two kernels of gemv_quant share.
#pragma once
#include "kernels/cuda/gemv/gemv_plan.cuh"
#include "kernels/cuda/gemv/gemv_quant.cuh"
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda::gemv_quant {

namespace {  // a kernel that takes a Plan is local to its file

struct Plan {
  Gemv args;
  RowParts row;             // bytes
  int units[kGemvMaxOuts];  // units of each output (SwiGlu: both matrices together, in units[0])
  int n_units, rounds;      // rounds: units a warp goes through
  int n_steps;              // in a row
  int chunk;                // steps whose x is in shared memory at a time
  int stages, groups;       // stages of a warp's ring; groups of copies in a stage
};

inline Plan plan_of(WType type, const GemvCut& cut, int rounds) {
  Plan plan = {};
  plan.args = cut.args;
  plan.row = row_parts(type, cut.args.w[0].cols);
  for (int o = 0; o < kGemvMaxOuts; o++) plan.units[o] = cut.units[o];
  plan.n_units = cut.n_units, plan.rounds = rounds;
  plan.n_steps = cut.n_steps, plan.chunk = cut.chunk;
  plan.stages = cut.stages, plan.groups = cut.groups;
  return plan;
}

// Copies 16 or 8 bytes (or 4, where copies are asynchronous), or stores zeros.
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

}  // namespace
}  // namespace riffle::cuda::gemv_quant
