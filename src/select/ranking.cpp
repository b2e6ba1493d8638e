// What selectors share: the plan of a row, and scoring blocks for a group of query heads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "select/selector.h"

namespace riffle {

void RowPlan::everything(const Row& row) {
  order_.resize(row.n_blocks);
  for (int b = 0; b < row.n_blocks; ++b) order_[b] = b;
  n_forced_ = row.n_blocks;
  first_candidate_ = row.n_blocks;
  n_candidates_ = n_kept_ = sorted_ = 0;
}

void RowPlan::forced(const Row& row, int sink_blocks, int window_blocks) {
  const int sinks = std::min(sink_blocks, row.n_full);
  const int window = std::min(window_blocks, row.n_full - sinks);
  order_.clear();
  order_.reserve(row.n_blocks);
  for (int b = 0; b < sinks; ++b) order_.push_back(b);
  for (int b = row.n_full - window; b < row.n_blocks; ++b) order_.push_back(b);
  n_forced_ = static_cast<int>(order_.size());
  first_candidate_ = sinks;
  n_candidates_ = row.n_full - window - sinks;
  n_kept_ = sorted_ = 0;
}

// Larger score first, then lower index: one ascending 64-bit key holds both.
static uint64_t rank_key(float score, uint32_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;  // ascending with the float
  return uint64_t(~bits) << 32 | index;
}

void RowPlan::rank(const float* block_scores, int keep) {
  keys_.resize(n_candidates_);
  for (int i = 0; i < n_candidates_; ++i) keys_[i] = rank_key(block_scores[i], first_candidate_ + i);
  n_kept_ = std::clamp(keep, 0, n_candidates_);
  sorted_ = 0;
}

void RowPlan::extend(int ranked) {
  while (sorted_ < ranked) {
    // Most rows stop early, so a full sort would be wasted: each extension sorts as many again as there are.
    const int next = std::min(n_candidates_, std::max(64, 2 * sorted_));
    if (next < n_candidates_) std::nth_element(keys_.begin() + sorted_, keys_.begin() + next, keys_.end());
    std::sort(keys_.begin() + sorted_, keys_.begin() + next);
    for (int i = sorted_; i < next; ++i) order_.push_back(static_cast<int32_t>(keys_[i] & 0xffffffffu));
    sorted_ = next;
  }
}

int32_t RowPlan::at(int position) {
  if (position >= n_forced_ + sorted_) extend(position - n_forced_ + 1);
  return order_[position];
}

void group_scores(const Row& row, riffle_gqa combine, bool mean_digest, int first, int n, std::vector<float>& scratch,
                  float* scores) {
  if (n <= 0) return;
  const int g = row.g, d = row.d;
  const uint16_t* digests = row.digests + int64_t(first) * row.digest_stride;
  const auto& score = row.kernels->attention.digest_score;
  if (combine == RIFFLE_GQA_MEAN) {
    // The score is linear in (q, |q|), so the mean of the scores is the score of the means.
    scratch.assign(2 * d, 0.f);
    for (int h = 0; h < g; ++h)
      for (int j = 0; j < d; ++j) {
        scratch[j] += row.q[h * d + j];
        scratch[d + j] += std::fabs(row.q[h * d + j]);
      }
    for (float& v : scratch) v /= static_cast<float>(g);
    score(digests, row.digest_stride, n, d, scratch.data(), mean_digest ? nullptr : scratch.data() + d, scores);
    return;
  }
  scratch.resize(2 * d + n);
  float* abs_q = scratch.data() + d;
  float* one = scratch.data() + 2 * d;
  std::vector<uint64_t> keys(combine == RIFFLE_GQA_UNION ? n : 0);
  std::fill_n(scores, n, combine == RIFFLE_GQA_UNION ? -std::numeric_limits<float>::infinity() : 0.f);
  for (int h = 0; h < g; ++h) {
    for (int j = 0; j < d; ++j) abs_q[j] = std::fabs(row.q[h * d + j]);
    score(digests, row.digest_stride, n, d, row.q + h * d, mean_digest ? nullptr : abs_q, one);
    if (combine == RIFFLE_GQA_SOFT_SUM) {
      // All ranked blocks are full, so log n_b is the same for all and cancels.
      const float top = *std::max_element(one, one + n);
      float sum = 0;
      for (int i = 0; i < n; ++i) sum += one[i] = std::exp(one[i] - top);
      for (int i = 0; i < n; ++i) scores[i] += one[i] / sum;
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

}  // namespace riffle
