#include "requests/seed.h"

#include <random>

#include "kernels/common/splitmix64.h"
#include "util/error.h"

namespace riffle::requests {
namespace {

// Seeds that riffle chooses stay below 2^53. They are written to JSON, and many JSON readers
// (JavaScript, jq) keep numbers as doubles, which hold whole numbers exactly up to 2^53. A seed
// that such a reader has rounded would give another text.
constexpr int kSeedBits = 53;

}  // namespace

uint64_t draw_seed() {
  std::random_device device;
  const uint64_t high = device();
  return (high << 32 | device()) >> (64 - kSeedBits);
}

uint64_t derived_seed(uint64_t seed, uint64_t n) {
  return splitmix64_at(seed, n - 1) >> (64 - kSeedBits);
}

std::string random_id() {
  return format("%013llx%013llx", static_cast<unsigned long long>(draw_seed()),
                static_cast<unsigned long long>(draw_seed()));
}

}  // namespace riffle::requests
