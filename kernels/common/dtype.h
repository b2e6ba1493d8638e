// Types of weights and how model files store them: one table, from which the parsers, the CPU
// kernels and the CUDA kernels take sizes, names, layouts and decoders. The quantised types are
// GGUF's (ggml docs/gguf.md): blocks of values with scales in common.
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

// A quantised value is scale * (code - offset) - min, or scale * table[code] - min: the code is a
// small integer, and a group of values shares a scale and a minimum.

// Layout of the codes in a block. 32 neighbouring values are a run. A code may be cut into its low
// bits and its high bits, which lie apart.
enum class Codes : uint8_t {
  Plain,   // a floating-point number in place of codes
  Bytes,   // 32 signed bytes
  Halves,  // 16 bytes: byte j has value j in its low half, value j + 16 in its high half. High bit
           // of value j: bit j of a 32-bit word
  Strips,  // strips of 32 bytes: byte l has value l of several runs, the first run in the lowest
           // bits. High bits: strips as well
  Crossed  // strips in pairs: of four runs the first strip has 0 and 2, the second 1 and 3. High
           // bits: strips
};

// Values that codes are indices of. E2m1 has the e2m1 numbers doubled.
enum class CodeTable : uint8_t { None, Iq4, E2m1 };

// Layout of the scales of a block's groups, and of their minima. d and dmin are f16 numbers.
enum class Scales : uint8_t {
  NoScales,
  Half,      // one group: d is the scale; the minimum is the negative of the f16 in dmin's place
  Exponent,  // one group: a byte of E8M0, whose half is the scale
  Pairs,     // 8 scales and 8 minima of 6 bits in 12 bytes: d * scale, dmin * min
  Split,     // 8 scales of 6 bits: upper bits in 2 bytes, lower bits in 4: d * (scale - 32)
  Sixes,     // 16 scales of 6 bits in 12 bytes: d * (scale - 32)
  Signed,    // 16 signed bytes: d * scale
  Nibbles    // 16 bytes: scale in the low half, minimum in the high one: d * scale, dmin * min
};

struct DTypeInfo {
  DType type;
  const char* name;
  uint8_t ggml;                       // number of the type in GGUF
  int16_t block_values, block_bytes;  // a row is whole blocks
  Codes codes;
  int8_t low_bits, high_bits;  // bits of a code
  int16_t codes_at, high_at;   // bytes from the block's start on; -1: none
  int8_t offset;               // excess of a code over its value
  CodeTable table;
  Scales scales;
  int16_t scales_at, d_at, dmin_at;
  bool written;  // riffle quantises to it, and makes synthetic weights of it

  RIFFLE_HOST_DEVICE constexpr int bits() const { return low_bits + high_bits; }
  RIFFLE_HOST_DEVICE constexpr bool is_quantised() const { return codes != Codes::Plain; }
  RIFFLE_HOST_DEVICE constexpr bool has_min() const { return dmin_at >= 0; }
  RIFFLE_HOST_DEVICE constexpr bool has_table() const { return table != CodeTable::None; }
  // Tells whether codes, or the values of a table, are signed bytes.
  RIFFLE_HOST_DEVICE constexpr bool is_signed() const {
    return codes == Codes::Bytes || has_table();
  }
  RIFFLE_HOST_DEVICE constexpr int groups() const {
    switch (scales) {
      case Scales::Pairs:
      case Scales::Split: return 8;
      case Scales::Sixes:
      case Scales::Signed:
      case Scales::Nibbles: return 16;
      default: return 1;
    }
  }
  // Returns the number of values that share a scale.
  RIFFLE_HOST_DEVICE constexpr int group() const { return block_values / groups(); }
};

namespace dtype_table {
using enum DType;
using enum Codes;
using enum CodeTable;
using enum Scales;
constexpr bool yes = true, no = false;
// Columns: number in GGUF; values and bytes of a block; codes: low and high bits, position of
// either, offset, table; scales: positions of scales, d and dmin; written.
// clang-format off
inline constexpr DTypeInfo kRows[] = {
  {F32,    "F32",     0,   1,   4, Plain,   32, 0,  0,  -1,  0, None, NoScales,  -1,  -1, -1, yes},
  {F16,    "F16",     1,   1,   2, Plain,   16, 0,  0,  -1,  0, None, NoScales,  -1,  -1, -1, yes},
  {BF16,   "BF16",   30,   1,   2, Plain,   16, 0,  0,  -1,  0, None, NoScales,  -1,  -1, -1, yes},
  {Q8_0,   "Q8_0",    8,  32,  34, Bytes,    8, 0,  2,  -1,  0, None, Half,      -1,   0, -1, yes},
  {Q4_0,   "Q4_0",    2,  32,  18, Halves,   4, 0,  2,  -1,  8, None, Half,      -1,   0, -1, yes},
  {Q4_1,   "Q4_1",    3,  32,  20, Halves,   4, 0,  4,  -1,  0, None, Half,      -1,   0,  2, yes},
  {Q5_0,   "Q5_0",    6,  32,  22, Halves,   4, 1,  6,   2, 16, None, Half,      -1,   0, -1, yes},
  {Q5_1,   "Q5_1",    7,  32,  24, Halves,   4, 1,  8,   4,  0, None, Half,      -1,   0,  2, yes},
  {Q4_K,   "Q4_K",   12, 256, 144, Strips,   4, 0, 16,  -1,  0, None, Pairs,      4,   0,  2, yes},
  {Q5_K,   "Q5_K",   13, 256, 176, Strips,   4, 1, 48,  16,  0, None, Pairs,      4,   0,  2, yes},
  {Q6_K,   "Q6_K",   14, 256, 210, Crossed,  4, 2,  0, 128, 32, None, Signed,   192, 208, -1, yes},
  {IQ4_NL, "IQ4_NL", 20,  32,  18, Halves,   4, 0,  2,  -1,  0, Iq4,  Half,      -1,   0, -1, no},
  {IQ4_XS, "IQ4_XS", 23, 256, 136, Halves,   4, 0,  8,  -1,  0, Iq4,  Split,      2,   0, -1, no},
  {Q3_K,   "Q3_K",   11, 256, 110, Strips,   2, 1, 32,   0,  4, None, Sixes,     96, 108, -1, no},
  {Q2_K,   "Q2_K",   10, 256,  84, Strips,   2, 0, 16,  -1,  0, None, Nibbles,    0,  80, 82, no},
  {MXFP4,  "MXFP4",  39,  32,  17, Halves,   4, 0,  1,  -1,  0, E2m1, Exponent,   0,  -1, -1, no},
};
// clang-format on
}  // namespace dtype_table

