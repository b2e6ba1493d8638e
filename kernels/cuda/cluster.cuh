// Launches of clusters: blocks that run together and write each other's shared memory (compute
// capability 9.0 and later). Their barrier is in mma.cuh.
#pragma once
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace riffle::cuda {

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void store_far(uint32_t at, const uint4& x) {
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}
#endif

// Like launch(). The grid runs as clusters of `cluster` blocks along x.
template <class Kernel, class Args>
Status launch_clusters(Kernel kernel, const Args& args, dim3 grid, int threads, int cluster,
                       bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlap ? 2 : 1;
  if (Status status = cudaLaunchKernelEx(&config, kernel, args); status != cudaSuccess)
    return status;
  return cudaGetLastError();
}

}  // namespace riffle::cuda
