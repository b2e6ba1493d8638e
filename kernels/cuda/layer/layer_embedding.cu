// The part of per-layer embeddings that depends on the token alone (Gemma 4): one warp for
// each token and layer.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kParts = kThreads / 32;  // threads and parts of a block

// out may be projected if there is one layer: a value is read and written by one thread, and read
// first.
__global__ void __launch_bounds__(kThreads)
    layer_embedding_kernel(const float* projected, const float* tokens, const float* weight,
                           int64_t n, int n_layers, int width, float eps, float* out) {
  const int64_t part = static_cast<int64_t>(blockIdx.x) * kParts + threadIdx.x / 32;
  if (part >= n * n_layers) return;
  const int64_t row = part / n_layers, layer = part % n_layers;
  const float *const p = projected + part * width, *const t = tokens + part * width;
  float* const to = out + (layer * n + row) * width;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float squares = 0;
  for (int c = lane; c < width; c += 32) squares = fmaf(p[c], p[c], squares);
  squares = warp_sum(squares);
  const float scale = 1.0f / sqrtf(__fadd_rn(squares / static_cast<float>(width), eps)),
              root = sqrtf(static_cast<float>(width)), half = sqrtf(0.5f);
  for (int c = lane; c < width; c += 32)
    to[c] = __fmul_rn(__fadd_rn(p[c] * weight[c] * scale, __fmul_rn(t[c], root)), half);
}

}  // namespace

Status layer_embedding(const float* projected, const float* tokens, const float* weight, int64_t n,
                       int n_layers, int width, float eps, float* out, cudaStream_t stream) {
  if (n < 1 || n_layers < 1 || width < 1) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>((n * n_layers + kParts - 1) / kParts);
  layer_embedding_kernel<<<blocks, kThreads, 0, stream>>>(projected, tokens, weight, n, n_layers,
                                                          width, eps, out);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
