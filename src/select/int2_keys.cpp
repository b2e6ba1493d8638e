#include "select/int2_keys.h"

#include <algorithm>

#include "kernels/common/hadamard.h"

namespace riffle {
namespace {

// codes: bytes of a block's codes, which begin at 0. The others: where the means of the blocks (16
// together), the tokens' scales and the means' scales begin. end: bytes of the segment.
struct Segment {
  int64_t codes, means, scales, mean_scales, end;
  Segment(const BlockLayout& layout, int blocks)
      : codes(layout.block_size / cpu::kInt4Group * cpu::int2_group_bytes(layout.head_dim)),
        means(blocks * codes),
        scales(means + blocks / 16 * cpu::int2_mean_bytes(layout.head_dim)),
        mean_scales(scales + int64_t(blocks) * layout.block_size * 2),
        end(mean_scales + blocks * 4) {}
};

}  // namespace

int64_t Int2Keys::segment_bytes(const BlockLayout& layout) {
  return Segment(layout, kSegmentBlocks).end;
}

void Int2Keys::encode(const std::byte* block, std::byte* segment, int at) const {
  const Segment s(layout_, kSegmentBlocks);
  auto* base = reinterpret_cast<uint8_t*>(segment);
  const cpu::Int2Block out = {
      base + at * s.codes, reinterpret_cast<uint16_t*>(base + s.scales) + at * layout_.block_size,
      base + s.means + at / 16 * cpu::int2_mean_bytes(layout_.head_dim), at % 16,
      reinterpret_cast<float*>(base + s.mean_scales) + at};
  kernels_->select.int2_encode(block, layout_.type, layout_.block_size, layout_.head_dim, out);
}

// The buffer also has room for the rotated queries, after the form.
size_t Int2Keys::query_bytes(int g) const {
  return cpu::int2_query_bytes(g, layout_.head_dim) + size_t(g) * layout_.head_dim * sizeof(float);
}

void Int2Keys::prepare_query(const float* q, int g, void* query) const {
  const int d = layout_.head_dim;
  auto* rotated =
      reinterpret_cast<float*>(static_cast<std::byte*>(query) + cpu::int2_query_bytes(g, d));
  std::copy_n(q, int64_t(g) * d, rotated);
  if (layout_.type != cpu::KvType::Q8)  // Q8's queries arrive rotated
    for (int h = 0; h < g; ++h) hadamard(rotated + int64_t(h) * d, d);
  kernels_->select.int2_query(rotated, g, d, query);
}

void Int2Keys::scores(int layer, int head, int first, int n, const void* query, int g, float* out,
                      int64_t ldo, int end) const {
  const Segment s(layout_, kSegmentBlocks);
  const auto from = [&](int b, int run) {
    const int at = b % kSegmentBlocks;
    const auto* base = reinterpret_cast<const uint8_t*>(segment(layer, head, b));
    return cpu::Int2Run{
        base + at * s.codes,
        reinterpret_cast<const uint16_t*>(base + s.scales) + at * layout_.block_size,
        base + s.means + at / 16 * cpu::int2_mean_bytes(layout_.head_dim),
        reinterpret_cast<const float*>(base + s.mean_scales) + at,
        run,
        layout_.block_size,
        layout_.head_dim};
  };
  for (int b = first, run; b < first + n; b += run) {
    run = std::min(first + n - b, kSegmentBlocks - b % kSegmentBlocks);
    cpu::Int2Run next, blocks = from(b, run);
    if (b + run < end) next = from(b + run, 0), blocks.next = &next;
    kernels_->select.int2_score(blocks, query, g, out + int64_t(b - first) * layout_.block_size,
                                ldo);
  }
}

}  // namespace riffle