inline constexpr const auto& kDTypes = dtype_table::kRows;
inline constexpr int kNumDTypes = sizeof kDTypes / sizeof kDTypes[0];
namespace dtype_table {
struct Copy {
  DTypeInfo rows[kNumDTypes] = {};
  RIFFLE_HOST_DEVICE constexpr Copy() {
    for (int i = 0; i < kNumDTypes; ++i) rows[i] = kRows[i];
  }
};
}  // namespace dtype_table

// A byte that is no DType gives the first type: the table is never left.
RIFFLE_HOST_DEVICE constexpr DTypeInfo dtype_info(DType type) {
#ifdef __CUDA_ARCH__
  constexpr dtype_table::Copy table = {};  // device code cannot read a variable of the host
  const DTypeInfo(&rows)[kNumDTypes] = table.rows;
#else
  const DTypeInfo(&rows)[kNumDTypes] = kDTypes;
#endif
  const auto i = static_cast<unsigned>(type);
  return rows[i < kNumDTypes ? i : 0];
}
RIFFLE_HOST_DEVICE constexpr bool is_quantised(DType type) {
  return dtype_info(type).is_quantised();
}

namespace dtype_table {
constexpr int scale_bytes(const DTypeInfo& t) {
  switch (t.scales) {
    case Scales::NoScales: return 0;
    case Scales::Half: return t.has_min() ? 4 : 2;
    case Scales::Exponent: return 1;
    case Scales::Pairs: return 12 + 4;
    case Scales::Split: return 6 + 2;
    case Scales::Sixes: return 12 + 2;
    case Scales::Signed: return 16 + 2;
    case Scales::Nibbles: return 16 + 4;
  }
  return 0;
}
constexpr bool fits() {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DTypeInfo& t = kDTypes[i];
    if (static_cast<int>(t.type) != i) return false;
    if (t.block_bytes != t.block_values * t.bits() / 8 + scale_bytes(t)) return false;
    if ((t.high_bits > 0) != (t.high_at >= 0) || (t.offset > 0 && t.has_min())) return false;
    if (t.has_min() && t.dmin_at != t.d_at + 2) return false;
  }
  return true;
}
static_assert(fits(), "each type stands at its place, and its parts fill its block");
}  // namespace dtype_table

// Calls f<type>() with the type as a constant. All results must be of one C++ type.
#ifdef __CUDACC__
#pragma nv_exec_check_disable  // f is for the host or for the device
#endif
template <int kFirst = 0, class F>
RIFFLE_HOST_DEVICE inline auto with_type(DType type, F&& f) {
  if constexpr (kFirst + 1 < kNumDTypes) {
    if (type != static_cast<DType>(kFirst)) return with_type<kFirst + 1>(type, f);
  }
  return f.template operator()<static_cast<DType>(kFirst)>();
}

// Types whose codes are indices into a table of 16 signed values.
RIFFLE_HOST_DEVICE constexpr bool has_table(DType type) { return dtype_info(type).has_table(); }
// Value `code` of the table of such a type. The table of MXFP4 has the e2m1 numbers doubled.
RIFFLE_HOST_DEVICE constexpr int8_t table_value(DType type, int code) {
  constexpr int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};
  constexpr int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  return dtype_info(type).table == CodeTable::E2m1 ? e2m1[code] : iq4[code];
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
// Scales::Split: the scale of group g < 8, of which `low` has bits 0 to 3, `high` bits 4 and 5.
RIFFLE_HOST_DEVICE constexpr int split_scale(uint32_t low, uint32_t high, int g) {
  return static_cast<int>((low >> 4 * g & 15) | (high >> 2 * g & 3) << 4) - 32;
}
// Returns the bytes of a row of cols values, a multiple of block_values.
constexpr int64_t row_bytes(DType type, int64_t cols) {
  return cols / dtype_info(type).block_values * dtype_info(type).block_bytes;
}

}  // namespace riffle
