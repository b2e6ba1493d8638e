// Eight neighbouring values at a time: of a matrix of any type to f32, and of f32 to a plain type.
#pragma once
#include "kernels/cuda/convert.cuh"

namespace riffle::cuda {

inline constexpr int kEight = 8;

// Eight values to out[i..], where i is a multiple of 8 and out 16-byte aligned.
__device__ inline void store8(void* out, WType type, int64_t i, const float* v) {
  if (type == WType::F32) {
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(out) + i);
    to[0] = make_float4(v[0], v[1], v[2], v[3]);
    to[1] = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
  uint32_t words[4];
  if (type == WType::BF16) {
    for (int j = 0; j < 4; j++) words[j] = pack_16_bits(type, v[2 * j], v[2 * j + 1]);
  } else {
    __half2 half[4];
    for (int j = 0; j < 4; j++) half[j] = __floats2half2_rn(v[2 * j], v[2 * j + 1]);
    // A value beyond f16's range becomes infinity. This is rare; then all eight are converted
    // again, with saturation.
    const __half2 largest = __hmax2(__hmax2(__habs2(half[0]), __habs2(half[1])),
                                    __hmax2(__habs2(half[2]), __habs2(half[3])));
    const bool cut = __hisinf(__low2half(largest)) || __hisinf(__high2half(largest));
    for (int j = 0; j < 4; j++)
      words[j] = cut ? pack_16_bits(WType::F16, v[2 * j], v[2 * j + 1])
                     : *reinterpret_cast<const uint32_t*>(&half[j]);
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out) + i) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// Values [i, i + 8) of an array of a plain type, where i is a multiple of 8 and p 16-byte aligned.
__device__ inline void load8(const void* p, WType type, int64_t i, float* v) {
  if (type == WType::F32) {
    const auto* from = reinterpret_cast<const float4*>(static_cast<const float*>(p) + i);
    const float4 a = from[0], b = from[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    return;
  }
  const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p) + i);
  const uint32_t pair[4] = {words.x, words.y, words.z, words.w};
  for (int j = 0; j < 4; j++) {
    const uint32_t low = pair[j] & 0xffff, high = pair[j] >> 16;
    v[2 * j] = type == WType::F16 ? f16_bits_to_f32(low) : bf16_bits_to_f32(low);
    v[2 * j + 1] = type == WType::F16 ? f16_bits_to_f32(high) : bf16_bits_to_f32(high);
  }
}

// Values [col, col + 8) of a row of a matrix of type T, where col is a multiple of 8, and data and
// its rows are 16-byte aligned.
template <WType T>
__device__ inline void load8(const Matrix& w, int64_t row, int64_t col, float* v) {
  const int64_t i = row * w.cols + col;
  if constexpr (T > WType::Q8_0) {
    quants_at<T>(w, row, col, v);
  } else if constexpr (T == WType::Q8_0) {
    const uint2 bytes = *reinterpret_cast<const uint2*>(static_cast<const int8_t*>(w.data) + i);
    const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(w.scales)[i / kQ8Group]);
    for (int j = 0; j < 4; j++) {
      v[j] = scale * static_cast<float>(static_cast<int8_t>(bytes.x >> 8 * j));
      v[4 + j] = scale * static_cast<float>(static_cast<int8_t>(bytes.y >> 8 * j));
    }
  } else {
    load8(w.data, T, i, v);
  }
}
__device__ inline void load8(const Matrix& w, int64_t row, int64_t col, float* v) {
  with_type(w.type, [&]<WType T>() { load8<T>(w, row, col, v); });
}

}  // namespace riffle::cuda
