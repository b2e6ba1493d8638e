// The mass of each block of a row, estimated from 2-bit keys (README.md). Estimating reads the keys
// of all blocks. That is most of the work of planning a row, so threads share it in parts.
#pragma once
#include <cstdint>

#include "select/selector.h"

namespace riffle {

// The mass of block b for query head h, which is the sum of e^score over its tokens, is
// sums[h * stride + b] e^tops[h * stride + b].
struct BlockMasses {
  float* tops;
  float* sums;
  int64_t stride;
  int64_t n_blocks;
};

// Prepares the estimate for a row: makes room in plan.work for the masses of all blocks, and puts
// the query there in the form in which codes are multiplied. Returns the number of parts; 0 if
// sinks and recent blocks leave no block to choose. Throws RIFFLE_INTERNAL if the row's state does
// not hold the codes of its blocks.
int prepare_masses(const Row& row, int sink_blocks, int recent_blocks, RowPlan& plan);
// Estimates one part: blocks [*first, *last). The last part includes the tail. The tail has no
// codes, so its keys are scored.
void estimate_masses(const Row& row, RowPlan& plan, int part, Buffer& scratch, int* first,
                     int* last);
// Returns the masses in plan.work.
BlockMasses masses_of(const Row& row, RowPlan& plan);
// Returns the bytes that all parts read together.
int64_t masses_bytes_read(const Row& row);

}  // namespace riffle
