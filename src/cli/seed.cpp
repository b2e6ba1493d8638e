#include "cli/seed.h"

#include <random>

namespace riffle::cli {

uint64_t draw_seed() {
  std::random_device device;
  const uint64_t high = device();
  return (high << 32 | device()) >> (64 - kSeedBits);
}

uint64_t derived_seed(uint64_t seed, uint64_t n) {
  uint64_t z = seed + n * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return (z ^ (z >> 31)) >> (64 - kSeedBits);
}

}  // namespace riffle::cli
