// The working set of a decoding sequence: the union of the blocks selected in its last w decode
// steps, over all layers and heads (SparseServe, section 3.3; formulas: README.md). The count is
// kept up to date with every step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle {

class WorkingSet {
 public:
  // n_rows: layers times KV heads. max_blocks: of one row, at most. Throws std::bad_alloc.
  WorkingSet(size_t n_rows, int64_t max_blocks, int window);

  // In each step, call begin_step with the new token's position, then add for rows in any order.
  // The blocks of a row are all different. The same position twice in a row means that the step
  // failed and is tried again. Blocks that only the failed attempt selected stay until the step
  // leaves the window. So the set may be too large, but never too small. Memory is taken only if a
  // step selects more blocks than any step before. After std::bad_alloc the count is still
  // consistent.
  void begin_step(int64_t position);
  void add(size_t row, const int32_t* blocks, int n);

  int64_t size() const { return size_; }  // blocks of all rows
  int32_t size(size_t row) const { return rows_[row]; }
  int64_t steps() const { return step_; }  // steps since the last clear
  int window() const { return window_; }
  void clear();  // for a sequence that was cut: the set begins anew

 private:
  struct Use {
    uint32_t row;
    int32_t block;
  };
  size_t max_blocks_;
  int window_;
  int64_t step_ = 0, position_ = 0, size_ = 0;
  // [n_rows][max_blocks]: the last step that selected the block; 0: none.
  std::vector<uint32_t> last_;
  std::vector<int32_t> rows_;           // blocks of each row that are in the set
  std::vector<std::vector<Use>> ring_;  // [window]: the blocks that each step selected
};

}  // namespace riffle
