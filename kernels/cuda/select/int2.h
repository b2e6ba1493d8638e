// The form of 2-bit keys on the device (src/select/README.md, 2-bit keys). The tokens of a
// unit share a mean; a unit has 16 tokens in blocks of 16, and 32 in larger blocks:
//   codes       [1 or 2 groups][words][16 tokens][4 bytes], as in kernels/cpu/select/select.h
//   scales      f16 [tokens]
//   means       [16 * words], 8 bits, plus 128
//   mean_scale  f32, then 12 unused bytes
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle::cuda {

inline constexpr int kInt2Tokens = 16;
RIFFLE_HOST_DEVICE constexpr int int2_words(int d) { return (d + 15) / 16; }
RIFFLE_HOST_DEVICE constexpr int int2_unit_groups(int block_size) {
  return block_size > kInt2Tokens ? 2 : 1;
}
RIFFLE_HOST_DEVICE constexpr int int2_unit_bytes(int groups, int d) {
  return groups * (int2_words(d) * 64 + 32) + int2_words(d) * 16 + 16;
}
RIFFLE_HOST_DEVICE constexpr int64_t int2_block_bytes(int block_size, int d) {
  const int groups = int2_unit_groups(block_size);
  return int64_t(block_size / (groups * kInt2Tokens)) * int2_unit_bytes(groups, d);
}

}  // namespace riffle::cuda
