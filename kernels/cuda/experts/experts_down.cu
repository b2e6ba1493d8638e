// The second half of the chosen experts' FFNs: the product with W2, for each entry on its own
// (combine_rows weights and adds them). A warp makes the values of a row of weights, for all
// entries of its block.
#include "kernels/cuda/experts/dot.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

template <WType T, bool kEven>
__global__ void __launch_bounds__(kThreads)
    experts_down_kernel(const __grid_constant__ ExpertsStep a, int64_t dim) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (r >= dim) return;
  with_entries(a, blockIdx.y, [&]<int N>(const Entries<N>& entries) {
    const float* x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = a.between + entries.at[i] * a.hidden;
    const Matrix* const w[1] = {&a.w2};
    float sums[1][N];
    const int64_t row = a.routed[entries.at[0]].expert * dim + r;
    dots<T, kEven>(w, row, x, lane, sums);
    const float b2 = a.b2 == nullptr ? 0 : a.b2[row];
    if (lane == 0)
#pragma unroll
      for (int i = 0; i < N; i++)
        if (i < entries.count) a.parts[entries.at[i] * dim + r] = __fadd_rn(sums[0][i], b2);
  });
}

}  // namespace

Status experts_down(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1) return cudaErrorInvalidValue;
  const int64_t dim = args.w1.cols;
  const dim3 grid(static_cast<unsigned>((dim + kWarps - 1) / kWarps),
                  static_cast<unsigned>(args.n * args.n_used));
  return with_type(args.w2.type, args.w2.cols, args.between, [&]<WType T, bool kEven>() {
    experts_down_kernel<T, kEven><<<grid, kThreads, 0, stream>>>(args, dim);
    return cudaGetLastError();
  });
}

}  // namespace riffle::cuda
