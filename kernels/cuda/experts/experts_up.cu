// The first half of the chosen experts' FFNs: gate(W1 x) * (W3 x). A warp makes one value.
#include "kernels/cuda/experts/dot.cuh"
#include "kernels/cuda/experts/experts.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <WType T>
__global__ void __launch_bounds__(kThreads)
    experts_up_kernel(const __grid_constant__ ExpertsStep a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t entry = blockIdx.y;  // of routed
  if (r >= a.hidden) return;
  const float* x = a.x + entry / a.n_used * a.w1.cols;
  const int64_t row = a.routed[entry].expert * a.hidden + r;
  const float up = dot<T>(a.w3, row, x, lane), gate = dot<T>(a.w1, row, x, lane);
  if (lane == 0) a.between[entry * a.hidden + r] = __fmul_rn(gated(a.gate, gate), up);
}

}  // namespace

Status experts_up(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1 || args.w1.type != args.w3.type) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((args.hidden + kWarps - 1) / kWarps),
                  static_cast<unsigned>(args.n * args.n_used));
  return with_type(args.w1.type, [&]<WType T>() {
    experts_up_kernel<T><<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
