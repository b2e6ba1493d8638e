// Parts that selectors share: the plan of a row, and exact scores of a block.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/attention/gather.h"
#include "select/rank_key.h"
#include "select/selector.h"

namespace riffle {

void RowPlan::clear() {
  order_.clear();
  masks_.clear();
  stand_in.clear();
  stand_in_l.clear();
  read_l.clear();
  unread.clear();
  sampled_.clear();
  log_weights_.clear();
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
  // The unfilled block is always a forced one.
  for (int i = 0; i < std::min(n, n_forced_); ++i)
    if (order_[i] == row.n_blocks - 1) sum -= int64_t(row.n_blocks) * row.block_size - row.n_tokens;
  return sum;
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
    // Most rows stop early, so a full sort would be wasted: each extension doubles the sorted part.
    const int next = std::min(n_ranked, std::max(64, 2 * sorted_));
    const auto begin = keys_.begin() + sorted_;
    if (next < n_ranked) std::nth_element(begin, keys_.begin() + next, keys_.end());
    std::sort(keys_.begin() + sorted_, keys_.begin() + next);
    for (int i = sorted_; i < next; ++i)
      order_.push_back(static_cast<int32_t>(keys_[i] & 0xffffffffu));
    sorted_ = next;
  }
  if (sorted_ == n_ranked) order_.insert(order_.end(), sampled_.begin(), sampled_.end());
}

void RowPlan::sample(int32_t block, float log_weight) {
  sampled_.push_back(block);
  log_weights_.push_back(log_weight);
}

int32_t RowPlan::at(int position) {
  if (position >= static_cast<int>(order_.size()))
    extend(std::min(position - n_forced_ + 1, static_cast<int>(keys_.size())));
  return order_[position];
}

void key_scores(const Row& row, const std::byte* block, int n, float* out, int64_t ldo) {
  if (row.type == KvType::Q8) {
    const void* keys[64];
    for (int t = 0; t < n; ++t) keys[t] = block + t * row.row_bytes();
    row.kernels->gather->dot(row.q, row.g, row.d, keys, n, row.type, 0, out, ldo);
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

}  // namespace riffle
