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

// Beside a window of w steps its half, quarter, eighth and sixteenth are counted, each of at least
// one step.
inline constexpr int kShorterWindows = 4;
inline int shorter_window(int window, int i) { return std::max(1, window >> (i + 1)); }
// Blocks of the shorter windows, the longest first.
using ShorterSets = std::array<int32_t, kShorterWindows>;

class WorkingSet {
 public:
  // n_rows: layers times KV heads. max_blocks: of one row, at most. Throws std::bad_alloc.
  WorkingSet(size_t n_rows, int64_t max_blocks, int window);

  // In each step, call begin_step with the new token's position, then add for rows in any order.
  // The blocks of a row are all different. The same position twice in a row means that the step
  // failed and is tried again. Blocks that only the failed attempt selected stay until the step
  // leaves the window. So the set may be too large, but never too small.
  void begin_step(int64_t position);
  void add(size_t row, const int32_t* blocks, int n);

  int64_t size() const { return size_; }  // blocks of all rows
  int32_t size(size_t row) const { return size(row, window_); }
  // Blocks of a row that the last `steps` steps selected, 1 to window().
  int32_t size(size_t row, int steps) const;
  ShorterSets shorter(size_t row) const;
  int64_t steps() const { return step_; }  // steps since the last clear
  int window() const { return window_; }
  void clear();  // for a sequence that was cut: the set begins anew

 private:
  int32_t& selected_last_in(size_t row, int64_t step) {
    return ages_[row * static_cast<size_t>(window_) + static_cast<size_t>(step % window_)];
  }

  size_t max_blocks_;
  int window_;
  int64_t step_ = 0, position_ = 0, size_ = 0;
  // [n_rows][max_blocks]: the last step that selected the block; 0: none.
  std::vector<uint32_t> last_;
  // [n_rows][window]: how many blocks were last selected in each of the last steps, by step modulo
  // the window.
  std::vector<int32_t> ages_;
};

}  // namespace riffle
