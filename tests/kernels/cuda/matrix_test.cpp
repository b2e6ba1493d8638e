// Where the parts of a weight matrix lie on the device.
#include "kernels/cuda/matrix.h"

#include <catch2/catch.hpp>
#include <vector>

#include "kernels/common/dtype.h"

using namespace riffle;
using namespace riffle::cuda;

TEST_CASE("parts of a matrix are aligned, apart and within its bytes", "[matrix]") {
  for (int type = 0; type < kNumDTypes; ++type)
    for (const int64_t rows : {1, 7, 300})
      for (const int64_t cols : {256, 768, 2304}) {
        const auto t = static_cast<WType>(type);
        INFO(dtype_info(t).name << ' ' << rows << " x " << cols);
        const int64_t bytes = matrix_bytes(t, rows, cols);
        std::vector<char> memory(bytes);
        const Matrix m = matrix_at(t, rows, cols, memory.data());
        CHECK((m.type == t && m.rows == rows && m.cols == cols));
        const RowParts row = row_parts(t, cols);
        int64_t end = 0, taken = 0;  // sums over the parts so far
        for (const auto& [part, row_bytes] : {std::pair{m.data, row.data},
                                              {m.scales, row.scales},
                                              {m.high, row.high},
                                              {m.blocks, row.blocks}}) {
          CHECK((part != nullptr) == (row_bytes > 0));
          if (!part) continue;
          const int64_t begin = static_cast<const char*>(part) - memory.data();
          CHECK(begin % 256 == 0);
          CHECK(begin >= end);
          end = begin + rows * row_bytes;
          taken += rows * row_bytes;
          CHECK(end <= bytes);
        }
        // No fewer bytes than the file has, and no more than padding adds.
        const DTypeInfo& info = dtype_info(t);
        CHECK(taken >= rows * cols / info.block_values * info.block_bytes);
        CHECK(bytes < taken + 4 * 256);
      }
}
