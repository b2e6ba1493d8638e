// Thresholds for choosing by weight: for a top-p set (Twilight, arXiv 2502.02770, section 4.2), and
// for the k best.
#pragma once
#include <cstdint>

#include "kernels/cpu/select/select.h"

namespace riffle {

// Returns the number of floats of scratch that the functions below need for n weights or scores.
constexpr int64_t top_scratch(int64_t n) { return 2 * (n + 16); }

// Returns the largest T such that the weights >= T sum to at least p of the whole sum. The set
// { w >= T } is the smallest such set; equal weights are kept or dropped together. Returns 0 (keep
// everything) if p >= 1. exp_weights writes w and returns sum. Sums are exact in units of 2^-30, so
// the set does not depend on the order of the weights, and it grows with p.
float top_p_threshold(const cpu::SelectKernels& kernels, const float* w, int64_t n, uint64_t sum,
                      double p, float* scratch);

// Returns the k-th largest of n scores (1 <= k <= n, no NaN).
float kth_largest(const cpu::SelectKernels& kernels, const float* scores, int64_t n, int64_t k,
                  float* scratch);

}  // namespace riffle
