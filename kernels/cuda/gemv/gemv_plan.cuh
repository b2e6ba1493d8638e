// How the work of a GEMV launch is cut: the rows of W into units, units among the warps in rounds,
// shared memory into stages of the warps' rings. The kernels' plans are structs of their own; the
// members that these functions name mean the same in each.
#pragma once
#include "kernels/cuda/gemv/gemv.h"

namespace riffle::cuda {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Cuts the outputs into units of `rows` rows (SwiGlu: half of them of either matrix, which together
// are one output). Sets plan.args, plan.units, of each output, and plan.n_units.
template <class Plan>
void set_units(Plan& plan, const Gemv& args, int rows) {
  plan.args = args;
  const bool pairs = args.then == Then::SwiGlu;
  if (pairs) rows /= 2, plan.args.n_outs = 1;
  plan.n_units = 0;
  for (int o = 0; o < plan.args.n_outs; o++) {
    plan.units[o] = static_cast<int>(round_up(args.w[o].rows, rows) / rows);
    plan.n_units += plan.units[o];
  }
}

// Units that the busiest of so many warps (or groups of warps) goes through. Sets plan.rounds.
template <class Plan>
void set_rounds(Plan& plan, int64_t warps) {
  plan.rounds = static_cast<int>(round_up(plan.n_units, warps) / warps);
}

// The output that a unit belongs to; *unit becomes the number of the unit within it.
template <class Plan>
__device__ __forceinline__ int output_of(const Plan& plan, int* unit) {
  int out = 0;
  if (out + 1 < plan.args.n_outs && *unit >= plan.units[0]) *unit -= plan.units[0], out = 1;
  if (out == 1 && plan.args.n_outs > 2 && *unit >= plan.units[1]) *unit -= plan.units[1], out = 2;
  return out;
}

}  // namespace riffle::cuda
