// The precision of a set's attend_prefill, from the formats of its operands.
#pragma once
#include "kernels/cpu/kernels.h"

namespace riffle::test {

// Root mean square of the relative error of one product (query by key, weight by value); 0: that
// of f32. AMX multiplies pairs of bf16 numbers, hi + lo, and leaves out lo * lo. With uniformly
// distributed mantissas a pair rounds an f32 number by 2^(e - 16) / sqrt(21) for an exponent e, on
// average 2^-18.7 of it, a weight (whose hi is cut off) by twice that. lo * lo is 2^-18.6 of a
// product, with weights twice that. The root of the sum of squares is 2^-17.9 for scores and
// 2^-17.1 for values.
inline double product_rounding(cpu::Isa isa) { return isa == cpu::Isa::Amx ? 0x1p-17 : 0; }

// Errors of single products are independent, so those of an output are near normal: this many
// standard deviations are exceeded once in 5e8 outputs.
inline constexpr double kRoundingDeviations = 6;

}  // namespace riffle::test
