// Thresholds for choosing by weight: of a top-p set (Twilight, arXiv 2502.02770, section 4.2), and
// of the k best.
#pragma once
#include <cstdint>

#include "kernels/cpu/select/select.h"

namespace riffle {

// Floats of scratch that the functions below need for n weights or scores.
constexpr int64_t top_scratch(int64_t n) { return 2 * (n + 16); }

// The largest T such that the weights >= T sum to at least p of the whole sum. The set { w >= T }
// is the smallest such set; equal weights are kept or dropped together. Returns 0 (keep everything)
// if p >= 1. w and sum: written and returned by exp_weights. Sums are exact in units of 2^-30, so
// the set does not depend on the order of the weights, and it grows with p.
float top_p_threshold(const cpu::SelectKernels& kernels, const float* w, int64_t n, uint64_t sum,
                      double p, float* scratch);

// The k-th largest of n scores (1 <= k <= n, no NaN).
float kth_largest(const cpu::SelectKernels& kernels, const float* scores, int64_t n, int64_t k,
                  float* scratch);

}  // namespace riffle
