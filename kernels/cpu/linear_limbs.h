// Prepared activations of the integer products for AVX-512: a Limbs for each 64 columns, then a float scale for each 32
// (Q6_K: 16), then, for types with minima, the sum of each 32; all padded with zeros.
//
// Columns lie in the order in which the codes of a type come out of its bytes (place_of).
#pragma once
#include "kernels/cpu/linear_blocks.h"

namespace riffle::cpu {
namespace {

struct Limbs {
  int8_t hi[64];
  uint8_t mid[64], lo[64];
  int32_t start[16];  // -code_offset * sum of hi of the same four columns
};
constexpr int kScaleGroup = 16;  // scales are padded to whole vectors

// Columns worked on together: 64 of Q8_0, four blocks of the types with 32 values, one of those with 256.
constexpr int64_t step_cols(WType type) { return type == WType::Q8_0 ? 64 : has_256(type) ? 256 : 128; }
// Two limbs that share scales and are summed together: the first and second halves of several groups of 32.
constexpr bool has_pairs(WType type) { return type != WType::Q8_0 && type != WType::Q6_K; }

inline int64_t limbs_of(WType type, int64_t cols) { return (cols + step_cols(type) - 1) / step_cols(type) * (step_cols(type) / 64); }
inline int64_t scales_of(WType type, int64_t cols) { return round_up(cols / group_values(type), kScaleGroup); }

struct Place {
  int64_t limb;
  int at;
};
// Where half (0, 1) of the g-th group of 32 columns lies.
inline Place place_of(WType type, int64_t g, int half) {
  if (!has_pairs(type)) return {g / 2, static_cast<int>(g % 2 * 32 + 16 * half)};
  if (!has_256(type)) return {g / 4 * 2 + half, static_cast<int>(g % 4 * 16)};
  return {g / 8 * 4 + g % 2 * 2 + half, static_cast<int>(g % 8 / 2 * 16)};
}

}  // namespace
}  // namespace riffle::cpu
