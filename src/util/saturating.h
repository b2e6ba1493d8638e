// Sums and products of sizes that may exceed 64 bits, such as those of a million sessions of a
// hundred million tokens. The result is then UINT64_MAX, which is beyond every machine too.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "util/checked.h"

namespace riffle {

// factors: above 0.
inline uint64_t product(std::initializer_list<uint64_t> factors) {
  uint64_t out = 1;
  for (const uint64_t factor : factors)
    if (!checked_mul(out, factor, &out)) return UINT64_MAX;
  return out;
}

inline uint64_t sum(std::initializer_list<uint64_t> terms) {
  uint64_t out = 0;
  for (const uint64_t term : terms)
    if (!checked_add(out, term, &out)) return UINT64_MAX;
  return out;
}

}  // namespace riffle
