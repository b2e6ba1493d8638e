// Converts number formats: activations to 16 bits, and weights to the operands of prefill.
#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/layer/layer.h"

namespace riffle::cuda {
namespace {

constexpr int kThreads = 256, kVector = 8;  // values a thread at a time

// kVector values to out[i..], where i is a multiple of kVector and out 16-byte aligned.
__device__ void store8(void* out, WType type, int64_t i, const float* v) {
  if (type == WType::F32) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(out) + i);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
  uint32_t words[4];
  for (int j = 0; j < 4; j++) {
    const uint32_t low =
        type == WType::F16 ? f32_to_f16_saturating(v[2 * j]) : f32_to_bf16(v[2 * j]);
    const uint32_t high =
        type == WType::F16 ? f32_to_f16_saturating(v[2 * j + 1]) : f32_to_bf16(v[2 * j + 1]);
    words[j] = low | high << 16;
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out) + i) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// Values [i, i + 8) of a matrix of any type, counted row by row, where i is a multiple of 8 and
// data 16-byte aligned.
__device__ void load8(const Matrix& w, int64_t i, float* v) {
  const void *p = w.data, *scales = w.scales;
  const WType type = w.type;
  if (type > WType::Q8_0) {
    quants_at(w, i / w.cols, i % w.cols, v);
  } else if (type == WType::F32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + i);
    const float4 a = from[0], b = from[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else if (type == WType::Q8_0) {
    const uint2 bytes = *reinterpret_cast<const uint2*>(static_cast<const int8_t*>(p) + i);
    const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(scales)[i / kQ8Group]);
    for (int j = 0; j < 4; j++) {
      v[j] = scale * static_cast<float>(static_cast<int8_t>(bytes.x >> 8 * j));
      v[4 + j] = scale * static_cast<float>(static_cast<int8_t>(bytes.y >> 8 * j));
    }
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p) + i);
    const uint32_t pair[4] = {words.x, words.y, words.z, words.w};
    for (int j = 0; j < 4; j++) {
      const uint32_t low = pair[j] & 0xffff, high = pair[j] >> 16;
      v[2 * j] = type == WType::F16 ? f16_bits_to_f32(low) : bf16_bits_to_f32(low);
      v[2 * j + 1] = type == WType::F16 ? f16_bits_to_f32(high) : bf16_bits_to_f32(high);
    }
  }
}

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
