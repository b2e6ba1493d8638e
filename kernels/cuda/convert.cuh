// Number formats on the device: weights to f32, f32 to 16 bits, and the few sums every kernel
// needs.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

inline constexpr int kQ8Group = 32;  // values per Q8_0 scale

__device__ inline float f16_bits_to_f32(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline float bf16_bits_to_f32(uint32_t bits) { return __uint_as_float(bits << 16); }

// Clips to +-65504, the largest finite f16, where a conversion would give infinity. NaN stays NaN.
__device__ inline float cut_to_f16(float x) {
  return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
}
__device__ inline uint16_t f32_to_f16_saturating(float x) {
  return __half_as_ushort(__float2half_rn(cut_to_f16(x)));
}
__device__ inline uint16_t f32_to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// Two neighbouring 16-bit values, the first in the low half. F16 saturates.
__device__ inline uint32_t pack_16_bits(WType type, float low, float high) {
  return type == WType::F16
             ? f32_to_f16_saturating(low) | static_cast<uint32_t>(f32_to_f16_saturating(high)) << 16
             : f32_to_bf16(low) | static_cast<uint32_t>(f32_to_bf16(high)) << 16;
}

// Element i of an array of a plain type (not Q8_0).
__device__ inline float load_as_f32(const void* p, WType type, int64_t i) {
  if (type == WType::F32) return static_cast<const float*>(p)[i];
  const uint32_t bits = static_cast<const uint16_t*>(p)[i];
  return type == WType::F16 ? f16_bits_to_f32(bits) : bf16_bits_to_f32(bits);
}
__device__ inline void store_f32_as(void* p, WType type, int64_t i, float x) {
  if (type == WType::F32) static_cast<float*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = type == WType::F16 ? f32_to_f16_saturating(x) : f32_to_bf16(x);
}

static_assert(WType::BF16 < WType::Q8_0 && WType::Q8_0 < WType::Q4_0 &&
                  static_cast<int>(WType::Q4_0) == 4,
              "the kernels tell plain types, Q8_0 and those of 2 to 6 bits by their order");

// The table of type T for __byte_perm.
template <WType T>
struct Table {
  static constexpr uint32_t kWords[4] = {table_word(T, 0), table_word(T, 1), table_word(T, 2),
                                         table_word(T, 3)};
};
// The table's values for the low halves of four bytes, and for their high halves.
template <WType T>
__device__ __forceinline__ void look_up(uint32_t codes, uint32_t* low, uint32_t* high) {
  constexpr uint32_t t0 = Table<T>::kWords[0], t1 = Table<T>::kWords[1], t2 = Table<T>::kWords[2],
                     t3 = Table<T>::kWords[3];
  // Bits 0 to 2 of a code choose from either half of the table, bit 3 between those two.
  const uint32_t at = codes & 0x77777777u, half = 0x32103210u | (codes & 0x88888888u) >> 1;
  const uint32_t first =
      __byte_perm(__byte_perm(t0, t1, at), __byte_perm(t2, t3, at), half & 0xffff);
  const uint32_t last =
      __byte_perm(__byte_perm(t0, t1, at >> 16), __byte_perm(t2, t3, at >> 16), half >> 16);
  *low = __byte_perm(first, last, 0x6420), *high = __byte_perm(first, last, 0x7531);
}

// Reads values [j, j + 8) of the 32 values of a group, in a row of 2 to 6 bits; j is a multiple
// of 8. They equal those of kernels/cpu/linear/quants.h bit for bit: no product here is rounded, so
// it does not matter which ones the compiler fuses.
template <WType T>
__device__ inline void quants_of_group(const Matrix& w, int64_t row, int64_t group, int j,
                                       float* out) {
  constexpr DTypeInfo type = dtype_info(T);
  constexpr bool kTwo = type.low_bits == 2;
  const RowParts parts = row_parts(type, w.cols);
  const int k = j / 4, g = static_cast<int>(group % 8);  // words k and k + 1 of the group
  const auto* high = static_cast<const char*>(w.high) + row * parts.high;
  const auto* scales = static_cast<const char*>(w.scales) + row * parts.scales;
  const auto half_at = [](const void* p, int64_t i) {
    return f16_bits_to_f32(static_cast<const uint16_t*>(p)[i]);
  };
  const auto* data = static_cast<const char*>(w.data) + row * parts.data;
  uint32_t q[2];
  if constexpr (kTwo) {
    const uint32_t pairs =
        *reinterpret_cast<const uint32_t*>(data + group * 8 + j / 16 * 4) >> 2 * (k % 4);
    q[0] = pairs & 0x03030303u, q[1] = pairs >> 2 & 0x03030303u;
  } else {
    const uint2 both = *reinterpret_cast<const uint2*>(data + group * 16 + j % 16);
    uint32_t low[2] = {both.x & 0x0f0f0f0fu, both.y & 0x0f0f0f0fu},
             up[2] = {both.x >> 4 & 0x0f0f0f0fu, both.y >> 4 & 0x0f0f0f0fu};
    if constexpr (type.has_table())
      look_up<T>(both.x, &low[0], &up[0]), look_up<T>(both.y, &low[1], &up[1]);
    for (int i = 0; i < 2; i++) q[i] = j < 16 ? low[i] : up[i];
  }
  float scale, min = 0;
  if constexpr (type.scales == Scales::Half) {
    const int64_t block = group / (type.block_values / 32);
    if constexpr (type.has_min())
      scale = half_at(scales, 2 * block), min = -half_at(scales, 2 * block + 1);
    else scale = half_at(scales, block);
  } else if constexpr (type.scales == Scales::Exponent) {
    scale = __uint_as_float(half_e8m0_bits(static_cast<uint8_t>(scales[group])));
  } else if constexpr (type.scales == Scales::Signed) {
    const auto* d = static_cast<const char*>(w.blocks) + row * parts.blocks;
    scale =
        half_at(d, group / 8) * static_cast<float>(static_cast<int8_t>(scales[2 * group + j / 16]));
  } else if constexpr (type.scales == Scales::Split) {
    const uint2 s = *reinterpret_cast<const uint2*>(scales + group / 8 * 8);
    scale = f16_bits_to_f32(s.x & 0xffff) * static_cast<float>(split_scale(s.y, s.x >> 16, g));
  } else if constexpr (type.scales == Scales::Sixes) {
    const auto* s = reinterpret_cast<const uint8_t*>(scales + group / 8 * 16);
    const int i = 2 * g + j / 16;
    const int six = (s[4 + i % 8] >> i / 8 * 4 & 15) | (s[12 + i % 4] >> i / 4 * 2 & 3) << 4;
    scale = half_at(s, 0) * static_cast<float>(six - 32);
  } else if constexpr (type.scales == Scales::Nibbles) {
    const auto* d = static_cast<const char*>(w.blocks) + row * parts.blocks + group / 8 * 4;
    const int both = static_cast<uint8_t>(scales[2 * group + j / 16]);
    scale = half_at(d, 0) * static_cast<float>(both & 15);
    min = half_at(d, 1) * static_cast<float>(both >> 4);
  } else {
    static_assert(type.scales == Scales::Pairs);
    const auto* s = reinterpret_cast<const uint8_t*>(scales + group / 8 * 16);
    const int more = s[12 + g % 4] >> g / 4 * 4;
    scale = half_at(s, 0) * static_cast<float>((s[4 + g] & 15) | (more & 3) << 4);
    min = half_at(s, 1) * static_cast<float>(s[4 + g] >> 4 | (more >> 2 & 3) << 4);
  }
  if constexpr (type.high_bits == 2) {
    const uint32_t pairs =
        *reinterpret_cast<const uint32_t*>(high + group * 8 + j / 16 * 4) >> 2 * (k % 4);
    q[0] |= (pairs & 0x03030303u) << 4, q[1] |= (pairs >> 2 & 0x03030303u) << 4;
  } else if constexpr (type.high_bits == 1) {
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(high + group * 4) >> k;
    q[0] |= (bits & 0x01010101u) << type.low_bits, q[1] |= (bits >> 1 & 0x01010101u)
                                                           << type.low_bits;
  }
  constexpr bool kMin = type.offset == 0;
  for (int i = 0; i < 8; i++) {
    const float product =
        scale * static_cast<float>(static_cast<int8_t>(q[i / 4] >> 8 * (i % 4)) - type.offset);
    out[i] = kMin ? product - min : product;
  }
}
// The same for values [col, col + 8) of the row, where col is a multiple of 8.
template <WType T>
__device__ inline void quants_at(const Matrix& w, int64_t row, int64_t col, float* out) {
  quants_of_group<T>(w, row, col / 32, static_cast<int>(col % 32), out);
}
__device__ inline void quants_at(const Matrix& w, int64_t row, int64_t col, float* out) {
  with_type(w.type, [&]<WType T>() {
    if constexpr (T > WType::Q8_0) quants_at<T>(w, row, col, out);
  });
}

// Element (row, col) of a weight matrix of any type.
__device__ inline float weight_at(const Matrix& w, int64_t row, int64_t col) {
  const int64_t i = row * w.cols + col;
  if (w.type <= WType::BF16) return load_as_f32(w.data, w.type, i);
  if (w.type != WType::Q8_0) {
    float v[8];
    quants_at(w, row, col / 8 * 8, v);
    return v[col % 8];
  }
  const float scale = f16_bits_to_f32(static_cast<const uint16_t*>(w.scales)[i / kQ8Group]);
  return scale * static_cast<float>(static_cast<const int8_t*>(w.data)[i]);
}

// The sum over a warp, in every lane, in a fixed order.
__device__ inline float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// g / (1 + e^-g), written with e = e^-|g| so that nothing overflows; silu(-inf) = 0.
// kernels/cpu/linear/linear_scalar.cpp does the same.
__device__ inline float silu(float g) {
  const float e = expf(-fabsf(g));
  return (g < 0 ? fmaxf(g, -3.402823466e38f) * e : g) / (1.0f + e);
}

// g / (1 + e^-2u), u = sqrt(2/pi) (g + 0.044715 g^3). linear_scalar.cpp computes it in the same
// way.
__device__ inline float gelu_tanh(float g) {
  const float u = 0.7978845608028654f * g * (1.0f + 0.044715f * g * g), e = expf(-2.0f * fabsf(u));
  return (g < 0 ? fmaxf(g, -3.402823466e38f) * e : g) / (1.0f + e);
}

// The same as clamped_swiglu of the CPU. NaN stays NaN.
__device__ inline float clamped_swiglu(float g, float up) {
  g = g > 7.0f ? 7.0f : g;
  up = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  const float e = expf(-1.702f * fabsf(g));
  const float glu = (g < 0 ? fmaxf(g, -3.402823466e38f) * e : g) / (1.0f + e);
  return __fmul_rn(glu, __fadd_rn(up, 1.0f));
}

__device__ inline float gated(Gate gate, float g, float up) {
  if (gate == Gate::ClampedSilu) return clamped_swiglu(g, up);
  return __fmul_rn(gate == Gate::GeluTanh ? gelu_tanh(g) : silu(g), up);
}

// max(0, x)^2. NaN stays NaN.
__device__ inline float relu_squared(float x) { return x <= 0 ? 0 : x * x; }

// Tells whether 16-byte accesses of elements of `type` at p are possible for every multiple of
// `stride` elements.
inline bool vector_aligned(const void* p, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride * element_bytes % 16 == 0;
}
inline int64_t element_bytes(WType type) {
  return type == WType::F32 ? 4 : type == WType::Q8_0 ? 1 : 2;
}

}  // namespace riffle::cuda
