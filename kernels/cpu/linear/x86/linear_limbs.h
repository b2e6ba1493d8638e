// Encoded activations of the integer products for AVX-512. First one Limbs for each 64 columns.
// Then floats for each step (see step_cols): the scales of its groups, then for each group the sum
// of its activations times the type's offset of the codes. For MXFP4: the scales and, from the 16th
// float on, such a sum for each lane, as an integer without the scale. All are padded with zeros.
// Last one byte for each step, not 0 if some activation of the step has a lower byte.
//
// Columns lie in the order in which the codes of a type come out of its bytes (place_of).
#pragma once
#include "kernels/cpu/linear/x86/linear_blocks.h"
#include "kernels/cpu/linear/x86/linear_codes_avx512.h"

namespace riffle::cpu {
namespace {

// An activation of 16 bits is 256 hi + lo.
struct Limbs {
  int8_t hi[64], lo[64];
};

inline int64_t steps_of(WType type, int64_t cols) {
  return (cols + step_cols(type) - 1) / step_cols(type);
}
inline int64_t limbs_of(WType type, int64_t cols) {
  return steps_of(type, cols) * (step_cols(type) / 64);
}
constexpr int step_floats(WType type) { return offset_is_exact(type) ? 32 : 2 * step_groups(type); }
inline int64_t floats_of(WType type, int64_t cols) {
  return round_up(steps_of(type, cols) * step_floats(type), 16);
}

}  // namespace
}  // namespace riffle::cpu
