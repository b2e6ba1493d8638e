#include "cli/seed.h"

#include <random>

#include "kernels/common/splitmix64.h"

namespace riffle::cli {

uint64_t draw_seed() {
  std::random_device device;
  const uint64_t high = device();
  return (high << 32 | device()) >> (64 - kSeedBits);
}

uint64_t derived_seed(uint64_t seed, uint64_t n) {
  return splitmix64_at(seed, n - 1) >> (64 - kSeedBits);
}

}  // namespace riffle::cli
