// Seeds of the sampler: random ones, and one for each line of a batch.
#pragma once
#include <cstdint>

namespace riffle::cli {

// Returns a random seed from the system, below 2^53, so that readers of JSON keep it exactly.
uint64_t draw_seed();

// Returns seed number n (from 1) derived from `seed`. It depends on nothing else, so a line's seed
// is the same in any run, shard and order.
uint64_t derived_seed(uint64_t seed, uint64_t n);

}  // namespace riffle::cli
