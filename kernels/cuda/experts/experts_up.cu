// The first half of the chosen experts' FFNs: gate(W1 x + b1) * (W3 x + b3). A warp makes the
// values of a row of weights, for all entries of its block.
#include "kernels/cuda/experts/dot.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <WType T, bool kEven>
__global__ void __launch_bounds__(kThreads)
    experts_up_kernel(const __grid_constant__ ExpertsStep a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (r >= a.hidden) return;
  with_entries(a, blockIdx.y, [&]<int N>(const Entries<N>& entries) {
    const float* x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = a.x + entries.at[i] / a.n_used * a.w1.cols;
    const Matrix* const w[2] = {&a.w1, &a.w3};
    float sums[2][N];
    const int64_t row = a.routed[entries.at[0]].expert * a.hidden + r;
    dots<T, kEven>(w, row, x, lane, sums);
    const float b1 = a.b1 == nullptr ? 0 : a.b1[row], b3 = a.b3 == nullptr ? 0 : a.b3[row];
    if (lane == 0)
#pragma unroll
      for (int i = 0; i < N; i++)
        if (i < entries.count)
          a.between[entries.at[i] * a.hidden + r] =
              gated(a.gate, __fadd_rn(sums[0][i], b1), __fadd_rn(sums[1][i], b3));
  });
}

}  // namespace

Status experts_up(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1 || args.w1.type != args.w3.type) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((args.hidden + kWarps - 1) / kWarps),
                  static_cast<unsigned>(args.n * args.n_used));
  return with_type(args.w1.type, args.w1.cols, args.x, [&]<WType T, bool kEven>() {
    experts_up_kernel<T, kEven><<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
