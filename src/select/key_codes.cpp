#include "select/key_codes.h"

#include <algorithm>

namespace riffle {

KeyCodes::KeyCodes(const StateShape& shape, int64_t segment_bytes)
    : layout_(shape.layout),
      kernels_(shape.kernels),
      n_kv_heads_(shape.n_kv_heads),
      segment_bytes_(segment_bytes),
      heads_(size_t(shape.n_layers) * shape.n_kv_heads) {}

void KeyCodes::add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) {
  Head& h = heads_[layer * n_kv_heads_ + head];
  while (h.n < n_full) {
    if (h.n == static_cast<int>(h.segments.size()) * kSegmentBlocks) {
      h.segments.reserve(h.segments.size() + 1);
      h.segments.emplace_back(size_t(segment_bytes_));
    }
    encode(blocks[h.n], h.segments[h.n / kSegmentBlocks].as<std::byte>(), h.n % kSegmentBlocks);
    ++h.n;  // last: if anything above throws, the head is unchanged
  }
}

void KeyCodes::truncate(int64_t n_tokens) {
  const int64_t full = n_tokens / layout_.block_size;
  for (Head& h : heads_) {
    h.n = static_cast<int>(std::min<int64_t>(h.n, full));
    h.segments.resize((h.n + kSegmentBlocks - 1) / kSegmentBlocks);
  }
}

uint64_t KeyCodes::bytes() const {
  uint64_t segments = 0;
  for (const Head& h : heads_) segments += h.segments.size();
  return segments * segment_bytes_;
}

uint64_t KeyCodes::bytes_for(const StateShape& shape, int64_t n_tokens, int64_t segment_bytes) {
  const int64_t full = n_tokens / shape.layout.block_size,
                segments = (full + kSegmentBlocks - 1) / kSegmentBlocks;
  return uint64_t(shape.n_layers - shape.n_borrowing) * shape.n_kv_heads * segments * segment_bytes;
}

}  // namespace riffle
