// The second half of the chosen experts' FFNs: W2 times the hidden values, for each entry on its
// own (combine_rows weights and adds them). A few lanes compute the values of a row of weights, for
// all entries of their block.
#include "kernels/cuda/experts/dot.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

template <WType T, Walk kWalk, int L, bool kShared>
__global__ void __launch_bounds__(kThreads, kBlocks<kShared>)
    experts_down_kernel(const __grid_constant__ ExpertsStep a) {
  __shared__ float4 memory[kDotMemory<kWalk, kShared>];
  const int64_t dim = a.w1.cols,
                r = static_cast<int64_t>(blockIdx.x) * (kThreads / L) + threadIdx.x / L;
  allow_next();
  wait_for_earlier();
  with_entries<kShared>(a, blockIdx.y, [&]<int N>(const Entries<N>& entries) {
    const float* x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = a.between + entries.at[i] * a.hidden;
    const Matrix* const w[1] = {&a.w2};
    float sums[1][N];
    const int64_t row = a.routed[entries.at[0]].expert * dim + r;
    row_dots<T, kWalk, L>(w, row, r < dim, x, memory, sums);
    if (r >= dim || threadIdx.x % L != 0) return;
    const float b2 = a.b2 == nullptr ? 0 : a.b2[row];
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < entries.count) a.parts[entries.at[i] * dim + r] = __fadd_rn(sums[0][i], b2);
  });
}

}  // namespace

Status experts_down(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1) return cudaErrorInvalidValue;
  return with_walk(args.w2.type, args.w2.cols, args.between, [&]<WType T, Walk kWalk, int L>() {
    constexpr int kRows = kThreads / L;
    const dim3 grid(static_cast<unsigned>((args.w1.cols + kRows - 1) / kRows),
                    static_cast<unsigned>(args.n * args.n_used));
    if (args.places != nullptr)
      return launch(experts_down_kernel<T, kWalk, L, true>, args, grid, kThreads, args.overlap,
                    stream);
    return launch(experts_down_kernel<T, kWalk, L, false>, args, grid, kThreads, args.overlap,
                  stream);
  });
}

}  // namespace riffle::cuda
