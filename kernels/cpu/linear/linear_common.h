// Parts the linear_*.cpp files share. Everything has internal linkage: each file is compiled for
// its own instruction set.
#pragma once
#include <cstring>

#include "kernels/common/half.h"
#include "kernels/cpu/linear/linear.h"

namespace riffle::cpu {
namespace {

constexpr int kQ8 = 32;       // values per Q8_0 block
constexpr int kQ8Bytes = 34;  // f16 scale, then 32 int8

inline int64_t bytes_of_row(WType type, int64_t cols) { return row_bytes(type, cols); }

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline float float_of_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t load_u16(const void* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
inline float load_f32(const void* p) {
  float v;
  memcpy(&v, p, 4);
  return v;
}

inline float f32_of_bf16(uint16_t h) { return float_of_bits(static_cast<uint32_t>(h) << 16); }

// One weight of a row, as f32; not of the types with 2 to 6 bits (quants.h).
inline float weight_at(WType type, const uint8_t* row, int64_t j) {
  switch (type) {
    case WType::F32: return load_f32(row + j * 4);
    case WType::F16: return f16_to_f32(load_u16(row + j * 2));
    case WType::BF16: return f32_of_bf16(load_u16(row + j * 2));
    case WType::Q8_0: {
      const uint8_t* block = row + j / kQ8 * kQ8Bytes;
      return f16_to_f32(load_u16(block)) *
             static_cast<float>(static_cast<int8_t>(block[2 + j % kQ8]));
    }
    default: return __builtin_nanf("");
  }
}

constexpr int kRopeMaxHalf = 2048;  // pairs of the largest head

// Rotates one head of 2*half values; cs is [half][2] (cos, sin).
inline void rope_head(float* x, int half, const float* cs, RopePairs pairs) {
  float in[2 * kRopeMaxHalf];
  memcpy(in, x, sizeof(float) * 2 * half);
  for (int j = 0; j < half; ++j) {
    const float c = cs[2 * j], s = cs[2 * j + 1];
    const float x0 = in[pairs.first(j)], x1 = in[pairs.second(j, half)];
    x[j] = x0 * c - x1 * s;
    x[j + half] = x0 * s + x1 * c;
  }
}

}  // namespace
}  // namespace riffle::cpu
