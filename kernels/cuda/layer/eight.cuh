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
  for (int j = 0; j < 4; j++) words[j] = pack_16_bits(type, v[2 * j], v[2 * j + 1]);
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out) + i) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

// Values [i, i + 8) of a matrix of any type, counted row by row, where i is a multiple of 8 and
// data 16-byte aligned.
__device__ inline void load8(const Matrix& w, int64_t i, float* v) {
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

}  // namespace riffle::cuda
