// The working set of a decoding sequence: the union of the blocks selected in its last w decode
// steps, over all layers and heads (SparseServe, section 3.3; formulas: README.md). The count is
// kept up to date with every step, for w steps and for shorter windows, which tell how soon blocks
// come back.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle {

// A window of w steps is counted with its half, quarter, eighth and sixteenth, each of at least one
// step: the longest is number 0.
inline constexpr int kWindows = 5;
inline int window_steps(int window, int i) { return std::max(1, window >> i); }
// Blocks in each window: of a row; of all rows.
using RowSets = std::array<int32_t, kWindows>;
using WindowSets = std::array<int64_t, kWindows>;

class WorkingSet {
 public:
  // n_rows: layers times KV heads. max_blocks: the most blocks of one row. Throws std::bad_alloc.
  WorkingSet(size_t n_rows, int64_t max_blocks, int window);

  // In each step, call begin_step with the new token's position, then add for rows in any order.
  // The blocks of a row are all different. The same position twice in a row means that the step
  // failed and is tried again. Blocks that only the failed attempt selected stay until the step
  // leaves the window. So the set may be too large, but never too small.
  void begin_step(int64_t position);
  void add(size_t row, const int32_t* blocks, int n);

  int64_t size() const { return size_; }  // blocks of all rows
  RowSets sizes(size_t row) const;
  int64_t steps() const { return step_; }  // steps since the last clear
  int window() const { return window_; }
  void clear();  // for a sequence that was cut: the set starts again

 private:
  size_t age(size_t row, int64_t step) const {
    return row * static_cast<size_t>(window_) + static_cast<size_t>(step % window_);
  }

  size_t max_blocks_;
  int window_;
  int64_t step_ = 0, position_ = 0, size_ = 0;
  // [n_rows][max_blocks]: the last step that selected the block; 0: none.
  std::vector<uint32_t> last_;
  // [n_rows][window]: number of blocks whose last selection was in each of the last steps, by step
  // modulo the window.
  std::vector<int32_t> ages_;
};

}  // namespace riffle
