// One vocabulary of vector operations, for the templates of linear/, attention/ and select/
// (*_simd.h). Avx2 and Avx512 (x86/) and Neon (arm/) implement it. The scalar kernels
// (*_scalar.cpp) do not use it. They are plain loops, so that tests compare the templates with an
// independent reference; scalar.h has the parts that these loops share.
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
#include "kernels/common/agreed.h"

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

// Returns factor * exp(f) with x = n log 2 + f, |f| <= log(2)/2, for finite x. Minimax polynomial,
// relative error 1.0e-7 before rounding. factor: a power of two.
template <class S>
inline __attribute__((always_inline)) typename S::Vec exp_series(typename S::Vec x, float factor,
                                                                 typename S::Vec* n) {
  using Vec = typename S::Vec;
  *n = S::round(x * S::set1(kExpPerLn2));
  const Vec f = S::fnma(*n, S::set1(kExpLn2Low), S::fnma(*n, S::set1(kExpLn2High), x));
  Vec y = S::fma(S::set1(kExpTerm5 * factor), f, S::set1(kExpTerm4 * factor));
  y = S::fma(y, f, S::set1(kExpTerm3 * factor));
  y = S::fma(y, f, S::set1(kExpTerm2 * factor));
  y = S::fma(y, f, S::set1(factor));
  return S::fma(y, f, S::set1(factor));
}

// Returns log(2^n z) = n log 2 + 2 atanh((z-1)/(z+1)) for z in [3/4, 3/2). The series' next term is
// below 1e-9.
template <class S>
inline __attribute__((always_inline)) typename S::Vec log_series(typename S::Vec z,
                                                                 typename S::Vec n) {
  using Vec = typename S::Vec;
  const Vec u = (z - S::set1(1)) / (z + S::set1(1)), u2 = u * u;
  Vec y = S::fma(S::set1(2.0f / 9), u2, S::set1(2.0f / 7));
  y = S::fma(y, u2, S::set1(2.0f / 5));
  y = S::fma(y, u2, S::set1(2.0f / 3));
  y = S::fma(y * u2, u, u + u);
  return S::fma(n, S::set1(0x1.62e43p-1f), y);
}

// Returns exp(x - m) for x <= m. It is 0 if x is -inf, even if m is -inf too.
template <class S>
inline typename S::Vec exp_below(typename S::Vec x, typename S::Vec m) {
  const typename S::Vec lowest = S::set1(-3e38f);
  return S::exp(x - S::max(lowest, m));
}

}  // namespace
}  // namespace riffle::cpu
