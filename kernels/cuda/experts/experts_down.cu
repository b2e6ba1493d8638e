// The second half of the chosen experts' FFNs, W2 of what lies between, weighted and added to the
// residual stream. A warp makes one value: its experts one after the other, by falling weight.
#include "kernels/cuda/experts/dot.cuh"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;

template <WType T>
__global__ void __launch_bounds__(kThreads)
    experts_down_kernel(const __grid_constant__ ExpertsStep a, int64_t dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t i = blockIdx.y;
  if (r >= dim) return;
  float sum = 0;
  for (int k = 0; k < a.n_used; ++k) {
    const int64_t entry = i * a.n_used + k;
    const Routed routed = a.routed[entry];
    sum = fmaf(routed.weight,
               dot<T>(a.w2, routed.expert * dim + r, a.between + entry * a.hidden, lane), sum);
  }
  if (lane == 0) a.y[i * dim + r] += sum;
}

}  // namespace

Status experts_down(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1) return cudaErrorInvalidValue;
  const int64_t dim = args.w1.cols;
  const dim3 grid(static_cast<unsigned>((dim + kWarps - 1) / kWarps),
                  static_cast<unsigned>(args.n));
  return with_type(args.w2.type, [&]<WType T>() {
    experts_down_kernel<T><<<grid, kThreads, 0, stream>>>(args, dim);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
