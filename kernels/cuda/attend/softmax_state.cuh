// The state of an online softmax (Milakov and Gimelshein, arXiv 1805.02867) to base 2: m, the
// largest score so far, and s, the sum of 2^(score - m).
#pragma once

namespace riffle::cuda {

// 2^(a - b) where b >= a; an empty part (a = -inf) weighs nothing.
__device__ inline float weight2(float a, float b) {
  return a == -INFINITY ? 0.0f : exp2f(__fsub_rn(a, b));
}

// Merges a part that holds at least one score, m_b and s_b, into m and s. Always in this form, so
// that bits do not depend on when parts are merged. exp2: the function that made the part's own
// weights. values(before, now) merges the values: old * before + part * now.
template <class Exp2, class Values>
__device__ inline void merge_states(float& m, float& s, float m_b, float s_b, Exp2 exp2,
                                    Values values) {
  const float top = fmaxf(m, m_b), before = weight2(m, top), now = exp2(__fsub_rn(m_b, top));
  values(before, now);
  s = __fmaf_rn(s_b, now, __fmul_rn(s, before));
  m = top;
}

}  // namespace riffle::cuda
