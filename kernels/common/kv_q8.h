// Keys and values in 8 bits (KvKind::Q8), as the CPU and the GPU write and read them.
//
// A row is one token's key or value: d int8 codes, then one byte for each 32 of them, the scale,
// padded to whole words. A value is code * scale. The byte is the upper half of a positive f16
// without its sign: 5 bits of exponent, 3 of fraction. So code * scale has at most 11 significant
// bits and is exact in f16 and in f32: every kernel computes with the same numbers. Only the order
// of sums may differ from that of f16 rows.
//
// The scale is the smallest that covers the largest of its values. A group with a value that f16
// does not hold, or that is not a number, decodes to NaN, where f16 would hold infinity.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

inline constexpr int kQ8Values = 32;  // values that share a scale
inline constexpr uint8_t kQ8NotANumber = 0xfc;

RIFFLE_HOST_DEVICE constexpr int64_t q8_row_bytes(int64_t d) {
  return (d + (d + kQ8Values - 1) / kQ8Values + 3) / 4 * 4;
}

// Returns the scale of 32 values with this largest magnitude. over_127: magnitude / 127, rounded to
// nearest. bits_of: the bits of a float.
template <class BitsOf>
RIFFLE_HOST_DEVICE inline uint8_t q8_scale_of(float magnitude, float over_127, BitsOf bits_of) {
  if (!(magnitude <= 65504.0f)) return kQ8NotANumber;
  if (over_127 < 0x1p-14f) {  // below the normal numbers: units of 2^-17
    const float units = over_127 * 0x1p17f;
    const auto whole = static_cast<int>(units);
    return static_cast<uint8_t>(static_cast<float>(whole) < units ? whole + 1 : whole);
  }
  return static_cast<uint8_t>(((bits_of(over_127) + 0xfffffu) >> 20) - 8 * (127 - 15));
}

// The largest code whose value f16 holds.
RIFFLE_HOST_DEVICE constexpr float q8_largest_code(uint8_t scale) {
  return scale > 0xc0 ? 113 : 127;  // 0xc0 is 512; 576 is the only larger scale
}

}  // namespace riffle
