// RMS normalisation of heads (Qwen3: q and k before RoPE), or of embeddings as one head each: one
// warp a head, in place.
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kHeads = kThreads / 32;  // threads and heads of a block

// Lane l sums elements l, l + 32, ...; then the lanes in the order of a butterfly: a head's bits
// depend on nothing but the head.
__global__ void __launch_bounds__(kThreads)
    head_norm_kernel(float* x, int64_t n, const float* weight, int head_dim, float eps) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kHeads + threadIdx.x / 32;
  if (head >= n) return;
  float* row = x + head * head_dim;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float squares = 0;
  for (int c = lane; c < head_dim; c += 32) squares = fmaf(row[c], row[c], squares);
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const float scale = 1.0f / sqrtf(__fadd_rn(squares / static_cast<float>(head_dim), eps));
  for (int c = lane; c < head_dim; c += 32) row[c] = row[c] * weight[c] * scale;
}

}  // namespace

Status norm_heads(float* x, int64_t n, const float* weight, int head_dim, float eps,
                  cudaStream_t stream) {
  if (n < 1 || head_dim < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((n + kHeads - 1) / kHeads);
  head_norm_kernel<<<blocks, kThreads, 0, stream>>>(x, n, weight, head_dim, eps);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
