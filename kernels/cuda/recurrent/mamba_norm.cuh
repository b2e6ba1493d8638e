// The end of a layer of Mamba-2, for steps and prompts: the gate, and the norm of each group's
// part.
#pragma once
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent/layer.cuh"

namespace riffle::cuda {

inline constexpr int kMambaNormThreads = 256;

struct MambaNorm {
  Mamba2 shape;
  const float* in;                // [rows][in_width]
  float* out;                     // [rows][inner], in place
  const StepSequence* sequences;  // the rows' sequences in a step; null: a prompt
};

namespace {

// A block has a group of a row.
__global__ void __launch_bounds__(kMambaNormThreads) mamba_norm_kernel(const MambaNorm a) {
  __shared__ float sums[kMambaNormThreads / 32];
  allow_next();
  wait_for_earlier();
  const int64_t row = blockIdx.y;
  if (a.sequences) {
    const StepSequence& sequence = a.sequences[row];
    if (sequence.row == 0 && sequence.n_rows == 0) return;  // only tokens that are replayed
  }
  const Mamba2& m = a.shape;
  const int64_t inner = m.inner(), width = inner / m.groups, first = blockIdx.x * width;
  float* const y = a.out + row * inner + first;
  const float* const z = a.in + row * m.in_width() + first;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < width; c += kMambaNormThreads) {
    const float x = __fmul_rn(silu(z[c]), y[c]);
    y[c] = x;
    squares = fmaf(x, x, squares);
  }
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kMambaNormThreads / 32; w++) sum += sums[w];
  const float scale = 1.0f / sqrtf(__fadd_rn(sum / static_cast<float>(width), m.eps));
  for (int64_t c = threadIdx.x; c < width; c += kMambaNormThreads)
    y[c] = y[c] * m.norm[first + c] * scale;
}

// Requires: rows is at most 65535.
inline Status mamba_norm(const MambaNorm& args, int64_t rows, bool overlap, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.shape.groups), static_cast<unsigned>(rows));
  return launch(mamba_norm_kernel, args, grid, kMambaNormThreads, overlap, stream);
}

}  // namespace
}  // namespace riffle::cuda
