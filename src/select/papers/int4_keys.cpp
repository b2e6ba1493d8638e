#include "select/papers/int4_keys.h"

#include <algorithm>

namespace riffle {

int64_t Int4Keys::segment_bytes(const BlockLayout& layout) {
  return kSegmentBlocks * (layout.block_size / cpu::kInt4Group) *
         cpu::int4_group_bytes(layout.head_dim);
}

void Int4Keys::encode(const std::byte* block, std::byte* segment, int at) const {
  kernels_->select.int4_encode(block, layout_.type, layout_.block_size, layout_.head_dim,
                               segment + at * block_bytes());
}

void Int4Keys::scores(int layer, int head, int first, int n, const void* query, int g, float* out,
                      int64_t ldo, int next) const {
  const int64_t groups = layout_.block_size / cpu::kInt4Group;
  for (int b = first, run; b < first + n; b += run) {
    run = std::min(first + n - b, kSegmentBlocks - b % kSegmentBlocks);
    const int after = b + run < first + n ? b + run : next;
    kernels_->select.int4_score(block(layer, head, b), run * groups, layout_.head_dim, query, g,
                                out + int64_t(b - first) * layout_.block_size, ldo,
                                after < 0 ? nullptr : block(layer, head, after));
  }
}

}  // namespace riffle
