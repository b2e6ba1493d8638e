// Random numbers: seeds of the sampler, and ids.
#pragma once
#include <cstdint>
#include <string>

namespace riffle::requests {

// Returns a random seed from the system, below 2^53 (riffle_random_seed).
uint64_t draw_seed();

// Returns seed number n (from 1) derived from `seed` (riffle_derived_seed).
uint64_t derived_seed(uint64_t seed, uint64_t n);

// Returns 106 random bits as 26 to 28 hexadecimal digits, so that no two ids anywhere are equal.
std::string random_id();

}  // namespace riffle::requests
