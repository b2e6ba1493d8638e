// Gated linear units (Shazeer, arXiv 2002.05202): SwiGLU, GeGLU and clamped SwiGLU, elementwise.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kPerThread = 4;

// out may be gate: an element is read and written by one thread, and read first.
__global__ void __launch_bounds__(kThreads)
    glu_kernel(Gate kind, const void* gate, const void* up, int64_t count, WType in_type, void* out,
               WType out_type, const float* gate_bias, const float* up_bias, int64_t width) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads * kPerThread + threadIdx.x;
  float g[kPerThread], u[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread; j++) {
    const int64_t i = first + j * kThreads;
    if (i < count) g[j] = load_as_f32(gate, in_type, i), u[j] = load_as_f32(up, in_type, i);
    // cuBLAS stores infinity beyond the largest f16; times a closed gate it would be NaN.
    if (i < count && in_type == WType::F16) g[j] = cut_to_f16(g[j]), u[j] = cut_to_f16(u[j]);
    if (i < count && gate_bias) g[j] += gate_bias[i % width];
    if (i < count && up_bias) u[j] += up_bias[i % width];
  }
#pragma unroll
  for (int j = 0; j < kPerThread; j++) {
    const int64_t i = first + j * kThreads;
    if (i < count) store_f32_as(out, out_type, i, gated(kind, g[j], u[j]));
  }
}

}  // namespace

Status glu(Gate kind, const void* gate, const void* up, int64_t count, WType in_type, void* out,
           WType out_type, cudaStream_t stream, const float* gate_bias, const float* up_bias,
           int64_t width) {
  if ((gate_bias || up_bias) && (width < 1 || count % width != 0)) return cudaErrorInvalidValue;
  if (is_quantised(in_type) || is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  const int64_t blocks = (count + kThreads * kPerThread - 1) / (kThreads * kPerThread);
  glu_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      kind, gate, up, count, in_type, out, out_type, gate_bias, up_bias, width);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
