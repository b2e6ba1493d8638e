// The stopping test of progressive attention on the device: select/psa.cpp Psa::done, on masses that the row's CTAs have
// published. One warp evaluates it; every CTA of a row comes to the same answer from the same numbers in the same order.
#pragma once
#include "kernels/decode.cuh"

namespace riffle::cuda {

// 2^(a - b) where b >= a; an empty part (a = -inf) weighs nothing.
__device__ inline float weight2(float a, float b) { return a == -INFINITY ? 0.0f : exp2f(a - b); }

__device__ inline HeadStats empty_stats() { return {-INFINITY, 0, INFINITY, -INFINITY}; }

__device__ inline HeadStats merge_stats(const HeadStats& a, const HeadStats& b) {
  const float m = fmaxf(a.m, b.m);
  return {m, __fadd_rn(__fmul_rn(a.s, weight2(a.m, m)), __fmul_rn(b.s, weight2(b.m, m))),
          fminf(a.smallest, b.smallest), fmaxf(a.largest, b.largest)};
}

__device__ inline bool needs_bounds(Stop stop) { return stop == Stop::Bound || stop == Stop::Veto; }

// All lanes of one warp. stats, left: [kRowCtas][kMaxGroup], just written by other CTAs; top: [g]. n_left > 0 candidates are
// not attended. True: all g heads pass.
__device__ inline bool row_passes(const Ranked& ranked, const HeadStats* stats, const double* left, const float* top, int g,
                                  int block_size, int n_left) {
  constexpr int kTurns = kMaxGroup / 2;  // a half of the warp a head
  const int lane = threadIdx.x % 32, cta = lane % kRowCtas, half = lane / kRowCtas;
  const bool bounds = needs_bounds(ranked.stop);
  HeadStats x[kTurns];
  double mass[kTurns];
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int h = 2 * i + half;
    x[i] = empty_stats();
    mass[i] = 0;
    if (h < g) {
      const float4 f = __ldcg(reinterpret_cast<const float4*>(stats + cta * kMaxGroup + h));
      x[i] = {f.x, f.y, f.z, f.w};
      if (bounds) mass[i] = __ldcg(left + cta * kMaxGroup + h);
    }
  }
  const double log_left = log(double(n_left));
  bool pass = true;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int h = 2 * i + half;
    if (2 * i >= g) break;
#pragma unroll
    for (int o = kRowCtas / 2; o > 0; o /= 2) {
      const HeadStats other = {__shfl_xor_sync(kAllLanes, x[i].m, o), __shfl_xor_sync(kAllLanes, x[i].s, o),
                               __shfl_xor_sync(kAllLanes, x[i].smallest, o), __shfl_xor_sync(kAllLanes, x[i].largest, o)};
      x[i] = merge_stats(x[i], other);
      if (bounds) mass[i] += __shfl_xor_sync(kAllLanes, mass[i], o);
    }
    if (h >= g) continue;
    const float l = (x[i].m + log2f(x[i].s)) * kLn2;
    const double limit = double(l) + ranked.slack;
    const double log_mass = bounds ? double(__ldg(top + h)) + log(double(block_size)) + log(mass[i]) : 0;
    switch (ranked.stop) {
      case Stop::Paper: pass &= double(x[i].smallest) + log_left < limit; break;
      case Stop::Window: pass &= double(x[i].largest) + log_left < limit; break;
      case Stop::Veto: pass &= double(x[i].smallest) + log_left < limit && log_mass < limit; break;
      case Stop::Bound: pass &= mass[i] > 0 && log_mass <= limit; break;  // an underflow bounds nothing
    }
  }
  return __all_sync(kAllLanes, cta != 0 || pass);
}

}  // namespace riffle::cuda
