// A warp's product of a row of weights, of any type, with a row of x.
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda {

// Values [col, col + 8) of a row, where col is a multiple of 8 and col + 8 <= cols.
template <WType T>
__device__ __forceinline__ void eight_weights(const Matrix& w, int64_t row, int64_t col,
                                              float* out) {
  const int64_t i = row * w.cols + col;
  if constexpr (T <= WType::BF16) {
#pragma unroll
    for (int j = 0; j < 8; j++) out[j] = load_as_f32(w.data, T, i + j);
  } else if constexpr (T == WType::Q8_0) {
    const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(w.scales)[i / kQ8Group]);
    const int2 q = *reinterpret_cast<const int2*>(static_cast<const int8_t*>(w.data) + i);
#pragma unroll
    for (int j = 0; j < 8; j++)
      out[j] = scale * static_cast<float>(static_cast<int8_t>((j < 4 ? q.x : q.y) >> 8 * (j % 4)));
  } else {
    Matrix typed = w;
    typed.type = T;  // known when compiled, so that nothing is asked at run time
    quants_at(typed, row, col, out);
  }
}

// W[row] . x, in every lane. Lane l takes columns 8l to 8l + 7 of each 256; the sum of a lane, then
// that of the lanes: the bits depend on the row and x alone.
template <WType T>
__device__ __forceinline__ float dot(const Matrix& w, int64_t row, const float* x, int lane) {
  float sum = 0;
  const int64_t whole = w.cols / 8 * 8;
#pragma unroll 4
  for (int64_t col = lane * 8; col < whole; col += 256) {
    float v[8];
    eight_weights<T>(w, row, col, v);
#pragma unroll
    for (int j = 0; j < 8; j++) sum = fmaf(v[j], x[col + j], sum);
  }
  if constexpr (T <= WType::BF16)  // rows of other types are whole blocks
    for (int64_t col = whole + lane; col < w.cols; col += 32)
      sum = fmaf(load_as_f32(w.data, T, row * w.cols + col), x[col], sum);
  return warp_sum(sum);
}

// Calls f with the type as a constant.
template <class F>
Status with_type(WType type, F&& f) {
  switch (type) {
    case WType::F32: return f.template operator()<WType::F32>();
    case WType::F16: return f.template operator()<WType::F16>();
    case WType::BF16: return f.template operator()<WType::BF16>();
    case WType::Q8_0: return f.template operator()<WType::Q8_0>();
    case WType::Q4_0: return f.template operator()<WType::Q4_0>();
    case WType::Q4_1: return f.template operator()<WType::Q4_1>();
    case WType::Q5_0: return f.template operator()<WType::Q5_0>();
    case WType::Q5_1: return f.template operator()<WType::Q5_1>();
    case WType::Q4_K: return f.template operator()<WType::Q4_K>();
    case WType::Q5_K: return f.template operator()<WType::Q5_K>();
    case WType::Q6_K: return f.template operator()<WType::Q6_K>();
    case WType::IQ4_NL: return f.template operator()<WType::IQ4_NL>();
    case WType::IQ4_XS: return f.template operator()<WType::IQ4_XS>();
    case WType::Q3_K: return f.template operator()<WType::Q3_K>();
    case WType::Q2_K: return f.template operator()<WType::Q2_K>();
    case WType::MXFP4: return f.template operator()<WType::MXFP4>();
  }
  return cudaErrorNotSupported;
}

}  // namespace riffle::cuda
