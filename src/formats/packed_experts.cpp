#include "formats/packed_experts.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/dtype.h"

namespace riffle {

void transpose_experts(const uint8_t* from, int size, int64_t stride, int64_t first, int64_t step,
                       int64_t rows, int64_t cols, std::byte* to) {
  // Works in squares of 32 by 32 values, so that neither side is accessed only in strides.
  constexpr int64_t kSide = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kSide)
    for (int64_t c0 = 0; c0 < cols; c0 += kSide)
      for (int64_t r = r0; r < std::min(rows, r0 + kSide); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + kSide); ++c)
          std::memcpy(to + (r * cols + c) * size, from + (c * stride + first + r * step) * size,
                      static_cast<size_t>(size));
}

void pack_mxfp4(const uint8_t* blocks, const uint8_t* scales, int64_t first, int64_t step,
                int64_t rows, int64_t n_blocks, std::byte* to) {
  constexpr int kHalf = 16;
  static_assert(dtype_info(DType::MXFP4).block_bytes == kHalf + 1);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < n_blocks; ++b, to += kHalf + 1) {
      const int64_t at = (first + r * step) * n_blocks + b;
      const uint8_t* from = blocks + at * kHalf;
      const auto code = [from](int i) { return from[i / 2] >> 4 * (i % 2) & 15; };
      to[0] = static_cast<std::byte>(scales[at]);
      for (int j = 0; j < kHalf; ++j)
        to[1 + j] = static_cast<std::byte>(code(j) | code(j + kHalf) << 4);
    }
}

}  // namespace riffle
