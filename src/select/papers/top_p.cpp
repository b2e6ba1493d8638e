// Finds thresholds by bisecting the bits of a float, which order as the numbers do. The paper
// bisects the values until the gap is small. Bisecting the bits ends at the exact threshold after
// at most 31 steps (our choice). Weights that a step has decided are left out of later steps, so
// that all steps together read the weights a few times, not 31.
#include "select/papers/top_p.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace riffle {

float top_p_threshold(const cpu::SelectKernels& kernels, const float* w, int64_t n, uint64_t sum,
                      double p, float* scratch) {
  if (p >= 1 || sum == 0) return 0;
  const auto target =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::ceil(p * static_cast<double>(sum))), 1, sum);
  // Invariant: weights with bits >= lo sum to at least the target, weights >= hi do not. `in` holds
  // the weights between lo and hi.
  uint32_t lo = 0, hi = std::bit_cast<uint32_t>(1.0f) + 1;
  uint64_t above_hi = 0;
  const float* in = w;
  float *here = scratch, *other = scratch + n + 16;
  // Any pivot gives the right result. This one leaves out almost all weights of a peaked
  // distribution at once.
  const double share = (1 - p) * static_cast<double>(sum) * 0x1p-30 / static_cast<double>(n);
  uint32_t pivot =
      std::clamp(std::bit_cast<uint32_t>(static_cast<float>(share / 2)), lo + 1, hi - 1);
  while (hi - lo > 1 && n > 1) {
    int64_t n_above = 0;
    const uint64_t s = kernels.split(in, n, std::bit_cast<float>(pivot), here, other, &n_above);
    if (above_hi + s >= target) {
      lo = pivot;
      n = n_above;
    } else {
      hi = pivot;
      above_hi += s;
      n -= n_above;
      std::swap(here, other);
    }
    in = here;
    pivot = lo + (hi - lo) / 2;
  }
  return hi - lo > 1 ? in[0] : std::bit_cast<float>(lo);
}

// Returns bits that order as floats of both signs do. unordered is the inverse.
static uint32_t ordered(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
static float unordered(uint32_t bits) {
  return std::bit_cast<float>(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

float kth_largest(const cpu::SelectKernels& kernels, const float* scores, int64_t n, int64_t k,
                  float* scratch) {
  // Invariant: at least k scores are >= lo, fewer than k are >= hi.
  uint32_t lo = ordered(-INFINITY), hi = ordered(INFINITY) + 1;
  const float* in = scores;
  float *here = scratch, *other = scratch + n + 16;
  while (hi - lo > 1 && n > 1) {
    // A pivot from among the undecided scores about halves them; the middle of the range ends the
    // search among equal scores.
    const float guess = in[n / 2];
    uint32_t pivot =
        n > 16 && ordered(guess) > lo && ordered(guess) < hi ? ordered(guess) : lo + (hi - lo) / 2;
    int64_t n_above = 0;
    kernels.split(in, n, unordered(pivot), here, other, &n_above);
    if (n_above >= k) {
      lo = pivot;
      n = n_above;
    } else {
      hi = pivot;
      k -= n_above;
      n -= n_above;
      std::swap(here, other);
    }
    in = here;
  }
  return hi - lo > 1 ? in[0] : unordered(lo);
}

}  // namespace riffle
