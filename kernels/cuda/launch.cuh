// Programmatic dependent launch (compute capability 9.0): a kernel may start while the one before
// it still runs, read data that the earlier one does not write, and then wait for it. Every kernel
// launched this way must wait, or a kernel that depends on it could overtake earlier ones.
#pragma once
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// Lets the next kernel's blocks start.
__device__ __forceinline__ void allow_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until all writes of earlier kernels are visible. Does nothing in a kernel that was launched
// the ordinary way.
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Counts the CTAs of the kernel that can run together. Gives it the shared memory that the count
// assumes, since the device may hold some back otherwise. smem: dynamic shared memory of a CTA.
inline Status ctas_together(const void* kernel, int threads, size_t smem, int n_sm, int& ctas) {
  if (Status status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
      status != cudaSuccess)
    return status;
  int per_sm = 0;
  const Status status =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, smem);
  ctas = per_sm * n_sm;
  return status;
}

// smem: dynamic shared memory of a CTA, bytes.
template <class Kernel, class Args>
Status launch(Kernel kernel, const Args& args, dim3 grid, int threads, bool overlap,
              cudaStream_t stream, size_t smem = 0) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  if (Status status = cudaLaunchKernelEx(&config, kernel, args); status != cudaSuccess)
    return status;
  return cudaGetLastError();
}

}  // namespace riffle::cuda
