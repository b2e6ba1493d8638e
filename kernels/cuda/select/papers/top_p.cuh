// Parts that the two halves of Twilight on the device share (top_p_scores.cu, top_p.cu): a row's
// base, its scores, the weight of a score.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/cuda/select/papers/rank.cuh"

namespace riffle::cuda {

inline constexpr int kScoreThreads = 256;

struct TopPArgs {
  DecodeStep step;
  TopPRule rule;
  PaperScratch scratch;
  int g;
  int n_parts;  // CTAs of a row's scores
  bool ranked;  // the base's order is in scratch.order; else the candidates follow in token order
  float scale;  // 1 / sqrt(d)
};

__device__ inline int base_block(const TopPArgs& a, const RowGeometry& r, int row, int p) {
  if (p < r.n_forced) return forced_block(r, p);
  return a.ranked ? __ldcg(a.scratch.order + int64_t(row) * a.step.max_blocks + p)
                  : r.first + p - r.n_forced;
}
__device__ inline float* scores_of(const TopPArgs& a, int row, int h) {
  return a.scratch.token_scores +
         (int64_t(row) * a.g + h) * a.step.max_blocks * a.step.layout.block_size;
}

// exp(score - top) as in kernels/cpu/simd/avx2.h, bit for bit; top: the largest score.
__device__ inline float weight_below(float score, float top) {
  const float x = __fsub_rn(score, fmaxf(-3e38f, top));
  const float n = rintf(__fmul_rn(fmaxf(x, kExpLeast), kExpPerLn2));
  const float f = __fmaf_rn(-n, kExpLn2Low, __fmaf_rn(-n, kExpLn2High, fmaxf(x, kExpLeast)));
  float y = __fmaf_rn(kExpTerm5, f, kExpTerm4);
  y = __fmaf_rn(y, f, kExpTerm3);
  y = __fmaf_rn(y, f, kExpTerm2);
  y = __fmaf_rn(y, f, 1.0f);
  y = __fmaf_rn(y, f, 1.0f);
  y = __int_as_float(__float_as_int(y) + (static_cast<int>(n) << 23));
  return x >= kExpLeast ? y : 0.0f;  // false for NaN
}
// A weight in units of 2^-30.
__device__ inline uint32_t fixed_weight(float w) { return __float2uint_rn(w * 0x1p30f); }

// Returns the geometry of the tokens that the base may read of a row.
__device__ inline RowGeometry base_geometry(const TopPArgs& a, int n_tokens, int block_size) {
  return ranked_geometry(a.step.rule, a.rule.base, n_tokens, block_size);
}

inline TopPArgs top_p_arguments(const DecodeStep& step, const TopPRule& rule,
                                const PaperScratch& scratch, int n_sm) {
  TopPArgs a{};
  a.step = step;
  a.rule = rule;
  a.scratch = scratch;
  a.g = step.n_heads / step.n_kv_heads;
  const int64_t rows = int64_t(step.n) * step.n_kv_heads, warps = kScoreThreads / 32;
  const int64_t wanted = (step.max_blocks + warps - 1) / warps, share = 2 * int64_t(n_sm) / rows;
  a.n_parts = static_cast<int>(share < 1 ? 1 : wanted < share ? wanted : share);
  a.ranked = ranks_base(rule);
  a.scale = 1.0f / sqrtf(float(step.layout.head_dim));
  return a;
}

}  // namespace riffle::cuda
