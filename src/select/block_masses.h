// What INT4 keys say of the weight that each block of a row holds (Twilight, arXiv 2502.02770, 4.2, has the keys).
#pragma once
#include <cstdint>

#include "select/selector.h"

namespace riffle {

// Query head h gives block b the mass sums[h * n_blocks + b] e^tops[h * n_blocks + b], the sum of e^score of its tokens.
struct BlockMasses {
  float* tops;
  float* sums;
  int64_t n_blocks;
};

// The masses of all blocks of a row, the tail's by its keys themselves (it has no codes). They lie in plan.scratch; what was
// read to find them is added to plan.index_bytes. RIFFLE_INTERNAL if the row's state does not hold the codes of its blocks.
BlockMasses estimate_masses(const Row& row, RowPlan& plan);

}  // namespace riffle
