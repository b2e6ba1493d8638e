// Keys and values of multi-head latent attention, computed from latents (DeepSeek-V2, arXiv
// 2405.04434, section 2.1, equations 9 to 11). A decode step multiplies queries by k_b instead and
// attends to latents, which takes 2,176 operations for a query and a key. Heads of 256 values take
// 1,024, and a prompt has many queries for a token. On compute capability 9.0
// expand_latents_hopper.cu multiplies by wgmma.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/head_dims.h"
#include "kernels/cuda/prefill/expand_latents.cuh"
#include "kernels/cuda/prefill/expand_latents_hopper.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// CTA (j, h): row j of head h's matrix.
__global__ void __launch_bounds__(kThreads)
    latent_matrices_kernel(const __grid_constant__ LatentMatrices a) {
  const int64_t j = blockIdx.x, head = blockIdx.y, rows = a.nope_dim + a.value_dim;
  uint16_t* const out = static_cast<uint16_t*>(a.out) + (head * rows + j) * kLatentValueDim;
  for (int64_t r = threadIdx.x; r < kLatentValueDim; r += kThreads)
    out[r] = f32_to_f16_saturating(j < a.nope_dim
                                       ? weight_at(a.k_b, head * kLatentValueDim + r, j)
                                       : weight_at(a.v_b, head * a.value_dim + j - a.nope_dim, r));
}

// CTA (h, i): head h of row i.
__global__ void __launch_bounds__(64)
    latent_queries_kernel(const __grid_constant__ LatentQueries a) {
  const int64_t head = blockIdx.x, i = blockIdx.y;
  const float* const raw = a.raw + (i * a.n_heads + head) * (a.nope_dim + kLatentRopeDim);
  const float* const rotated = a.q + i * a.ldq + head * kLatentDim + kLatentValueDim;
  float* const out = a.out + (i * a.n_heads + head) * a.head_dim;
  for (int c = static_cast<int>(threadIdx.x); c < a.head_dim; c += 64)
    out[c] = c < a.nope_dim                    ? raw[c] * a.scale
             : c < a.nope_dim + kLatentRopeDim ? rotated[c - a.nope_dim] * a.scale
                                               : 0;
}

}  // namespace

int expanded_head_dim(int query_dim, int value_dim) {
  const auto supported = [](auto) { return cudaSuccess; };
  for (int d = 16; d <= kMaxNarrowDim; d += 16)
    if (query_dim <= d && value_dim <= d && with_head_dim(d, supported) == cudaSuccess) return d;
  return 0;
}

Status latent_matrices(const LatentMatrices& a, cudaStream_t stream) {
  if (a.n_heads < 1 || a.nope_dim < 1 || a.value_dim < 1) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(a.nope_dim + a.value_dim),
                  static_cast<unsigned>(a.n_heads));
  latent_matrices_kernel<<<grid, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

Status latent_queries(const LatentQueries& a, cudaStream_t stream) {
  if (a.n < 1 || a.n > 65535 || a.n_heads < 1) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(a.n_heads), static_cast<unsigned>(a.n));
  latent_queries_kernel<<<grid, 64, 0, stream>>>(a);
  return cudaGetLastError();
}

Status expand_latents(const ExpandLatents& a, const DeviceLimits& limits, cudaStream_t stream) {
  using T = TileProduct;
  if (limits.compute < 80 || limits.smem_per_block < T::kSharedBytes) return cudaErrorNotSupported;
  const int64_t tiles = (a.last - a.first + T::kRows - 1) / T::kRows;
  if (a.first < 0 || tiles < 1 || tiles > 65535 || a.n_heads < 1 || a.nope_dim % 2 != 0 ||
      a.value_dim % 2 != 0 || a.nope_dim + kLatentRopeDim > a.head_dim ||
      a.value_dim > a.head_dim || a.n_blocks * a.block_size < a.last)
    return cudaErrorInvalidValue;
  const Status hopper = expand_latents_hopper(a, limits, stream);
  if (hopper != cudaErrorNotSupported) return hopper;
  return expand_latents_parts::launch<T>(a, stream);
}

}  // namespace riffle::cuda
