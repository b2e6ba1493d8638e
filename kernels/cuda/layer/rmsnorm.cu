// RMS normalisation (Zhang and Sennrich, arXiv 1910.07467): one block a row.
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/rmsnorm.cuh"

namespace riffle::cuda {
namespace {

// kVector: dim is a multiple of 4, so that every row is 16-byte aligned.
template <bool kVector>
__device__ float4 load4(const float* x, int64_t c, int64_t dim) {
  if constexpr (kVector) {
    return *reinterpret_cast<const float4*>(x + c);
  } else {
    float v[4];
    for (int j = 0; j < 4; j++) v[j] = c + j < dim ? x[c + j] : 0;
    return make_float4(v[0], v[1], v[2], v[3]);
  }
}

template <bool kVector>
__global__ void __launch_bounds__(kNormThreads)
    rmsnorm_kernel(const float* x, const float* weight, int64_t dim, float eps, void* out,
                   WType out_type) {
  __shared__ float sums[kNormWarps];
  const int64_t row = blockIdx.x;
  const float* in = x + row * dim;
  float squares = 0;
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4)
    squares = add_squares(squares, load4<kVector>(in, c, dim));
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
  __syncthreads();
  const float scale = norm_scale(sums, dim, eps);
  for (int64_t c = static_cast<int64_t>(threadIdx.x) * 4; c < dim; c += kNormThreads * 4) {
    const float4 v = load4<kVector>(in, c, dim), w = load4<kVector>(weight, c, dim);
    const float result[4] = {v.x * w.x * scale, v.y * w.y * scale, v.z * w.z * scale,
                             v.w * w.w * scale};
    const int64_t i = row * dim + c;
    if (kVector && out_type == WType::F32) {
      *reinterpret_cast<float4*>(static_cast<float*>(out) + i) =
          make_float4(result[0], result[1], result[2], result[3]);
    } else if (kVector) {
      uint32_t bits[4];
      for (int j = 0; j < 4; j++)
        bits[j] =
            out_type == WType::F16 ? f32_to_f16_saturating(result[j]) : f32_to_bf16(result[j]);
      *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + i) =
          make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
    } else {
      for (int j = 0; j < 4 && c + j < dim; j++) store_f32_as(out, out_type, i + j, result[j]);
    }
  }
}

}  // namespace

Status rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps, void* out,
               WType out_type, cudaStream_t stream) {
  if (out_type == WType::Q8_0 || n < 1 || dim < 1) return cudaErrorInvalidValue;
  const auto kernel = dim % 4 == 0 ? rmsnorm_kernel<true> : rmsnorm_kernel<false>;
  kernel<<<static_cast<unsigned>(n), kNormThreads, 0, stream>>>(x, weight, dim, eps, out, out_type);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
