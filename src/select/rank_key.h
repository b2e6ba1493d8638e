// The order in which blocks are read.
#pragma once
#include <bit>
#include <cstdint>

namespace riffle {

// Returns a 64-bit key. Ascending keys mean: larger score first, then lower index.
inline uint64_t rank_key(float score, uint32_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;  // order as the floats do
  return uint64_t(~bits) << 32 | index;
}

}  // namespace riffle
