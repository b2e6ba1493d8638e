// Parts that the launchers of the GEMV kernels share: the device's limits, the launch, clusters.
#pragma once
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/gemv/gemv_plan.cuh"
#include "kernels/cuda/launch.cuh"

namespace riffle::cuda {

// Returns the value of y that a product becomes. up: the second product of SwiGlu. before: the
// value of y that Add adds to. The others ignore them.
__device__ __forceinline__ float finished(const Gemv& a, float product, float up, float before) {
  switch (a.then) {
    case Then::Store: break;
    case Then::Add: return __fadd_rn(before, product);
    case Then::SwiGlu: return gated(a.gate, product, up);
    case Then::ReluSquared: return relu_squared(product);
  }
  return product;
}

struct GemvDevice {
  int n_sm = 0, smem = 0, major = 0;
};
// Returns __CUDA_ARCH__ of the code that the device runs: the newest generation that this was built
// for and that is not newer than the device's.
inline int code_for(const GemvDevice& device) {
  constexpr int kBuilt[] = {__CUDA_ARCH_LIST__};
  int newest = 0;
  for (const int arch : kBuilt)
    if (arch / 100 <= device.major && arch > newest) newest = arch;
  return newest;
}
inline Status ask_device(GemvDevice* device) {
  int id = 0;
  if (Status s = cudaGetDevice(&id); s != cudaSuccess) return s;
  if (Status s = cudaDeviceGetAttribute(&device->n_sm, cudaDevAttrMultiProcessorCount, id);
      s != cudaSuccess)
    return s;
  if (Status s = cudaDeviceGetAttribute(&device->major, cudaDevAttrComputeCapabilityMajor, id);
      s != cudaSuccess)
    return s;
  return cudaDeviceGetAttribute(&device->smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, id);
}

inline cudaLaunchAttribute cluster_of(unsigned blocks) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

template <class Kernel, class Args>
Status launch_gemv(Kernel kernel, const Args& args, dim3 grid, int threads, size_t smem,
                   bool overlap, cudaStream_t stream, unsigned cluster = 1) {
  if (Status s = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(smem));
      s != cudaSuccess)
    return s;
  cudaLaunchAttribute attributes[2] = {};
  unsigned n = 0;
  if (overlap) {
    attributes[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[n++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) attributes[n++] = cluster_of(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = smem;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = n;
  if (Status s = cudaLaunchKernelEx(&config, kernel, args); s != cudaSuccess) return s;
  return cudaGetLastError();
}

// Asks for the number of clusters of `cluster` blocks that the device has room for at once.
template <class Kernel>
Status most_clusters(Kernel kernel, unsigned cluster, int threads, size_t smem, int* most) {
  if (Status s = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(smem));
      s != cudaSuccess)
    return s;
  cudaLaunchAttribute attribute = cluster_of(cluster);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = smem;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(most, kernel, &config);
}

// Launches `rows` rows of x at a time.
template <class Launch>
Status launch_in_parts(const Gemv& args, int rows, Launch launch) {
  for (int first = 0; first < args.n; first += rows) {
    Gemv part = args;
    part.x += first * args.ldx;
    part.n = args.n - first < rows ? args.n - first : rows;
    for (int o = 0; o < args.n_outs; o++)
      if (part.y[o] != nullptr) part.y[o] += first * args.ldy[o];
    if (Status s = launch(part); s != cudaSuccess) return s;
  }
  return cudaSuccess;
}

}  // namespace riffle::cuda
