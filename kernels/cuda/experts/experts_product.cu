// One product of the chosen experts' FFNs, for each entry on its own: W3 and the activation if FFNs
// have no gate, and W2 (combine_rows weights and adds its results). A few lanes compute the values
// of a row of weights, for all entries of their block.
#include "kernels/cuda/experts/dot.cuh"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

template <WType T, Walk kWalk, int L, bool kShared>
__global__ void __launch_bounds__(kThreads, kBlocks<kShared>)
    experts_product_kernel(const __grid_constant__ ExpertsProduct a) {
  __shared__ float4 memory[kDotMemory<kWalk, kShared>];
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / L) + threadIdx.x / L;
  allow_next();
  wait_for_earlier();
  with_entries<kShared>(a.places, blockIdx.y, [&]<int N>(const Entries<N>& entries) {
    const float* x[N];
#pragma unroll
    for (int i = 0; i < N; i++)  // entries are few: 32 bits suffice to divide them
      x[i] = a.x + static_cast<int>(entries.at[i]) / a.per_row * a.w.cols;
    const Matrix* const w[1] = {&a.w};
    float sums[1][N];
    const int64_t row = a.routed[entries.at[0]].expert * a.rows + r;
    row_dots<T, kWalk, L>(w, row, r < a.rows, x, memory, sums);
    if (r >= a.rows || threadIdx.x % L != 0) return;
    const float bias = a.bias == nullptr ? 0 : a.bias[row];
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float value = __fadd_rn(sums[0][i], bias);
      if (i < entries.count)
        a.out[entries.at[i] * a.rows + r] = a.relu_squared ? relu_squared(value) : value;
    }
  });
}

}  // namespace

Status experts_product(const ExpertsProduct& args, int64_t n_entries, cudaStream_t stream) {
  if (n_entries < 1 || n_entries > kMaxEntries || args.rows < 1 || args.per_row < 1)
    return cudaErrorInvalidValue;
  return with_walk(args.w.type, args.w.cols, args.x, [&]<WType T, Walk kWalk, int L>() {
    constexpr int kRows = kThreads / L;
    const dim3 grid(static_cast<unsigned>((args.rows + kRows - 1) / kRows),
                    static_cast<unsigned>(n_entries));
    if (args.places != nullptr)
      return launch(experts_product_kernel<T, kWalk, L, true>, args, grid, kThreads, args.overlap,
                    stream);
    return launch(experts_product_kernel<T, kWalk, L, false>, args, grid, kThreads, args.overlap,
                  stream);
  });
}

Status experts_down(const ExpertsStep& args, cudaStream_t stream) {
  if (args.n < 1) return cudaErrorInvalidValue;
  ExpertsProduct down;
  down.w = args.w2;
  down.rows = args.w3.cols;
  down.x = args.between;
  down.bias = args.b2;
  down.out = args.parts;
  down.routed = args.routed;
  down.places = args.places;
  down.overlap = args.overlap;
  return experts_product(down, args.n * args.n_used, stream);
}

}  // namespace riffle::cuda
