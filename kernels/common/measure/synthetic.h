// Synthetic weights: for measuring a model's shape without its file. Element i is a hash of (seed,
// i), so any part can be made anywhere, in any order, on the CPU and on the device alike, with the
// same bits.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"
#include "kernels/common/splitmix64.h"

namespace riffle::synthetic {

// Uniform in (-1, 1): an odd multiple of 2^-23. Exact in f32.
RIFFLE_HOST_DEVICE inline float value(uint64_t seed, uint64_t i) {
  const auto bits = static_cast<int32_t>(splitmix64_at(seed, i) >> 41);  // 23 bits
  return static_cast<float>(2 * (bits - (1 << 22)) + 1) * 0x1p-23f;
}
// The weight of element i (i = row * cols + col) in F32; F16 and BF16 round it to nearest, ties to
// even.
RIFFLE_HOST_DEVICE inline float weight(uint64_t seed, uint64_t i, float scale) {
  return value(seed, i) * scale;
}

// Q8_0: element i is quant * q8_scale rounded to f16; uniform in -127..127.
RIFFLE_HOST_DEVICE inline int8_t quant(uint64_t seed, uint64_t i) {
  return static_cast<int8_t>(static_cast<int32_t>((splitmix64_at(seed, i) >> 32) * 255 >> 32) -
                             127);
}
RIFFLE_HOST_DEVICE inline float q8_scale(float scale) { return scale / 127; }

// Fewer bits: element i has the quant few_bits(seed, i, bits), uniform in 0..2^bits - 1, of a
// row-major matrix that is cut into groups; offset is half of 2^bits. Values are about uniform in
// (-scale, scale), K types' times a factor of 1/2 to 1.
//   Q4_0, Q5_0: d = scale / offset. Q4_1, Q5_1: d = scale / (offset - 1/2), m = -scale.
//   Q4_K, Q5_K: group g of 32 has sub_scale(seed, g) / 2 (5 bits) as scale and minimum alike; d =
//   d_k(scale, offset - 1/2), dmin = (offset - 1/2) d.
//   Q6_K: groups of 16, sub_scale(seed, g) as scale, d = d_k(scale, offset) / 2.
RIFFLE_HOST_DEVICE inline uint32_t few_bits(uint64_t seed, uint64_t i, int bits) {
  return static_cast<uint32_t>(splitmix64_at(seed, i) >> (64 - bits));
}
RIFFLE_HOST_DEVICE inline int sub_scale(uint64_t seed, uint64_t group) {  // 64..127
  return 64 + static_cast<int>(splitmix64_at(~seed, group) >> 58);
}
RIFFLE_HOST_DEVICE inline float d_k(float scale, float offset) { return scale / (63.5f * offset); }

}  // namespace riffle::synthetic
