// One vocabulary of vector operations, for the templates of linear/, attention/ and select/
// (*_simd.h). Two instruction sets implement it: Avx2 (avx2.h) and Avx512 (avx512.h). The scalar
// kernels (*_scalar.cpp) do not use it. They are plain loops, so that tests compare the templates
// with an independent reference; scalar.h has the parts that these loops share.
//
// An instruction set S gives:
//
//   Vec, kLanes               a vector of kLanes floats, on which + - * / work
//   kRegisters                number of vector registers
//
//   load, store               kLanes floats, at any address
//   load_n, store_n           the first n of them: the others are loaded as zeros, not stored
//   load_f16(_n), store_f16(_n)   f16 in memory; stores round to nearest, ties to even
//   load_bf16, load_i8        bf16 or int8 in memory
//   load_pairs(p, even, odd)  2 kLanes floats, those at even and at odd places
//   f16_at(p)                 one f16, as a float
//
//   set1(x)                   x in every lane
//   fma(a, b, c), fnma        a * b + c, c - a * b, rounded once
//   max(a, b)                 b where one of them is not a number
//   round                     to an integer, ties to even
//   ldexp(x, n)               x * 2^n for whole n, with gradual underflow
//   exp                       for x <= 88; 0 at -inf (AVX2: below 2^-126 too)
//   log                       for normal positive x
//   negative_abs              -|x|
//
//   select_ge(a, b, x, y)     a >= b ? x : y
//   select_negative(s, x, y)  the sign bit of s is set ? x : y
//   any_less(a, b)            whether a < b in some lane
//   greater_equal(a, b)       a bit for each lane: a >= b
//   keep(x, bits)             x in the lanes of bits, zero in the others
//   compress(x, bits)         the lanes of bits first, in order; the rest is undefined
//
//   swap_lanes<N>             lane i gets lane i ^ N
//   sum                       of all lanes, in a fixed order
//   sum_squares(p, n)         of n floats in memory, summed in double
//   transpose(x)              kLanes vectors as a matrix
//   transpose_sum(x)          lane i is the sum of vector x[i], every sum by the same tree
//
// Everything is in an unnamed namespace: each file that is compiled for an instruction set has a
// copy of its own.
#pragma once

namespace riffle::cpu {
namespace {

constexpr float kNegInf = -__builtin_inff();

// Combines each lane i with all lanes whose index equals i modulo H. All of them get the result.
template <class S, int H, int Step = S::kLanes / 2>
inline typename S::Vec fold_max(typename S::Vec x) {
  if constexpr (Step < H) return x;
  else return fold_max<S, H, Step / 2>(S::max(x, S::template swap_lanes<Step>(x)));
}
template <class S, int H, int Step = S::kLanes / 2>
inline typename S::Vec fold_sum(typename S::Vec x) {
  if constexpr (Step < H) return x;
  else return fold_sum<S, H, Step / 2>(x + S::template swap_lanes<Step>(x));
}

// Returns exp(x - m) for x <= m. It is 0 if x is -inf, even if m is -inf too.
template <class S>
inline typename S::Vec exp_below(typename S::Vec x, typename S::Vec m) {
  const typename S::Vec lowest = S::set1(-3e38f);
  return S::exp(x - S::max(lowest, m));
}

}  // namespace
}  // namespace riffle::cpu
