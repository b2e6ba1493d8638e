// Converts activations from f32 to another plain type.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    convert_kernel(const float* x, int64_t count, void* out, WType out_type, bool vector) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEight;
  if (vector && i + kEight <= count) {
    float v[kEight];
    load8(x, WType::F32, i, v);
    store8(out, out_type, i, v);
    return;
  }
  for (int64_t j = i; j < count && j < i + kEight; j++) store_f32_as(out, out_type, j, x[j]);
}

}  // namespace

Status convert(const float* x, int64_t count, void* out, WType out_type, cudaStream_t stream) {
  if (is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  const bool vector = vector_aligned(x, 0, 1) && vector_aligned(out, 0, 1);
  const int64_t blocks = (count + kThreads * kEight - 1) / (kThreads * kEight);
  convert_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, count, out, out_type,
                                                                         vector);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
