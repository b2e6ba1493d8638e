// The order in which blocks are read.
#pragma once
#include <bit>
#include <cstdint>

namespace riffle {

// Larger score first, then lower index: one ascending 64-bit key holds both.
inline uint64_t rank_key(float score, uint32_t index) {
  uint32_t bits = std::bit_cast<uint32_t>(score);
  bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;  // ascending with the float
  return uint64_t(~bits) << 32 | index;
}

}  // namespace riffle
