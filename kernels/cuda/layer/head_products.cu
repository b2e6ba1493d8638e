// Products of heads that have a matrix each (multi-head latent attention): in decode steps one
// kernel for all heads; in prompts the operands of products by cuBLAS.
#include "kernels/cuda/experts/dot.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// Block (r, h, i) of the grid: rows of head h's matrix from r on, times row i of x. L lanes share a
// row of weights.
template <WType T, Walk kWalk, int L>
__global__ void __launch_bounds__(kThreads)
    head_products_kernel(const __grid_constant__ HeadProductsStep a) {
  __shared__ float4 memory[kDotMemory<kWalk, false>];
  allow_next();
  wait_for_earlier();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / L) + threadIdx.x / L,
                head = blockIdx.y, i = blockIdx.z;
  const float* x = a.x + i * a.ldx + head * a.x_head;
  float* y = a.y + i * a.ldy + head * a.y_head;
  const Matrix* const w[1] = {&a.w};
  const float* const xs[1] = {x};
  float sums[1][1];
  row_dots<T, kWalk, L>(w, head * a.rows + r, r < a.rows, xs, memory, sums);
  if (r < a.rows && threadIdx.x % L == 0) y[r] = sums[0][0];
  if (blockIdx.x == 0)
    for (int64_t j = threadIdx.x; j < a.copied; j += kThreads) y[a.rows + j] = x[a.w.cols + j];
}

// Block (i, h): row i of head h. Its first `cols` values become an operand, and the `copied` values
// after them go behind the product. If out is null, only these are copied.
__global__ void __launch_bounds__(kThreads)
    head_operands_kernel(const __grid_constant__ HeadOperands a) {
  const int64_t i = blockIdx.x, head = blockIdx.y;
  const float* x = a.x + i * a.ldx + head * a.x_head;
  for (int64_t j = threadIdx.x; a.out && j < a.cols; j += kThreads)
    store_f32_as(a.out, a.out_type, (head * a.n + i) * a.cols + j, x[j]);
  float* y = a.y + i * a.ldy + head * a.y_head + a.rows;
  for (int64_t j = threadIdx.x; j < a.copied; j += kThreads) y[j] = x[a.cols + j];
}

}  // namespace

Status head_products_step(const HeadProductsStep& args, cudaStream_t stream) {
  if (args.n < 1 || args.n_heads < 1 || args.rows < 1 || args.n > 65535)
    return cudaErrorInvalidValue;
  // All rows of x must allow the reads that the first one does.
  const bool even = args.ldx % 4 == 0 && args.x_head % 4 == 0;
  return with_walk(
      args.w.type, args.w.cols, even ? args.x : args.x + 1, [&]<WType T, Walk kWalk, int L>() {
        constexpr int kRows = kThreads / L;
        const dim3 grid(static_cast<unsigned>((args.rows + kRows - 1) / kRows),
                        static_cast<unsigned>(args.n_heads), static_cast<unsigned>(args.n));
        return launch(head_products_kernel<T, kWalk, L>, args, grid, kThreads, args.overlap,
                      stream);
      });
}

Status head_operands(const HeadOperands& args, cudaStream_t stream) {
  if (args.n < 1 || args.n_heads < 1) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(args.n), static_cast<unsigned>(args.n_heads));
  head_operands_kernel<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
