// Layout of a weight matrix in device memory.
#pragma once
#include "kernels/common/host_device.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// A weight matrix on the device, [rows][cols]. F32, F16, BF16: row-major at data. Quantised types
// are split into parts so that loads are aligned, each part row-major. For 32 consecutive values
// the parts hold:
// - data, the low bits of the codes. 8 bits: a signed byte for each value. 4 bits: 16 bytes; the
//   low half of byte j is for value j, the high half for value j + 16. 2 bits: 8 bytes; bits 2k and
//   2k + 1 of byte b < 4 are for value 4k + b, of byte 4 + b for value 16 + 4k + b.
// - high, the other bits. One bit: 4 bytes; bit k of byte b is for value 4k + b. Two bits: 8 bytes,
//   as 2 bits at data.
// - scales, by the type's kind (kernels/common/dtype.h):
//     Half: f16 d, and the f16 minimum where there is one. Exponent: the byte.
//     Pairs: 16 bytes for 256 values: f16 d, dmin; bytes 4 + g, g < 8: the low 4 bits of the scale
//       and (high half of the byte) of the minimum of group g; bytes 12 + i, i < 4: bits 4, 5 of
//       the scale and of the minimum of group i, then of group 4 + i.
//     Split: 8 bytes for 256 values: f16 d, the upper and the lower bits of the scales.
//     Sixes: 16 bytes for 256 values: f16 d, two bytes of zero (aligned loads for 1.8% of the
//       memory), 12 bytes of scales.
//     Signed, Nibbles: 16 bytes for 256 values; their f16 d (and dmin) are at blocks.
// Rows of each part are padded to 16 bytes with zeros, except those of Q8_0.
// kernels/cpu/linear/quants.h defines the values.
struct Matrix {
  WType type = WType::F32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  const void* high = nullptr;
  const void* blocks = nullptr;
};

// Bytes that a row takes in each part of a matrix. cols is a multiple of the type's block.
struct RowParts {
  int64_t data = 0, scales = 0, high = 0, blocks = 0;
};
RIFFLE_HOST_DEVICE constexpr int64_t padded16(int64_t bytes) { return (bytes + 15) / 16 * 16; }
// Values that share a byte of a part; 0: the type lacks the part.
struct PartDensity {
  int scales, high, blocks;
};
RIFFLE_HOST_DEVICE constexpr PartDensity part_density(const DTypeInfo& type) {
  const int values = type.block_values, high = type.high_bits > 0 ? 8 / type.high_bits : 0;
  switch (type.scales) {
    case Scales::NoScales: break;
    case Scales::Half: return {values / (type.has_min() ? 4 : 2), high, 0};
    case Scales::Exponent: return {values, high, 0};
    case Scales::Split: return {values / 8, high, 0};
    case Scales::Pairs:
    case Scales::Sixes: return {values / 16, high, 0};
    case Scales::Signed: return {values / 16, high, values / 2};
    case Scales::Nibbles: return {values / 16, high, values / 4};
  }
  return {0, 0, 0};
}
RIFFLE_HOST_DEVICE constexpr RowParts row_parts(const DTypeInfo& type, int64_t cols) {
  const PartDensity density = part_density(type);
  const auto bytes = [&type, cols](int values) -> int64_t {
    if (values == 0) return 0;
    const bool whole = type.block_values / values % 16 == 0 || type.codes == Codes::Bytes;
    return whole ? cols / values : padded16(cols / values);
  };
  const int64_t data = type.low_bits >= 8 ? cols * (type.low_bits / 8) : cols / (8 / type.low_bits);
  return {data, bytes(density.scales), bytes(density.high), bytes(density.blocks)};
}
constexpr RowParts row_parts(WType type, int64_t cols) { return row_parts(dtype_info(type), cols); }

// Rows [first, first + n) of a matrix.
inline Matrix rows_of(const Matrix& w, int64_t first, int64_t n) {
  const RowParts row = row_parts(w.type, w.cols);
  const auto at = [&](const void* part, int64_t bytes) -> const void* {
    return part ? static_cast<const char*>(part) + first * bytes : nullptr;
  };
  return {w.type,
          n,
          w.cols,
          at(w.data, row.data),
          at(w.scales, row.scales),
          at(w.high, row.high),
          at(w.blocks, row.blocks)};
}

// Returns the bytes of a matrix whose parts follow one another, each from a multiple of 256 bytes
// on.
constexpr int64_t aligned256(int64_t bytes) { return (bytes + 255) / 256 * 256; }
constexpr int64_t matrix_bytes(WType type, int64_t rows, int64_t cols) {
  const RowParts row = row_parts(type, cols);
  return aligned256(rows * row.data) + aligned256(rows * row.scales) + aligned256(rows * row.high) +
         aligned256(rows * row.blocks);
}

// Returns a matrix with these parts, from `at` on.
inline Matrix matrix_at(WType type, int64_t rows, int64_t cols, void* at) {
  const RowParts row = row_parts(type, cols);
  auto* next = static_cast<char*>(at);
  const auto part = [&](int64_t row_bytes) -> const void* {
    const void* const begin = row_bytes > 0 ? next : nullptr;
    next += aligned256(rows * row_bytes);
    return begin;
  };
  Matrix m{type, rows, cols, part(row.data)};
  m.scales = part(row.scales);
  m.high = part(row.high);
  m.blocks = part(row.blocks);
  return m;
}

}  // namespace riffle::cuda
