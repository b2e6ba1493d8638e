#include "kv/working_set.h"

namespace riffle {

WorkingSet::WorkingSet(size_t n_rows, int64_t max_blocks, int window)
    : max_blocks_(static_cast<size_t>(max_blocks)),
      window_(window),
      last_(n_rows * max_blocks_, 0),
      ages_(n_rows * static_cast<size_t>(window), 0) {}

void WorkingSet::begin_step(int64_t position) {
  if (step_ > 0 && position == position_) return;
  position_ = position;
  ++step_;
  const size_t n_rows = ages_.size() / static_cast<size_t>(window_);
  for (size_t row = 0; row < n_rows; ++row) {
    int32_t& leaving = ages_[age(row, step_)];  // last selected in step_ - window_
    size_ -= leaving;
    leaving = 0;
  }
}

void WorkingSet::add(size_t row, const int32_t* blocks, int n) {
  uint32_t* last = last_.data() + row * max_blocks_;
  int32_t& now = ages_[age(row, step_)];
  for (int i = 0; i < n; ++i) {
    const int64_t before = last[blocks[i]];
    if (before == step_) continue;  // added by this step's first attempt
    if (before > 0 && before + window_ > step_) --ages_[age(row, before)];
    else ++size_;
    ++now;
    last[blocks[i]] = static_cast<uint32_t>(step_);
  }
}

RowSets WorkingSet::sizes(size_t row) const {
  RowSets out{};
  for (int i = 0; i < kWindows; ++i)
    for (int64_t step = step_; step > std::max<int64_t>(0, step_ - window_steps(window_, i));
         --step)
      out[i] += ages_[age(row, step)];
  return out;
}

void WorkingSet::clear() {
  std::fill(last_.begin(), last_.end(), 0);
  std::fill(ages_.begin(), ages_.end(), 0);
  step_ = size_ = 0;
}

}  // namespace riffle
