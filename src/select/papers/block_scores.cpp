// Scores of blocks for a group of query heads, by digests or by 2-bit keys.
#include <algorithm>
#include <cmath>
#include <limits>

#include "select/block_masses.h"
#include "select/papers/papers.h"
#include "select/rank_key.h"

namespace riffle {

int budget_blocks(const Row& row, float budget) {
  const double tokens = budget <= 1 ? double(budget) * double(row.n_tokens) : double(budget);
  return static_cast<int>(std::min(std::ceil(tokens / row.block_size), double(row.n_blocks)));
}

// Combines the scores of g query heads, heads[h * stride + i], into one score for each candidate,
// in plan.scores. A head's scores are logarithms of masses, up to a constant that all share.
static void combine_heads(HeadRule combine, const float* heads, int64_t stride, int g,
                          RowPlan& plan) {
  const int n = plan.n_candidates();
  float* scores = plan.scores.data();
  std::vector<uint64_t> keys(combine == HeadRule::UNION ? n : 0);
  std::fill_n(scores, n,
              combine == HeadRule::UNION ? -std::numeric_limits<float>::infinity() : 0.f);
  for (int h = 0; h < g; ++h) {
    const float* one = heads + h * stride;
    if (combine == HeadRule::MEAN) {
      for (int i = 0; i < n; ++i) scores[i] += one[i] / static_cast<float>(g);
    } else if (combine == HeadRule::SOFT_SUM) {
      // All ranked blocks are full, so log n_b is the same for all blocks and cancels.
      const float top = *std::max_element(one, one + n);
      float sum = 0;
      for (int i = 0; i < n; ++i) sum += std::exp(one[i] - top);
      for (int i = 0; i < n; ++i) scores[i] += std::exp(one[i] - top) / sum;
    } else {
      for (int i = 0; i < n; ++i) keys[i] = rank_key(one[i], i);
      std::sort(keys.begin(), keys.end());
      for (int r = 0; r < n; ++r) {
        float& s = scores[keys[r] & 0xffffffffu];
        s = std::max(s, static_cast<float>(-r));
      }
    }
  }
}

int prepare_scores(const Row& row, const Selection& s, RowPlan& plan) {
  return ranks_by_codes(s) ? prepare_masses(row, s.sink_blocks, s.recent_blocks, plan) : 0;
}

void score_part(const Row& row, RowPlan& plan, int i, Buffer& scratch) {
  int first, last;
  estimate_masses(row, plan, i, scratch, &first, &last);
  const BlockMasses masses = masses_of(row, plan);
  for (int h = 0; h < row.g; ++h) {  // tops become logarithms of masses
    float* tops = masses.tops + h * masses.stride;
    const float* sums = masses.sums + h * masses.stride;
    for (int b = first; b < last; ++b) tops[b] += std::log(sums[b]);
  }
}

static void score_by_codes(const Row& row, HeadRule combine, RowPlan& plan) {
  const BlockMasses masses = masses_of(row, plan);
  plan.index_bytes += masses_bytes_read(row);
  combine_heads(combine, masses.tops + plan.first_candidate(), masses.stride, row.g, plan);
}

static void score_by_digests(const Row& row, HeadRule combine, bool mean_digest, RowPlan& plan) {
  const int first = plan.first_candidate(), n = plan.n_candidates(), g = row.g, d = row.d;
  plan.index_bytes += int64_t(n) * d * (mean_digest ? 2 : 4);
  std::vector<float>& scratch = plan.scratch;
  const uint16_t* digests = row.digests + int64_t(first) * row.digest_stride;
  const auto& score = row.kernels->attention.digest_score;
  if (combine == HeadRule::MEAN) {
    // The score is linear in (q, |q|), so the mean of the scores is the score of the means.
    scratch.assign(2 * d, 0.f);
    for (int h = 0; h < g; ++h)
      for (int j = 0; j < d; ++j) {
        scratch[j] += row.q[h * d + j];
        scratch[d + j] += std::fabs(row.q[h * d + j]);
      }
    for (float& v : scratch) v /= static_cast<float>(g);
    score(digests, row.digest_stride, n, d, scratch.data(),
          mean_digest ? nullptr : scratch.data() + d, plan.scores.data());
    return;
  }
  scratch.resize(d + size_t(g) * n);
  float* abs_q = scratch.data();
  float* heads = abs_q + d;
  for (int h = 0; h < g; ++h) {
    for (int j = 0; j < d; ++j) abs_q[j] = std::fabs(row.q[h * d + j]);
    score(digests, row.digest_stride, n, d, row.q + h * d, mean_digest ? nullptr : abs_q,
          heads + int64_t(h) * n);
  }
  combine_heads(combine, heads, n, g, plan);
}

void score_candidates(const Row& row, const Selection& s, RowPlan& plan) {
  plan.scores.resize(plan.n_candidates());
  if (plan.n_candidates() == 0) return;
  if (ranks_by_codes(s)) score_by_codes(row, s.gqa, plan);
  else score_by_digests(row, s.gqa, s.digest == BlockDigest::MEAN, plan);
}

}  // namespace riffle
