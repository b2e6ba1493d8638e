#include "select/int4_keys.h"

#include <algorithm>

namespace riffle {

static int64_t block_bytes_of(const BlockLayout& layout) {
  return layout.block_size / cpu::kInt4Group * cpu::int4_group_bytes(layout.head_dim);
}

Int4Keys::Int4Keys(const StateShape& shape)
    : layout_(shape.layout),
      kernels_(shape.kernels),
      n_kv_heads_(shape.n_kv_heads),
      block_bytes_(block_bytes_of(shape.layout)),
      heads_(size_t(shape.n_layers) * shape.n_kv_heads) {}

int64_t Int4Keys::segment_bytes(const BlockLayout& layout) {
  return kSegmentBlocks * (block_bytes_of(layout) + int64_t(layout.head_dim) * 2);
}

void Int4Keys::add_blocks(int layer, int head, int n_full, const std::byte* const* blocks) {
  Head& h = heads_[layer * n_kv_heads_ + head];
  while (h.n < n_full) {
    if (h.n == static_cast<int>(h.segments.size()) * kSegmentBlocks) {
      h.segments.reserve(h.segments.size() + 1);
      h.mean.resize(layout_.head_dim);
      h.segments.emplace_back(size_t(segment_bytes(layout_)));
    }
    std::byte* codes =
        h.segments[h.n / kSegmentBlocks].as<std::byte>() + h.n % kSegmentBlocks * block_bytes_;
    kernels_->select.int4_encode(blocks[h.n], layout_.type, layout_.block_size, layout_.head_dim,
                                 codes);
    // The same sums in the same order as kernels/cuda/select/value_means.cu.
    const int d = layout_.head_dim;
    std::vector<float> sum(d, 0.0f), value(d);
    for (int t = 0; t < layout_.block_size; ++t) {
      kernels_->attention.kv_load(blocks[h.n] + layout_.value_offset() + t * layout_.row_bytes(), d,
                                  layout_.type, value.data());
      for (int j = 0; j < d; ++j) sum[j] += value[j];
    }
    for (float& v : sum) v *= 1.0f / static_cast<float>(layout_.block_size);
    kernels_->attention.kv_store(sum.data(), d, KvType::F16,
                                 const_cast<uint16_t*>(value_mean(h, h.n)));
    ++h.n;  // last: if anything above throws, the head is unchanged
  }
}

void Int4Keys::truncate(int64_t n_tokens) {
  const int64_t full = n_tokens / layout_.block_size;
  for (Head& h : heads_) {
    h.n = static_cast<int>(std::min<int64_t>(h.n, full));
    if (h.mean_of > h.n) h.mean_of = 0;
    h.segments.resize((h.n + kSegmentBlocks - 1) / kSegmentBlocks);
  }
}

uint64_t Int4Keys::bytes() const {
  uint64_t segments = 0, heads = 0;  // heads: number of heads with segments
  for (const Head& h : heads_) {
    segments += h.segments.size();
    heads += !h.segments.empty();
  }
  return segments * segment_bytes(layout_) + heads * layout_.head_dim * sizeof(float);
}

uint64_t Int4Keys::bytes_for(const StateShape& shape, int64_t n_tokens) {
  const int64_t full = n_tokens / shape.layout.block_size,
                segments = (full + kSegmentBlocks - 1) / kSegmentBlocks;
  const uint64_t mean = segments > 0 ? shape.layout.head_dim * sizeof(float) : 0;
  const uint64_t heads = uint64_t(shape.n_layers) * shape.n_kv_heads;
  return heads * (segments * segment_bytes(shape.layout) + mean);
}

const float* Int4Keys::mean_value(int layer, int head, int n_full) {
  Head& h = heads_[layer * n_kv_heads_ + head];
  if (h.mean_of.load(std::memory_order_acquire) == n_full) return h.mean.data();
  const std::lock_guard<std::mutex> lock(h.mean_lock);
  if (h.mean_of.load(std::memory_order_relaxed) == n_full) return h.mean.data();
  const int d = layout_.head_dim, stride = (n_full + kMeanBlocks - 1) / kMeanBlocks;
  std::vector<float> value(d);
  h.mean.assign(d, 0.0f);
  int n = 0;
  for (int b = stride - 1; b < n_full; b += stride, ++n) {
    kernels_->attention.kv_load(value_mean(h, b), d, KvType::F16, value.data());
    for (int j = 0; j < d; ++j) h.mean[j] += value[j];
  }
  for (float& v : h.mean) v /= static_cast<float>(std::max(n, 1));
  h.mean_of.store(n_full, std::memory_order_release);
  return h.mean.data();
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
