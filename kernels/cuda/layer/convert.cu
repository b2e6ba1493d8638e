// Converts number formats: activations to 16 bits, and weights to the operands of prefill.
#include "kernels/cuda/layer/eight.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kVector = kEight;  // values a thread at a time

// out[i] = in[first + i] for i in [0, count). vector: first is a multiple of 8.
__global__ void __launch_bounds__(kThreads) convert_kernel(Matrix in, int64_t first, int64_t count,
                                                           void* out, WType out_type, bool vector) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (vector && i + kVector <= count) {
    float v[kVector];
    load8(in, first + i, v);
    store8(out, out_type, i, v);
    return;
  }
  for (int64_t j = i; j < count && j < i + kVector; j++) {
    const int64_t at = first + j;
    store_f32_as(out, out_type, j, weight_at(in, at / in.cols, at % in.cols));
  }
}

Status launch(const Matrix& in, int64_t first, int64_t count, void* out, WType out_type,
              cudaStream_t stream) {
  if (is_quantised(out_type) || count < 1) return cudaErrorInvalidValue;
  const bool vector =
      first % kVector == 0 && vector_aligned(in.data, 0, 1) && vector_aligned(out, 0, 1);
  const int64_t blocks = (count + kThreads * kVector - 1) / (kThreads * kVector);
  convert_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(in, first, count, out,
                                                                         out_type, vector);
  return cudaGetLastError();
}

}  // namespace

Status convert(const float* x, int64_t count, void* out, WType out_type, cudaStream_t stream) {
  return launch({WType::F32, 1, count, x, nullptr}, 0, count, out, out_type, stream);
}

Status dequantize(const Matrix& w, int64_t first, int64_t n, void* out, WType out_type,
                  cudaStream_t stream) {
  if (first < 0 || n < 1 || first + n > w.rows) return cudaErrorInvalidValue;
  return launch(w, first * w.cols, n * w.cols, out, out_type, stream);
}

}  // namespace riffle::cuda
