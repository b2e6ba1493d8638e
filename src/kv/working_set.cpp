#include "kv/working_set.h"

#include <algorithm>

namespace riffle {

WorkingSet::WorkingSet(size_t n_rows, int64_t max_blocks, int window)
    : max_blocks_(static_cast<size_t>(max_blocks)),
      window_(window),
      last_(n_rows * max_blocks_, 0),
      rows_(n_rows, 0),
      ring_(static_cast<size_t>(window)) {}

void WorkingSet::begin_step(int64_t position) {
  if (step_ > 0 && position == position_) return;
  position_ = position;
  ++step_;
  std::vector<Use>& leaving = ring_[step_ % window_];  // of step_ - window_
  for (const Use& use : leaving) {
    uint32_t& last = last_[use.row * max_blocks_ + static_cast<size_t>(use.block)];
    if (int64_t(last) + window_ != step_) continue;  // selected again since
    last = 0;
    --rows_[use.row];
    --size_;
  }
  leaving.clear();
}

void WorkingSet::add(size_t row, const int32_t* blocks, int n) {
  std::vector<Use>& now = ring_[step_ % window_];
  const size_t most = now.size() + static_cast<size_t>(n);
  if (now.capacity() < most) now.reserve(std::max(most, 2 * now.capacity()));
  uint32_t* last = last_.data() + row * max_blocks_;
  for (int i = 0; i < n; ++i) {
    if (int64_t(last[blocks[i]]) == step_) continue;  // by this step's first attempt
    if (last[blocks[i]] == 0) {
      ++rows_[row];
      ++size_;
    }
    last[blocks[i]] = static_cast<uint32_t>(step_);
    now.push_back({static_cast<uint32_t>(row), blocks[i]});
  }
}

void WorkingSet::clear() {
  std::fill(last_.begin(), last_.end(), 0);
  std::fill(rows_.begin(), rows_.end(), 0);
  for (auto& uses : ring_) uses.clear();
  step_ = size_ = 0;
}

}  // namespace riffle
