// Layout of a weight matrix in device memory.
#pragma once
#include "kernels/common/host_device.h"
#include "kernels/cuda/types.h"

namespace riffle::cuda {

// A weight matrix on the device, [rows][cols]. F32, F16, BF16: row-major at data. Quantised types
// are split so that loads are aligned, each part row-major:
// - Q8_0: int8 quants [cols] at data; at scales an f16 for each 32 of them; value = scale * quant.
// - 4 to 6 bits: 32 consecutive values have 16 bytes at data. The low half of byte j is for value
//   j, the high half for value j + 16. Bits beyond the fourth are at high, for the same 32 values:
//     Q5_0, Q5_1, Q5_K: 4 bytes; bit k of byte b is for value 4k + b;
//     Q6_K: 8 bytes; bits 2k, 2k+1 of byte b < 4 are for value 4k + b, of byte 4 + b for value
//       16 + 4k + b.
//   The scales lie apart from the values, at scales:
//     Q4_0, Q5_0, IQ4_NL: f16 d for 32 values; MXFP4: a byte of exponent for 32 values;
//     Q4_1, Q5_1: f16 d, m for 32 values;
//     Q4_K, Q5_K: 16 bytes for 256 values: f16 d, dmin; bytes 4 + g, g < 8: the low 4 bits of the
//       scale and (high half of the byte) of the minimum of group g; bytes 12 + i, i < 4: bits 4, 5
//       of the scale and of the minimum of group i, then of group 4 + i;
//     Q6_K: 16 int8 for 256 values; their f16 d is at blocks;
//     IQ4_XS: 8 bytes for 256 values: f16 d, the upper and the lower bits of the scales.
// - 2 and 3 bits: 32 consecutive values have 8 bytes at data with 2 bits of each, in the order that
//   Q6_K has at high.
//     Q3_K: the third bits are at high, as Q5_K's fifth bits; at scales 16 bytes for 256 values:
//       f16 d, two bytes of zero (aligned loads for 1.8% of the memory), 12 bytes of scales.
//     Q2_K: at scales 16 bytes of scales and minima for 256 values; their f16 d, dmin lie at
//       blocks.
//   Rows of each part are padded to 16 bytes with zeros. kernels/cpu/linear/quants.h says what the
//   values are.
struct Matrix {
  WType type = WType::F32;
  int64_t rows = 0, cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  const void* high = nullptr;
  const void* blocks = nullptr;
};

// Bytes that a row takes in each part of a matrix. cols is whole blocks of the type.
struct RowParts {
  int64_t data = 0, scales = 0, high = 0, blocks = 0;
};
RIFFLE_HOST_DEVICE constexpr int64_t padded16(int64_t bytes) { return (bytes + 15) / 16 * 16; }
RIFFLE_HOST_DEVICE constexpr RowParts row_parts(WType type, int64_t cols) {
  const int64_t half = cols / 2;  // bytes of low halves
  switch (type) {
    case WType::F32: return {4 * cols, 0, 0, 0};
    case WType::F16:
    case WType::BF16: return {2 * cols, 0, 0, 0};
    case WType::Q8_0: return {cols, cols / 16, 0, 0};
    case WType::Q4_0: return {half, padded16(cols / 16), 0, 0};
    case WType::Q4_1: return {half, padded16(cols / 8), 0, 0};
    case WType::Q5_0: return {half, padded16(cols / 16), padded16(cols / 8), 0};
    case WType::Q5_1: return {half, padded16(cols / 8), padded16(cols / 8), 0};
    case WType::Q4_K: return {half, cols / 16, 0, 0};
    case WType::Q5_K: return {half, cols / 16, cols / 8, 0};
    case WType::Q6_K: return {half, cols / 16, cols / 4, padded16(cols / 128)};
    case WType::IQ4_NL: return {half, padded16(cols / 16), 0, 0};
    case WType::IQ4_XS:
    case WType::MXFP4: return {half, padded16(cols / 32), 0, 0};
    case WType::Q3_K: return {cols / 4, cols / 16, cols / 8, 0};
    case WType::Q2_K: return {cols / 4, cols / 16, 0, padded16(cols / 64)};
  }
  return {};
}

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

// A matrix that lies so at `at`.
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
