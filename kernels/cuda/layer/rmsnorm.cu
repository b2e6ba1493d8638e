// RMS normalisation (Zhang and Sennrich, arXiv 1910.07467), with or without the mean: one block a
// row.
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/norm_row.cuh"

namespace riffle::cuda {
namespace {

template <bool kVector, bool kCentred>
__global__ void __launch_bounds__(kNormThreads)
    rmsnorm_kernel(const float* x, const float* weight, int64_t dim, float eps, void* out,
                   int64_t ldo, WType out_type) {
  const int64_t row = blockIdx.x, first = row * ldo;
  norm_row<kVector, kCentred>(
      x + row * dim, weight, dim, eps, [&](int64_t c, const float(&values)[4]) {
        const int64_t i = first + c;
        if (kVector && out_type == WType::F32) {
          *reinterpret_cast<float4*>(static_cast<float*>(out) + i) =
              make_float4(values[0], values[1], values[2], values[3]);
        } else if (kVector) {
          uint32_t bits[4];
          for (int j = 0; j < 4; j++)
            bits[j] =
                out_type == WType::F16 ? f32_to_f16_saturating(values[j]) : f32_to_bf16(values[j]);
          *reinterpret_cast<uint2*>(static_cast<uint16_t*>(out) + i) =
              make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
        } else {
          for (int j = 0; j < 4 && c + j < dim; j++) store_f32_as(out, out_type, i + j, values[j]);
        }
      });
}

}  // namespace

Status rmsnorm(const float* x, const float* weight, int64_t n, int64_t dim, float eps, void* out,
               WType out_type, cudaStream_t stream, int64_t ldo, bool centred) {
  if (ldo == 0) ldo = dim;
  if (out_type == WType::Q8_0 || n < 1 || dim < 1 || ldo < dim) return cudaErrorInvalidValue;
  const bool vector = dim % 4 == 0 && ldo % 4 == 0;
  const auto kernel = vector    ? centred ? rmsnorm_kernel<true, true> : rmsnorm_kernel<true, false>
                         : centred ? rmsnorm_kernel<false, true>
                                : rmsnorm_kernel<false, false>;
  kernel<<<static_cast<unsigned>(n), kNormThreads, 0, stream>>>(x, weight, dim, eps, out, ldo,
                                                                out_type);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
