// Block digests (src/select/README.md; Quest, arXiv 2406.10774, and ArkVale's cuboid-mean). Every
// instruction set compiles these plain loops for itself, and all give the same bits: sums and
// differences of f16 keys are exact in double.
#pragma once
#include "kernels/common/half.h"
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// load(row, d, j0, n, type, dst): this instruction set's kv_load_part.
static inline float digest_build_impl(void (*load)(const void*, int64_t, int64_t, int64_t, KvType,
                                                   float*),
                                      const void* k, KvType type, int block_size, int d,
                                      DigestKind kind, bool with_mean, uint16_t* out) {
  constexpr int kWidth = 32;  // dimensions at a time
  const int64_t row_bytes = kv_row_bytes(type, d);
  const auto* base = static_cast<const char*>(k);
  double largest_ratio = 0;
  for (int j0 = 0; j0 < d; j0 += kWidth) {
    const int width = d - j0 < kWidth ? d - j0 : kWidth;
    float key[kWidth] = {}, high[kWidth], low[kWidth];
    double sum[kWidth] = {}, spread[kWidth] = {}, centre[kWidth], half_width[kWidth];
    for (int j = 0; j < kWidth; j++) high[j] = -__builtin_inff(), low[j] = __builtin_inff();
    for (int t = 0; t < block_size; t++) {
      load(base + t * row_bytes, d, j0, width, type, key);
      for (int j = 0; j < kWidth; j++) {
        high[j] = key[j] > high[j] ? key[j] : high[j];
        low[j] = key[j] < low[j] ? key[j] : low[j];
        sum[j] += static_cast<double>(key[j]);
      }
    }
    for (int j = 0; j < width; j++) {
      const double mean = sum[j] / block_size, high_j = high[j], low_j = low[j];
      const uint16_t c =
          f32_to_f16(static_cast<float>(kind == DigestKind::Mean ? mean : (high_j + low_j) / 2));
      out[j0 + j] = c;
      centre[j] = static_cast<double>(f16_to_f32(c));
      half_width[j] =
          high_j - centre[j] > centre[j] - low_j ? high_j - centre[j] : centre[j] - low_j;
      if (with_mean) out[2 * d + j0 + j] = f32_to_f16(static_cast<float>(mean));
      if (kind == DigestKind::Mean) out[d + j0 + j] = 0;
      if (kind == DigestKind::Quest) out[d + j0 + j] = f16_ceil(half_width[j]);
    }
    if (kind != DigestKind::CuboidMean) continue;
    for (int j = width; j < kWidth; j++) centre[j] = 0;
    for (int t = 0; t < block_size; t++) {
      load(base + t * row_bytes, d, j0, width, type, key);
      for (int j = 0; j < kWidth; j++)
        spread[j] += __builtin_fabs(static_cast<double>(key[j]) - centre[j]);
    }
    for (int j = 0; j < width; j++) {
      const uint16_t r = f16_ceil(spread[j] / block_size);
      out[d + j0 + j] = r;
      const double radius = static_cast<double>(f16_to_f32(r));
      const double ratio = half_width[j] > 0 ? half_width[j] / radius : 1;
      largest_ratio = ratio > largest_ratio ? ratio : largest_ratio;
    }
  }
  if (kind == DigestKind::Mean) return __builtin_inff();
  if (kind == DigestKind::Quest) return 1;
  // Rounded up, so that R stays a bound: adding one to a positive float's bits gives the next
  // float.
  auto factor = static_cast<float>(largest_ratio);
  if (static_cast<double>(factor) <= largest_ratio && largest_ratio != 1)
    factor = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, factor) + 1);
  return factor;
}

}  // namespace riffle::cpu
