// Gated linear units (Shazeer, arXiv 2002.05202): SwiGLU, GeGLU and clamped SwiGLU, elementwise.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256;

// cuBLAS stores infinity beyond the largest f16; times a closed gate it would be NaN.
__device__ __forceinline__ float finite(float x, WType type) {
  return type == WType::F16 ? cut_to_f16(x) : x;
}

// out may be gate: a thread reads its values before it writes them. vector: all are 16-byte
// aligned, and there are no biases.
__global__ void __launch_bounds__(kThreads)
    glu_kernel(Gate kind, const void* gate, const void* up, int64_t count, WType in_type, void* out,
               WType out_type, const float* gate_bias, const float* up_bias, int64_t width,
               bool vector) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads * kEight,
                first = block + threadIdx.x * kEight;
  if (vector && first + kEight <= count) {
    float g[kEight], u[kEight];
    load8(gate, in_type, first, g);
    load8(up, in_type, first, u);
#pragma unroll
    for (int j = 0; j < kEight; j++)
      g[j] = gated(kind, finite(g[j], in_type), finite(u[j], in_type));
    return store8(out, out_type, first, g);
  }
  // Neighbouring threads take neighbouring values, or, at the end of vectors, their own eight.
  for (int j = 0; j < kEight; j++) {
    const int64_t i = vector ? first + j : block + j * kThreads + threadIdx.x;
    if (i >= count) return;
    float g = finite(load_as_f32(gate, in_type, i), in_type),
          u = finite(load_as_f32(up, in_type, i), in_type);
    if (gate_bias) g += gate_bias[i % width];
    if (up_bias) u += up_bias[i % width];
    store_f32_as(out, out_type, i, gated(kind, g, u));
  }
}

}  // namespace

Status glu(Gate kind, const void* gate, const void* up, int64_t count, WType in_type, void* out,
           WType out_type, cudaStream_t stream, const float* gate_bias, const float* up_bias,
           int64_t width) {
  if ((gate_bias || up_bias) && (width < 1 || count % width != 0)) return cudaErrorInvalidValue;
  if (is_quantised(in_type) || is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  const bool vector = !gate_bias && !up_bias && vector_aligned(gate, 0, 1) &&
                      vector_aligned(up, 0, 1) && vector_aligned(out, 0, 1);
  const int64_t blocks = (count + kThreads * kEight - 1) / (kThreads * kEight);
  glu_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      kind, gate, up, count, in_type, out, out_type, gate_bias, up_bias, width, vector);
  return cudaGetLastError();
}

}  // namespace riffle::cuda
