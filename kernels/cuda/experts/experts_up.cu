// The first half of the chosen experts' FFNs: gate(W1 x + b1) * (W3 x + b3). A few lanes compute
// the values of a row of weights, for all entries of their block. FFNs without a gate go to
// experts_product.cu.
#include "kernels/cuda/experts/dot.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

template <WType T, Walk kWalk, int L, bool kShared>
__global__ void __launch_bounds__(kThreads, kBlocks<kShared>)
    experts_up_kernel(const __grid_constant__ ExpertsStep a) {
  __shared__ float4 memory[kDotMemory<kWalk, kShared>];
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / L) + threadIdx.x / L;
  allow_next();
  wait_for_earlier();
  with_entries<kShared>(a.places, blockIdx.y, [&]<int N>(const Entries<N>& entries) {
    const float* x[N];
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = a.x + entries.at[i] / a.n_used * a.w1.cols;
    const Matrix* const w[2] = {&a.w1, &a.w3};
    float sums[2][N];
    const int64_t row = a.routed[entries.at[0]].expert * a.hidden + r;
    row_dots<T, kWalk, L>(w, row, r < a.hidden, x, memory, sums);
    if (r >= a.hidden || threadIdx.x % L != 0) return;
    const float b1 = a.b1 == nullptr ? 0 : a.b1[row], b3 = a.b3 == nullptr ? 0 : a.b3[row];
#pragma unroll
    for (int i = 0; i < N; i++)
      if (i < entries.count)
        a.between[entries.at[i] * a.hidden + r] =
            gated(a.gate, __fadd_rn(sums[0][i], b1), __fadd_rn(sums[1][i], b3));
  });
}

}  // namespace

static Status experts_up_ungated(const ExpertsStep& args, cudaStream_t stream) {
  ExpertsProduct up;
  up.w = args.w3;
  up.rows = args.hidden;
  up.x = args.x;
  up.per_row = args.n_used;
  up.bias = args.b3;
  up.out = args.between;
  up.relu_squared = true;
  up.routed = args.routed;
  up.places = args.places;
  up.overlap = args.overlap;
  return experts_product(up, args.n * args.n_used, stream);
}

Status experts_up(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1) return cudaErrorInvalidValue;
  if (args.w1.rows == 0) return experts_up_ungated(args, stream);
  if (args.w1.type != args.w3.type) return cudaErrorInvalidValue;
  return with_walk(args.w1.type, args.w1.cols, args.x, [&]<WType T, Walk kWalk, int L>() {
    constexpr int kRows = kThreads / L;
    const dim3 grid(static_cast<unsigned>((args.hidden + kRows - 1) / kRows),
                    static_cast<unsigned>(args.n * args.n_used));
    if (args.places != nullptr)
      return launch(experts_up_kernel<T, kWalk, L, true>, args, grid, kThreads, args.overlap,
                    stream);
    return launch(experts_up_kernel<T, kWalk, L, false>, args, grid, kThreads, args.overlap,
                  stream);
  });
}

}  // namespace riffle::cuda
