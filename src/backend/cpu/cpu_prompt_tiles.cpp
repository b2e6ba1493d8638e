// Attention of a prompt whose queries choose the key tiles that they read (PromptAttention::share).
#include <algorithm>
#include <bit>

#include "backend/cpu/cpu_device.h"

namespace riffle {

static int64_t tile_words(int64_t n_tokens) { return (n_tokens / kKeyTile + 64) / 64; }

size_t CpuDevice::tile_scratch(const cpu::Kernels& kernels, int d, int block_size,
                               int64_t n_tokens) {
  const cpu::AttentionKernels& a = kernels.attention;
  const size_t bytes = std::max(a.prefill_scratch_bytes(kQueryTile, 1, d, block_size),
                                a.choice_scratch_bytes(n_tokens, d));
  return (bytes + 63) / 64 * 64 + tile_words(n_tokens) * sizeof(uint64_t);
}

// Computes the mean keys of the key tiles that have become complete. A mean is that of the stored
// (rounded) keys, so it does not depend on how the prompt is cut into chunks.
void CpuDevice::add_tile_means(const PrefillAttention& a) {
  const BlockLayout layout = store_.shape().layout(a.layer);
  const int d = layout.head_dim, heads = config_.kv_heads(a.layer);
  TileMeans& means = *a.means;
  means.values.reserve(size_t(means.most) * heads * d * sizeof(float));
  const int64_t first = means.n, n = (a.pos0 + a.n) / kKeyTile - first;
  for (Buffer& b : thread_scratch_) b.reserve(size_t(d) * sizeof(float));
  threads_->parallel_for(std::max<int64_t>(0, n) * heads, [&](int64_t item, int thread) {
    const int64_t head = item % heads, tile = first + item / heads;
    auto* key = thread_scratch_[thread].as<float>();
    float* mean = means.values.as<float>() + (head * means.most + tile) * d;
    std::fill_n(mean, d, 0.f);
    for (int64_t t = tile * kKeyTile; t < (tile + 1) * kKeyTile; ++t) {
      const std::byte* block = a.kv.blocks[head * a.kv.n_blocks + t / layout.block_size];
      kernels_->attention.kv_load(block + t % layout.block_size * layout.row_bytes(), d,
                                  layout.type, key);
      for (int j = 0; j < d; ++j) mean[j] += key[j];
    }
    for (int j = 0; j < d; ++j) mean[j] /= kKeyTile;
  });
  means.n += std::max<int64_t>(0, n);
}

void CpuDevice::attend_prefill_tiles(const PrefillAttention& a) {
  add_tile_means(a);
  const BlockLayout layout = store_.shape().layout(a.layer);
  const cpu::AttentionKernels& kernels = kernels_->attention;
  const int d = layout.head_dim, heads = config_.kv_heads(a.layer),
            n_heads = config_.heads(a.layer), g = n_heads / heads;
  const int64_t end = a.pos0 + a.n, words = tile_words(end);
  const size_t bytes = tile_scratch(*kernels_, d, layout.block_size, end),
               attention = bytes - words * sizeof(uint64_t);  // the words come last
  for (Buffer& b : thread_scratch_) b.reserve(bytes);
  std::vector<TileCounts> counts(thread_scratch_.size());
  const int64_t begin_tile = a.pos0 / kQueryTile, end_tile = (end + kQueryTile - 1) / kQueryTile;
  threads_->parallel_for((end_tile - begin_tile) * n_heads, [&](int64_t item, int thread) {
    const int head = static_cast<int>(item % n_heads), kv_head = head / g;
    // The longest first, so that the threads end together.
    const int64_t tile = end_tile - 1 - item / n_heads;
    const int64_t from = std::max(tile * kQueryTile, a.pos0),
                  to = std::min((tile + 1) * kQueryTile, end);
    const bool whole = to - from == kQueryTile && from >= a.whole_begin && to <= a.whole_end;
    const auto* blocks =
        reinterpret_cast<const void* const*>(a.kv.blocks + kv_head * a.kv.n_blocks);
    const float* q = a.q + (from - a.pos0) * a.ldq + head * d;
    const float* sink = sinks(a.layer, kv_head);
    if (sink) sink += head % g;
    auto* scratch = thread_scratch_[thread].as<std::byte>();
    auto* tiles = reinterpret_cast<uint64_t*>(scratch + attention);
    const auto n_q = static_cast<int>(to - from);
    if (whole) {
      kernels.choose_tiles(q, a.ldq, n_q, d, from,
                           a.means->values.as<float>() + kv_head * a.means->most * d, a.share,
                           tiles, scratch);
      counts[thread].seen += to / kKeyTile;
      for (int64_t i = 0; i < (to / kKeyTile + 63) / 64; ++i)
        counts[thread].read += std::popcount(tiles[i]);
    }
    kernels.attend_prefill(q, a.ldq, n_q, 1, d, from, 0, whole ? tiles : nullptr, blocks,
                           layout.block_size, layout.type,
                           static_cast<int64_t>(layout.value_offset()), sink,
                           a.out + (from - a.pos0) * a.ldo + head * d, a.ldo, scratch);
  });
  for (const TileCounts& c : counts) a.counts->seen += c.seen, a.counts->read += c.read;
}

}  // namespace riffle
