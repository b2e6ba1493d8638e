// INT4 codes of keys (Twilight, arXiv 2502.02770, 4.2: asymmetric, one zero and one scale per token
// and KV head) and the fixed-point form of queries. Every instruction set compiles these plain
// loops for itself, and all give the same bits.
#pragma once
#include "kernels/common/agreed.h"
#include "kernels/common/half.h"
#include "kernels/cpu/select/select.h"

namespace riffle::cpu {

// Returns the largest f16 <= x, clamped to finite values.
static inline uint16_t f16_floor_finite(float x) {
  if (!(x < 65504.0f)) return 0x7bff;
  if (x < -65504.0f) return 0xfbff;
  const uint16_t h = f32_to_f16(x);
  if (f16_to_f32(h) <= x) return h;
  if (h == 0) return 0x8001;  // the first value below zero
  return static_cast<uint16_t>(h & 0x8000 ? h + 1 : h - 1);
}

// The scale and zero are rounded before coding, so that encoder and decoder agree; the range is
// measured from the rounded zero, so that rounding it down does not cut the largest key off (our
// choices). load: as in digest_build.h.
static inline void int4_encode_token(void (*load)(const void*, int64_t, int64_t, int64_t, KvType,
                                                  float*),
                                     const char* row, KvType type, int d, int lane,
                                     uint8_t* group) {
  constexpr int kWidth = 64;  // dimensions at a time
  float key[kWidth], low[16], high[16];
  for (int i = 0; i < 16; i++) low[i] = __builtin_inff(), high[i] = -__builtin_inff();
  for (int j0 = 0; j0 < d; j0 += kWidth) {
    const int width = d - j0 < kWidth ? d - j0 : kWidth;
    load(row, d, j0, width, type, key);
    for (int j = width; j < kWidth; j++) key[j] = key[0];
    for (int j = 0; j < kWidth; j += 16)
      for (int i = 0; i < 16; i++) {
        low[i] = key[j + i] < low[i] ? key[j + i] : low[i];
        high[i] = key[j + i] > high[i] ? key[j + i] : high[i];
      }
  }
  for (int i = 1; i < 16; i++) {
    low[0] = low[i] < low[0] ? low[i] : low[0];
    high[0] = high[i] > high[0] ? high[i] : high[0];
  }
  const uint16_t zero_f16 = f16_floor_finite(low[0]);
  const float zero = f16_to_f32(zero_f16);
  const double range = static_cast<double>(high[0]) - static_cast<double>(zero);
  uint16_t scale_f16 = f16_ceil((range > 1e-9 ? range : 1e-9) / 15);
  if (scale_f16 > 0x7bff) scale_f16 = 0x7bff;
  const float scale = f16_to_f32(scale_f16);

  const int words = (d + 7) / 8;
  for (int j0 = 0; j0 < d; j0 += kWidth) {
    const int width = d - j0 < kWidth ? d - j0 : kWidth;
    load(row, d, j0, width, type, key);
    for (int j = width; j < kWidth; j++) key[j] = zero;
    int32_t code[kWidth];
    for (int j = 0; j < kWidth; j++) {
      float x = (key[j] - zero) / scale;
      x = x > 0 ? x : 0;  // a NaN becomes 0 here
      x = x < 15 ? x : 15;
      code[j] = static_cast<int32_t>(x + 0.5f);
    }
    for (int w = 0; w < (width + 7) / 8; w++)
      for (int i = 0; i < 4; i++)
        group[(j0 / 8 + w) * 64 + lane * 4 + i] =
            static_cast<uint8_t>(code[8 * w + i] | code[8 * w + 4 + i] << 4);
  }
  auto* numbers = reinterpret_cast<uint16_t*>(group + words * 64);
  numbers[lane] = zero_f16;
  numbers[kInt4Group + lane] = scale_f16;
}

static inline void int4_encode_impl(void (*load)(const void*, int64_t, int64_t, int64_t, KvType,
                                                 float*),
                                    const void* k, KvType type, int64_t n, int d, void* groups) {
  const int64_t row_bytes = kv_row_bytes(type, d);
  for (int64_t t = 0; t < n; t++)
    int4_encode_token(load, static_cast<const char*>(k) + t * row_bytes, type, d,
                      static_cast<int>(t % kInt4Group),
                      static_cast<uint8_t*>(groups) + t / kInt4Group * int4_group_bytes(d));
}

static inline void int4_query_impl(const float* q, int g, int d, void* query) {
  auto* step = static_cast<float*>(query);
  float* sum = step + g;
  auto* digits = static_cast<int8_t*>(query) + int4_query_digits(g);
  const int64_t n_digits = int4_digit_bytes(g, d);
  auto* totals = reinterpret_cast<int32_t*>(digits + n_digits);
  for (int64_t i = 0; i < n_digits; i++) digits[i] = 0;
  for (int h = 0; h < g; h++) {
    float largest = 0;
    double total = 0;
    for (int j = 0; j < d; j++) {
      const float magnitude = __builtin_fabsf(q[h * d + j]);
      largest = magnitude > largest ? magnitude : largest;
      total += static_cast<double>(q[h * d + j]);
    }
    step[h] = largest / kLargestDigits;
    sum[h] = static_cast<float>(total);
    const float inverse = step[h] > 0 ? kLargestDigits / largest : 0;
    totals[2 * h] = totals[2 * h + 1] = 0;
    for (int j = 0; j < d; j++) {
      const float x = q[h * d + j] * inverse;
      // A query that is not finite has no fixed-point form. Its sum above is not finite, so its
      // scores are not either.
      const float inside =
          x > -kLargestDigits ? (x < kLargestDigits ? x : kLargestDigits) : -kLargestDigits;
      const auto value = static_cast<int32_t>(inside < 0 ? inside - 0.5f : inside + 0.5f);
      const auto lo = static_cast<int8_t>(value & 0xff);
      int8_t* at = digits + ((j / 8 * 2 + j % 8 / 4) * 2 * g + h) * 4 + j % 4;
      at[0] = static_cast<int8_t>((value - lo) / 256);
      at[4 * g] = lo;
      totals[2 * h] += at[0];
      totals[2 * h + 1] += value;
    }
  }
}

// A weight in units of 2^-30. Weights are at most 1, so 2^24 tokens fit 64 bits many times over.
static constexpr float kFixedOne = 0x1p30f;
// The factor for sums of a block's 64 weights, which must fit 32 bits.
static constexpr float kFixedBlockOne = 0x1p24f;

}  // namespace riffle::cpu
