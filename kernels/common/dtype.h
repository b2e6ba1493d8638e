// Types of weights and how model files store them, shared by the parsers, the CPU kernels and the
// CUDA kernels. The quantised ones are GGUF's (ggml docs/gguf.md): blocks of values with scales in
// common.
#pragma once
#include <cstdint>

#include "kernels/common/host_device.h"

namespace riffle {

enum class DType : uint8_t {
  F32,
  F16,
  BF16,
  Q8_0,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q4_K,
  Q5_K,
  Q6_K,
  IQ4_NL,
  IQ4_XS,
  Q3_K,
  Q2_K,
  MXFP4
};
inline constexpr int kNumDTypes = 16;

struct DTypeInfo {
  const char* name;
  int block_values, block_bytes;  // a row is whole blocks
};
inline constexpr DTypeInfo kDTypes[kNumDTypes] = {
    {"F32", 1, 4},        {"F16", 1, 2},      {"BF16", 1, 2},     {"Q8_0", 32, 34},
    {"Q4_0", 32, 18},     {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
    {"Q4_K", 256, 144},   {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"IQ4_NL", 32, 18},
    {"IQ4_XS", 256, 136}, {"Q3_K", 256, 110}, {"Q2_K", 256, 84},  {"MXFP4", 32, 17}};

// The mask never changes a valid index. Without it, compilers warn that the enum's type can hold
// 255, which is outside the table.
static_assert((kNumDTypes & (kNumDTypes - 1)) == 0);
constexpr const DTypeInfo& dtype_info(DType type) {
  return kDTypes[static_cast<unsigned>(type) & (kNumDTypes - 1)];
}
constexpr bool is_quantised(DType type) { return dtype_info(type).block_values > 1; }

// Types whose 4-bit codes are indices into a table of 16 signed values.
RIFFLE_HOST_DEVICE constexpr bool has_table(DType type) {
  return type == DType::IQ4_NL || type == DType::IQ4_XS || type == DType::MXFP4;
}
// Value `code` of the table of such a type. The table of MXFP4 has the e2m1 numbers doubled.
RIFFLE_HOST_DEVICE constexpr int8_t table_value(DType type, int code) {
  constexpr int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
  constexpr int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return type == DType::MXFP4 ? e2m1[code] : iq4[code];
}
// Values 4i to 4i + 3 of the table as the bytes of a word, the first in the lowest.
RIFFLE_HOST_DEVICE constexpr uint32_t table_word(DType type, int i) {
  uint32_t word = 0;
  for (int b = 0; b < 4; ++b)
    word |= static_cast<uint32_t>(static_cast<uint8_t>(table_value(type, 4 * i + b))) << 8 * b;
  return word;
}
// The bits of the f32 2^(e - 128): half of the E8M0 number e, since the table is doubled. The two
// smallest are subnormal. e = 255, which E8M0 keeps for NaN, gives 2^127, as in the gguf package.
RIFFLE_HOST_DEVICE constexpr uint32_t half_e8m0_bits(uint32_t e) {
  return e < 2 ? 0x00200000u << e : (e - 1) << 23;
}
// The scale of group g < 8 of an IQ4_XS block: `low` has its bits 0 to 3, `high` its bits 4 and 5.
RIFFLE_HOST_DEVICE constexpr int scale_iq4_xs(uint32_t low, uint32_t high, int g) {
  return static_cast<int>((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;
}
// Returns the bytes of a row of cols values, a multiple of block_values.
constexpr int64_t row_bytes(DType type, int64_t cols) {
  return cols / dtype_info(type).block_values * dtype_info(type).block_bytes;
}

}  // namespace riffle
