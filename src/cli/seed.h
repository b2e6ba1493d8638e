// Seeds of the sampler: random ones, and one for each line of a batch.
#pragma once
#include <cstdint>

namespace riffle::cli {

// Seeds that riffle chooses stay below 2^53. They are written to JSON, and many JSON readers
// (JavaScript, jq) keep numbers as doubles, which hold whole numbers exactly up to 2^53. A seed
// that such a reader has rounded would give another text.
constexpr int kSeedBits = 53;

// Returns a random seed from the system.
uint64_t draw_seed();

// Returns seed number n derived from `seed`: the upper 53 bits of output n (from 1) of SplitMix64
// (Steele et al., 2014) with the initial state `seed`. It depends on nothing else, so a line's seed
// is the same in any run, shard and order.
uint64_t derived_seed(uint64_t seed, uint64_t n);

}  // namespace riffle::cli
