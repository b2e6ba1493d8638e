// Prepared activations of the integer products for AVX-512: a Limbs for each 64 columns, then
// floats, all padded with zeros. Q8_0: a scale for each 32 columns. Other types: for each step (see
// step_cols) the scales of its groups, then as many sums, of the activations of a group times what
// the type takes off its codes.
//
// Columns lie in the order in which the codes of a type come out of its bytes (place_of).
#pragma once
#include "kernels/cpu/linear/linear_blocks.h"

namespace riffle::cpu {
namespace {

struct Limbs {
  int8_t hi[64];
  uint8_t mid[64], lo[64];
  // Signed codes meet hi with 128 more, which this undoes: -128 * sum of hi of the same four
  // columns (Q8_0), or of those of a pair of limbs, in the first of them (types with a table).
  int32_t start[16];
};
constexpr int kScaleGroup = 16;  // Q8_0: scales are padded to whole vectors

// Columns worked on together: 64 of Q8_0, four blocks of the types with 32 values, one of those
// with 256.
constexpr int64_t step_cols(WType type) {
  return type == WType::Q8_0 ? 64 : has_256(type) ? 256 : 128;
}

inline int64_t steps_of(WType type, int64_t cols) {
  return (cols + step_cols(type) - 1) / step_cols(type);
}
inline int64_t limbs_of(WType type, int64_t cols) {
  return steps_of(type, cols) * (step_cols(type) / 64);
}
inline int64_t floats_of(WType type, int64_t cols) {
  if (type == WType::Q8_0) return round_up(cols / 32, kScaleGroup);
  return round_up(steps_of(type, cols) * (step_cols(type) / group_values(type)) * 2, 16);
}

struct Place {
  int64_t limb;
  int at;
};
// Where the eight columns from 8 i on lie. But for Q8_0, limbs come in pairs whose lanes belong to
// the same groups.
inline Place place_of(WType type, int64_t i) {
  const int g = static_cast<int>(i / 4 % 8), half = static_cast<int>(i / 2 % 2),
            eight = static_cast<int>(i % 2);
  if (type == WType::Q8_0) return {i / 8, static_cast<int>(i % 8 * 8)};
  if (!has_256(type) || type == WType::IQ4_XS) return {i / 16 * 2 + half, g % 4 * 16 + eight * 8};
  if (type == WType::Q3_K || type == WType::Q2_K)
    return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g / 4 * 2 + half) * 16 + g % 2 * 8};
  if (type != WType::Q6_K) return {i / 32 * 4 + g % 2 * 2 + half, g / 2 * 16 + eight * 8};
  return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g % 2 * 2 + half) * 16 + g / 4 * 8};
}

}  // namespace
}  // namespace riffle::cpu
