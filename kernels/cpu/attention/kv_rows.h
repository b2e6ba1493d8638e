// Rows in 8 bits (kernels/common/kv_q8.h) on the CPU. Static on purpose: files compiled for
// different instruction sets must not share one copy.
#pragma once
#include "kernels/common/half.h"
#include "kernels/cpu/types.h"

namespace riffle::cpu {

// Value of each scale byte: the byte has the upper bits of an f16.
struct Q8Scales {
  float of[256];
};
static constexpr Q8Scales q8_scales() {
  Q8Scales table{};
  for (int byte = 0; byte < 256; byte++)
    table.of[byte] = f16_to_f32(static_cast<uint16_t>(byte << 7));
  return table;
}
static constexpr Q8Scales kQ8Scales = q8_scales();
static inline float q8_scale(uint8_t byte) { return kQ8Scales.of[byte]; }

// A row of d numbers in 8 bits. Every instruction set compiles these plain loops for itself, and
// all give the same bits.
static inline void q8_store_row(const float* src, int64_t d, void* dst) {
  auto* codes = static_cast<int8_t*>(dst);
  for (int64_t j0 = 0; j0 < d; j0 += kQ8Values) {
    const int64_t n = d - j0 < kQ8Values ? d - j0 : kQ8Values;
    float largest = 0;
    bool number = true;
    for (int64_t j = j0; j < j0 + n; j++) {
      const float magnitude = __builtin_fabsf(src[j]);
      number &= magnitude == magnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    const uint8_t byte = !number ? kQ8NotANumber : q8_scale_of(largest, largest / 127, [](float x) {
      return __builtin_bit_cast(uint32_t, x);
    });
    const float scale = q8_scale(byte), most = q8_largest_code(byte);
    const bool zero = byte == 0 || byte == kQ8NotANumber;
    for (int64_t j = j0; j < j0 + n; j++) {
      const float code = zero ? 0 : __builtin_rintf(src[j] / scale);
      codes[j] = static_cast<int8_t>(code < -most ? -most : code > most ? most : code);
    }
    codes[d + j0 / kQ8Values] = static_cast<int8_t>(byte);
  }
  for (int64_t i = d + (d + kQ8Values - 1) / kQ8Values; i < q8_row_bytes(d); i++) codes[i] = 0;
}

}  // namespace riffle::cpu
