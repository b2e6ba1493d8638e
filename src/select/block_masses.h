// What INT4 keys say of the weight that each block of a row holds (Twilight, arXiv 2502.02770, 4.2,
// has the keys). The keys of all blocks are looked at, by far the most of what planning a row
// takes, so threads share it in parts.
#pragma once
#include <cstdint>

#include "select/selector.h"

namespace riffle {

// Query head h gives block b the mass sums[h * stride + b] e^tops[h * stride + b], the sum of
// e^score of its tokens.
struct BlockMasses {
  float* tops;
  float* sums;
  int64_t stride;
  int64_t n_blocks;
};

// Makes room in plan.work for the masses of all blocks of a row, puts the query there in the form
// that codes are multiplied with, and says in how many parts masses are to be estimated: none if
// the sinks and the window leave no block to choose. RIFFLE_INTERNAL if the row's state does not
// hold the codes of its blocks.
int prepare_masses(const Row& row, int sink_blocks, int window_blocks, RowPlan& plan);
// One part; the last has the tail as well, whose keys themselves are looked at (it has no codes).
// What was estimated are blocks [*first, *last).
void estimate_masses(const Row& row, RowPlan& plan, int part, Buffer& scratch, int* first,
                     int* last);
// Where the masses lie.
BlockMasses masses_of(const Row& row, RowPlan& plan);
// What all parts together have read.
int64_t masses_bytes_read(const Row& row);

}  // namespace riffle
