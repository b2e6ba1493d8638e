// Choosing by weight: the threshold of a top-p set (Twilight, arXiv 2502.02770, 4.2) and that of
// the k best.
#pragma once
#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace riffle {

// Floats that the two below need as scratch for n weights or scores.
constexpr int64_t top_scratch(int64_t n) { return 2 * (n + 16); }

// The largest T for which the weights >= T sum to p of all, at least; so { w >= T } is the smallest
// such set, ties whole. 0 (keep everything) if p >= 1. w: what exp_weights wrote, sum: what it
// returned. Sums are exact in units of 2^-30, hence the set depends neither on the order of the
// weights nor on the way to T, and grows with p.
float top_p_threshold(const cpu::SelectKernels& kernels, const float* w, int64_t n, uint64_t sum,
                      double p, float* scratch);

// The k-th largest of n scores (1 <= k <= n, no NaN).
float kth_largest(const cpu::SelectKernels& kernels, const float* scores, int64_t n, int64_t k,
                  float* scratch);

}  // namespace riffle
