#include "kv/pool_kv.h"

#include <cstring>

namespace riffle {

LayerKv PoolKv::prefill_layer(SequenceKv& s, int layer, int64_t n_total, int64_t) {
  park(s);
  const int64_t n_blocks = host_->shape().in_blocks(n_total),
                old = host_->shape().in_blocks(s.n_tokens);
  const int n_heads = host_->shape().rows(layer), source = host_->shape().source(layer);
  const size_t bytes = host_->shape().block_bytes(layer);
  Buffer& memory = host_->shape().is_source(source) ? source_memory_[source] : layer_memory_;
  memory.reserve(size_t(n_blocks) * n_heads * bytes);
  table_.resize(n_blocks * n_heads);
  for (int64_t i = 0; i < n_blocks * n_heads; ++i) table_[i] = memory.as<std::byte>() + i * bytes;
  if (source != layer) return {table_.data(), memory.as<std::byte>(), n_blocks};
  threads_->parallel_for(old * n_heads, [&](int64_t i, int) {
    const int64_t h = i / old, b = i % old;
    const std::byte* from = host_->head(s, layer, static_cast<int>(h)).blocks[b];
    if (from) std::memcpy(table_[h * n_blocks + b], from, bytes);
  });
  counters.loaded_bytes += host_->blocks_held(s, layer, 0, old) * bytes;
  return {table_.data(), memory.as<std::byte>(), n_blocks};
}

uint64_t PoolKv::prefill_held() const {
  uint64_t sum = layer_memory_.size();
  for (const auto& [layer, memory] : source_memory_) sum += memory.size();
  return sum;
}

void PoolKv::flush_layer(SequenceKv& s, int layer, int64_t n_total) {
  const int64_t n_blocks = host_->shape().in_blocks(n_total),
                first = s.n_tokens / host_->shape().block_size();
  const int64_t fresh = n_blocks - first;
  const size_t bytes = host_->shape().block_bytes(layer);
  threads_->parallel_for(fresh * host_->shape().heads(layer), [&](int64_t i, int) {
    const int64_t h = i / fresh, b = first + i % fresh;
    std::byte* to = host_->head(s, layer, static_cast<int>(h)).blocks[b];
    if (to) std::memcpy(to, table_[h * n_blocks + b], bytes);
  });
  counters.flushed_bytes += host_->blocks_held(s, layer, first, n_blocks) * bytes;
}

}  // namespace riffle
