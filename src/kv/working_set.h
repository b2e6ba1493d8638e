// The working set of a decoding sequence: the union of the blocks selected in its last w decode
// steps, over all layers and heads (SparseServe, section 3.3; algorithms.md 3), counted as it
// changes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle {

class WorkingSet {
 public:
  // n_rows: layers times KV heads. max_blocks: of one row, at most. Throws std::bad_alloc.
  WorkingSet(size_t n_rows, int64_t max_blocks, int window);

  // In each step: begin_step with the new token's position, then add for rows in any order. Blocks
  // of a row differ. A position that comes twice in succession is one step that failed and is tried
  // again: what it had added stays with it, so until that step leaves the window the set may be too
  // large by blocks that only the failed attempt selected; it is never too small. Takes memory only
  // if a step selects more than any before it (std::bad_alloc: what was counted stays consistent).
  void begin_step(int64_t position);
  void add(size_t row, const int32_t* blocks, int n);

  int64_t size() const { return size_; }  // blocks, of all rows
  int32_t size(size_t row) const { return rows_[row]; }
  int64_t steps() const { return step_; }  // seen since the last clear
  int window() const { return window_; }
  void clear();  // what came before is no longer of interest: the sequence was cut

 private:
  struct Use {
    uint32_t row;
    int32_t block;
  };
  size_t max_blocks_;
  int window_;
  int64_t step_ = 0, position_ = 0, size_ = 0;
  std::vector<uint32_t>
      last_;  // [n_rows][max_blocks]: the step that selected the block last; 0: none
  std::vector<int32_t> rows_;           // blocks of each row that are in the set
  std::vector<std::vector<Use>> ring_;  // [window]: what a step selected
};

}  // namespace riffle
