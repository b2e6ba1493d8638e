// Splits rows of quantised weights from a file's blocks into the device's parts (Matrix in
// kernels/cuda/matrix.h).
#pragma once
#include <cstdint>

#include "kernels/cuda/matrix.h"

namespace riffle::cuda {

// Destinations of a row's parts, row_parts() bytes each; those that the type lacks are not touched.
struct SplitRow {
  std::byte *data = nullptr, *scales = nullptr, *high = nullptr, *blocks = nullptr;
};

// row: row_bytes(type, cols) bytes of a file, of any alignment; type is quantised.
void split_row(WType type, int64_t cols, const std::byte* row, const SplitRow& to);

}  // namespace riffle::cuda
