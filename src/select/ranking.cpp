// What selectors share: the plan of a row, and scoring blocks for a group of query heads.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention/gather.h"
#include "select/block_masses.h"
#include "select/selector.h"

namespace riffle {

void RowPlan::clear() {
  order_.clear();
  masks_.clear();
  stand_in.clear();
  stand_in_l.clear();
  read_l.clear();
  unread.clear();
  index_bytes = 0;
  cached = false;
  attended = false;
  n_forced_ = first_candidate_ = n_candidates_ = n_kept_ = sorted_ = 0;
}

void RowPlan::everything(const Row& row) {
  clear();
  const int first = static_cast<int>(row.first_seen() / row.block_size);
  for (int b = first; b < row.n_blocks; ++b) order_.push_back(b);
  if (row.first_seen() > 0)
    for (const int b : order_) masks_.push_back(row.seen(b));
  n_forced_ = row.n_blocks - first;
  first_candidate_ = row.n_blocks;
}

void RowPlan::forced(const Row& row, int sink_blocks, int recent_blocks) {
  const int sinks = std::min(sink_blocks, row.n_full);
  const int recent = std::min(recent_blocks, row.n_full - sinks);
  clear();
  order_.reserve(row.n_blocks);
  for (int b = 0; b < sinks; ++b) order_.push_back(b);
  for (int b = row.n_full - recent; b < row.n_blocks; ++b) order_.push_back(b);
  n_forced_ = static_cast<int>(order_.size());
  first_candidate_ = sinks;
  n_candidates_ = row.n_full - recent - sinks;
}

void RowPlan::tokens(const Row& row, const int32_t* token_ids, int n) {
  clear();
  const int shift = std::countr_zero(static_cast<unsigned>(row.block_size));
  for (int i = 0; i < n; ++i) {
    const int b = token_ids[i] >> shift;
    if (order_.empty() || order_.back() != b) {
      order_.push_back(b);
      masks_.push_back(0);
    }
    masks_.back() |= uint64_t(1) << (token_ids[i] & (row.block_size - 1));
  }
  n_forced_ = static_cast<int>(order_.size());
  first_candidate_ = row.n_blocks;
}

void RowPlan::masked(const Row& row, const uint64_t* masks) {
  const int64_t read = index_bytes;
  clear();
  index_bytes = read;
  for (int b = 0; b < row.n_blocks; ++b)
    if (masks[b] != 0) {
      order_.push_back(b);
      masks_.push_back(masks[b]);
    }
  n_forced_ = static_cast<int>(order_.size());
  first_candidate_ = row.n_blocks;
}

int64_t RowPlan::tokens_read(const Row& row, int n) const {
  int64_t sum = 0;
  if (!masks_.empty()) {
    for (int i = 0; i < n; ++i) sum += std::popcount(masks_[i]);
    return sum;
  }
  sum = int64_t(n) * row.block_size;
  // The unfilled block is among the forced ones, or all blocks are read.
  for (int i = 0; i < std::min(n, n_forced_); ++i)
    if (order_[i] == row.n_blocks - 1) sum -= int64_t(row.n_blocks) * row.block_size - row.n_tokens;
  return sum;
}

// Larger score first, then lower index: one ascending 64-bit key holds both.
static uint64_t rank_key(float score, uint32_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;  // ascending with the float
  return uint64_t(~bits) << 32 | index;
}

void RowPlan::rank(const float* block_scores, int keep) {
  keys_.resize(n_candidates_);
  for (int i = 0; i < n_candidates_; ++i)
    keys_[i] = rank_key(block_scores[i], first_candidate_ + i);
  n_kept_ = std::clamp(keep, 0, n_candidates_);
  sorted_ = 0;
}

void RowPlan::rank_these(const int32_t* blocks, const float* block_scores, int n) {
  keys_.resize(n);
  for (int i = 0; i < n; ++i) keys_[i] = rank_key(block_scores[i], blocks[i]);
  n_kept_ = n;
  sorted_ = 0;
}

void RowPlan::extend(int ranked) {
  const auto n_ranked = static_cast<int>(keys_.size());
  while (sorted_ < ranked) {
    // Most rows stop early, so a full sort would be wasted: each extension sorts as many again as
    // there are.
    const int next = std::min(n_ranked, std::max(64, 2 * sorted_));
    const auto begin = keys_.begin() + sorted_;
    if (next < n_ranked) std::nth_element(begin, keys_.begin() + next, keys_.end());
    std::sort(keys_.begin() + sorted_, keys_.begin() + next);
    for (int i = sorted_; i < next; ++i)
      order_.push_back(static_cast<int32_t>(keys_[i] & 0xffffffffu));
    sorted_ = next;
  }
}

int32_t RowPlan::at(int position) {
  if (position >= n_forced_ + sorted_) extend(position - n_forced_ + 1);
  return order_[position];
}

void key_scores(const Row& row, const std::byte* block, int n, float* out, int64_t ldo) {
  if (row.type == KvType::Q8) {
    const void* keys[64];
    for (int t = 0; t < n; ++t) keys[t] = block + t * row.row_bytes();
    cpu::gather_kernels(row.kernels->isa)->dot(row.q, row.g, row.d, keys, n, row.type, 0, out, ldo);
    return;
  }
  for (int h = 0; h < row.g; ++h) {
    const float* q = row.q + h * row.d;
    if (row.type == KvType::F16) {  // an f16 key is a digest without a radius
      row.kernels->attention.digest_score(reinterpret_cast<const uint16_t*>(block), row.d, n, row.d,
                                          q, nullptr, out + h * ldo);
      continue;
    }
    for (int t = 0; t < n; ++t) {
      const float* key = reinterpret_cast<const float*>(block) + int64_t(t) * row.d;
      float sum = 0;
      for (int j = 0; j < row.d; ++j) sum += q[j] * key[j];
      out[h * ldo + t] = sum;
    }
  }
}

int budget_blocks(const Row& row, float budget) {
  const double tokens = budget <= 1 ? double(budget) * double(row.n_tokens) : double(budget);
  return static_cast<int>(std::min(std::ceil(tokens / row.block_size), double(row.n_blocks)));
}

// One score a candidate, in plan.scores, from those of g query heads, heads[h * stride + i], which
// are logarithms of a mass but for what is the same for all.
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
      // All ranked blocks are full, so log n_b is the same for all and cancels.
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
