#include "cli/seed.h"

#include "riffle_request.h"

namespace riffle::cli {

uint64_t draw_seed() { return riffle_random_seed(); }

uint64_t derived_seed(uint64_t seed, uint64_t n) { return riffle_derived_seed(seed, n); }

}  // namespace riffle::cli
