// How weights of 4 to 6 bits are read: the bytes of a tile, 16 rows of 256 columns, and its values and scales as operands of
// the tensor cores' integer product. Lane 4g + t has to do with rows g and g + 8 of a tile.
#pragma once
#include "kernels/convert.cuh"

namespace riffle::cuda::gemv_quant {

constexpr int kRows = 16, kCols = 256, kGroups = kCols / 32;  // of a tile; groups of 32 columns

constexpr bool is_five(WType t) { return t == WType::Q5_0 || t == WType::Q5_1 || t == WType::Q5_K; }

// Bytes of a tile's row in each part of a matrix.
template <WType T>
struct Format {
  static constexpr bool kBlocks = T == WType::Q6_K;                                     // 2 bytes
  static constexpr bool kWhole = T == WType::Q4_K || T == WType::Q5_K || T == WType::Q6_K;  // integer sub-scales
  static constexpr int kData = 128, kHigh = T == WType::Q6_K ? 64 : is_five(T) ? 32 : 0;
  static constexpr int kScales = T == WType::Q4_1 || T == WType::Q5_1 ? 32 : 16;
  // Value = scale * quant - min, else scale * quant.
  static constexpr bool kMin = T == WType::Q4_1 || T == WType::Q5_1 || T == WType::Q4_K || T == WType::Q5_K;
  // Types with an offset have it taken off, and to keep the sign the quant is at the top of a byte: it is too large by a
  // power of two, which this makes good.
  static constexpr float kFactor = T == WType::Q4_0 ? 1.0f / 16 : T == WType::Q5_0 ? 1.0f / 8 : T == WType::Q6_K ? 0.25f : 1;
  // A tile in shared memory: [rows][kData], where piece p of 16 bytes of row r is at p ^ r % 8; [rows][kHigh];
  // [rows][kScales]; of Q6_K the 4 bytes with each row's d.
  static constexpr int kHighAt = kRows * kData, kScalesAt = kHighAt + kRows * kHigh, kBlocksAt = kScalesAt + kRows * kScales;
  static constexpr int kBytes = kBlocksAt + (kBlocks ? kRows * 4 : 0);
};

// Of group m and row r (g or g + 8): values 4t to 4t + 3 and 16 + 4t to 19 + 4t as signed bytes.
template <WType T>
__device__ __forceinline__ void unpack(const char* tile, int r, int m, int t, uint32_t* first, uint32_t* second) {
  using F = Format<T>;
  const uint32_t w = *reinterpret_cast<const uint32_t*>(tile + r * F::kData + ((m ^ (r % 8)) * 16) + t * 4);
  if constexpr (T == WType::Q6_K) {
    uint2 h = *reinterpret_cast<const uint2*>(tile + F::kHighAt + r * F::kHigh + m * 8);
    h.x = (h.x ^ 0xaaaaaaaau) << (6 - 2 * t), h.y = (h.y ^ 0xaaaaaaaau) << (6 - 2 * t);  // the highest bit, as a sign
    *first = (w << 2 & 0x3c3c3c3cu) | (h.x & 0xc0c0c0c0u);
    *second = (w >> 2 & 0x3c3c3c3cu) | (h.y & 0xc0c0c0c0u);
  } else if constexpr (T == WType::Q4_0) {
    *first = (w << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
    *second = (w & 0xf0f0f0f0u) ^ 0x80808080u;
  } else if constexpr (T == WType::Q5_0) {
    const uint32_t h = ~*reinterpret_cast<const uint32_t*>(tile + F::kHighAt + r * F::kHigh + m * 4);
    *first = (w << 3 & 0x78787878u) | (h << (7 - t) & 0x80808080u);
    *second = (w >> 1 & 0x78787878u) | (h << (3 - t) & 0x80808080u);
  } else {
    *first = w & 0x0f0f0f0fu, *second = w >> 4 & 0x0f0f0f0fu;
    if constexpr (F::kHigh > 0) {
      const uint32_t h = *reinterpret_cast<const uint32_t*>(tile + F::kHighAt + r * F::kHigh + m * 4);
      *first |= h << (4 - t) & 0x10101010u, *second |= h >> t & 0x10101010u;
    }
  }
}

// What a row's tile has for scales. scale and min: bytes of the 8 groups (Q6_K: scale has 16 for 16 columns each); d, dmin.
template <WType T>
struct Scales {
  using F = Format<T>;
  uint32_t scale[T == WType::Q6_K ? 4 : 2], min[2];
  float d, dmin;

  __device__ __forceinline__ void load(const char* tile, int r, int odd_tile) {
    const uint4 v = *reinterpret_cast<const uint4*>(tile + F::kScalesAt + r * F::kScales);
    if constexpr (T == WType::Q6_K) {
      scale[0] = v.x, scale[1] = v.y, scale[2] = v.z, scale[3] = v.w;
      d = f16_bits_to_f32(*reinterpret_cast<const uint16_t*>(tile + F::kBlocksAt + r * 4 + odd_tile * 2)) * F::kFactor;
    } else {
      d = f16_bits_to_f32(v.x & 0xffff), dmin = f16_bits_to_f32(v.x >> 16);
      scale[0] = (v.y & 0x0f0f0f0fu) | (v.w << 4 & 0x30303030u), scale[1] = (v.z & 0x0f0f0f0fu) | (v.w & 0x30303030u);
      min[0] = (v.y >> 4 & 0x0f0f0f0fu) | (v.w << 2 & 0x30303030u), min[1] = (v.z >> 4 & 0x0f0f0f0fu) | (v.w >> 2 & 0x30303030u);
    }
  }
  __device__ __forceinline__ int scale_of(int m) const { return static_cast<int>(scale[m / 4] >> 8 * (m % 4) & 255); }
  __device__ __forceinline__ int signed_of(int m) const { return static_cast<int8_t>(scale[m / 4] >> 8 * (m % 4)); }
  __device__ __forceinline__ float min_of(int m) const {
    return static_cast<float>(static_cast<int>(min[m / 4] >> 8 * (m % 4) & 255));
  }
};
// Types with f16 scales for 32 values.
template <WType T>
__device__ __forceinline__ float group_scale(const char* tile, int r, int m) {
  using F = Format<T>;
  const char* at = tile + F::kScalesAt + r * F::kScales + m * (F::kScales / kGroups);
  return f16_bits_to_f32(*reinterpret_cast<const uint16_t*>(at)) * F::kFactor;
}
template <WType T>
__device__ __forceinline__ float group_min(const char* tile, int r, int m) {  // what is taken off
  using F = Format<T>;
  return -f16_bits_to_f32(*reinterpret_cast<const uint16_t*>(tile + F::kScalesAt + r * F::kScales + m * 4 + 2));
}

}  // namespace riffle::cuda::gemv_quant
