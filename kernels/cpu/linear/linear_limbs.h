// Prepared activations of the integer products for AVX-512: a Limbs for each 64 columns, then
// floats, all padded with zeros: for each step (see step_cols) the scales of its groups, then as
// many sums, of the activations of a group times what the type takes off its codes. MXFP4: scales,
// and from the 16th float on such a sum for each lane, as an integer and without the scale. Then a
// byte for each step, which is not 0 if some activation of the step has a lower byte.
//
// Columns lie in the order in which the codes of a type come out of its bytes (place_of).
#pragma once
#include "kernels/cpu/linear/linear_blocks.h"

namespace riffle::cpu {
namespace {

// An activation of 16 bits is 256 hi + lo.
struct Limbs {
  int8_t hi[64], lo[64];
};

// What unsigned codes exceed signed ones by.
constexpr int unsigned_offset(WType type) {
  return type == WType::Q8_0 ? 128 : type == WType::MXFP4 ? 12 : code_offset(type);
}

// Columns worked on together: four blocks of the types with 32 values, one of those with 256.
constexpr int64_t step_cols(WType type) { return has_256(type) ? 256 : 128; }

inline int64_t steps_of(WType type, int64_t cols) {
  return (cols + step_cols(type) - 1) / step_cols(type);
}
inline int64_t limbs_of(WType type, int64_t cols) {
  return steps_of(type, cols) * (step_cols(type) / 64);
}
constexpr int step_floats(WType type) {
  return type == WType::MXFP4 ? 32 : static_cast<int>(2 * step_cols(type) / group_values(type));
}
inline int64_t floats_of(WType type, int64_t cols) {
  return round_up(steps_of(type, cols) * step_floats(type), 16);
}

struct Place {
  int64_t limb;
  int at;
};
// Where the eight columns from 8 i on lie. Limbs come in pairs whose lanes belong to the same
// groups.
inline Place place_of(WType type, int64_t i) {
  const int g = static_cast<int>(i / 4 % 8), half = static_cast<int>(i / 2 % 2),
            eight = static_cast<int>(i % 2);
  if (!has_256(type) || type == WType::IQ4_XS) return {i / 16 * 2 + half, g % 4 * 16 + eight * 8};
  if (type == WType::Q3_K || type == WType::Q2_K)
    return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g / 4 * 2 + half) * 16 + g % 2 * 8};
  if (type != WType::Q6_K) return {i / 32 * 4 + g % 2 * 2 + half, g / 2 * 16 + eight * 8};
  return {i / 32 * 4 + g % 4 / 2 * 2 + eight, (g % 2 * 2 + half) * 16 + g / 4 * 8};
}

}  // namespace
}  // namespace riffle::cpu
