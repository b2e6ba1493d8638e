// Sorts the entries of a step by expert. Each thread has one entry and compares it with all others,
// since a step has few.
#include <algorithm>

#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    group_kernel(const Routed* routed, int n, Place* places) {
  __shared__ int experts[kThreads];
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int mine = i < n ? routed[i].expert : 0;
  int before = 0, same_before = 0, same = 0;
  for (int first = 0; first < n; first += kThreads) {
    const int j = first + static_cast<int>(threadIdx.x);
    __syncthreads();
    if (j < n) experts[threadIdx.x] = routed[j].expert;
    __syncthreads();
    for (int k = 0; k < min(kThreads, n - first); k++) {
      before += experts[k] < mine;
      same += experts[k] == mine;
      same_before += experts[k] == mine && first + k < i;
    }
  }
  if (i >= n) return;
  const bool leads = same_before % kGroup == 0;
  places[before + same_before] = {i, leads ? min(kGroup, same - same_before) : 0};
}

}  // namespace

Status group(const Routed* routed, int64_t n, Place* places, cudaStream_t stream) {
  if (n < 1 || n > kMaxEntries) return cudaErrorInvalidValue;
  group_kernel<<<static_cast<unsigned>((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      routed, static_cast<int>(n), places);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
