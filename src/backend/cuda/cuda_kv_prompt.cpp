// A prompt's KV on the device: one layer at a time, and the layers to which later layers attend, in
// memory that the pool lends; and its way to and from the host store.
#include <algorithm>

#include "backend/cuda/cuda_kv.h"
#include "util/error.h"

namespace riffle::cuda {

uint64_t CudaKv::turn_layer(const KvShape& shape, int64_t n_tokens) {
  uint64_t most = 0;
  for (int layer = 0; layer < shape.n_layers(); ++layer)
    if (const int heads = shape.heads(layer); heads > 0)
      most = std::max(most, shape.layer_bytes(layer, n_tokens) /
                                (shape.is_source(layer) ? static_cast<uint64_t>(heads) : 1));
  return most;
}

uint64_t CudaKv::prefill_bytes(const KvShape& shape, int64_t n_tokens) {
  uint64_t bytes = turn_bytes(shape, n_tokens);
  for (int layer = 0; layer < shape.n_layers(); ++layer)
    if (shape.is_source(layer)) bytes += source_bytes(shape, layer, n_tokens);
  return bytes;
}

// Sets the places of a prompt's layers, for sequences of up to n_tokens.
void CudaKv::place_prompt_layers(int64_t n_tokens) {
  turn_room_ = turn_bytes(shape(), n_tokens);
  layer_room_ = turn_room_;
  source_at_.assign(shape().n_layers(), -1);
  for (int layer = 0; layer < shape().n_layers(); ++layer) {
    if (!shape().is_source(layer)) continue;
    source_at_[layer] = static_cast<int64_t>(layer_room_);
    layer_room_ += source_bytes(shape(), layer, n_tokens);
  }
}

void CudaKv::open_prompt_memory() {
  std::byte* data = own_prompt_.as<std::byte>();
  if (lent_slots_ > 0) {
    data = pool_.slots + (pool_.n_slots - lent_slots_) * pool_.slot_bytes;
    data += -reinterpret_cast<uintptr_t>(data) % 256;
    if (!streamed()) lend(true);
  }
  prompt_memory_.open(data, prompt_bytes_);
  layers_ = prompt_memory_.take(layer_room_, "a layer's KV");
}

// Work queued later may use the memory, so it waits for blocks still on their way to the host.
void CudaKv::close_prompt_memory() {
  held_[0] = held_[1] = held_sources_ = 0;
  reading_ = nullptr;
  layers_ = Buffer();
  prompt_memory_.close();
  for (const Event& flushed : flushed_)
    check(cudaStreamWaitEvent(*compute_, flushed), "waiting for a flush");
  if (lent_slots_ > 0 && !streamed()) lend(false);
}

void CudaKv::begin_prompt(int64_t n_total) {
  open_prompt_memory();
  pair_ = 2 * turn_layer(shape(), n_total) <= turn_room_;
}

void CudaKv::end_prompt() { close_prompt_memory(); }

// Moves host_copies_ by one kernel.
void CudaKv::run_gather(int64_t block_bytes, const Stream& stream) {
  const size_t bytes = host_copies_.size() * sizeof(Copy);
  Buffer& copies = copies_[&stream == &flush_];
  if (copies.size() < bytes) {
    stream.wait("moving blocks");
    copies = Buffer();
    copies = heap_->take(bytes, "block descriptors");
  }
  // From pageable memory the call returns once the source has been read.
  check(cudaMemcpyAsync(copies.data(), host_copies_.data(), bytes, cudaMemcpyHostToDevice, stream),
        "moving blocks");
  check(gather(copies.as<Copy>(), static_cast<int64_t>(host_copies_.size()), block_bytes,
               device_.limits.n_sm, stream),
        "moving blocks");
}

void CudaKv::copy_blocks(SequenceKv& s, int layer, int head, int n_heads, int64_t first,
                         int64_t last, std::byte* device, int64_t head_stride, bool to_host,
                         const Stream& stream) {
  if (last <= first) return;
  const int64_t block_bytes = layout(layer).block_bytes;
  const char* what = to_host ? "flushing KV" : "loading KV";
  constexpr int64_t kLongRun = 256
                               << 10;  // from this size on a separate copy is as fast as the link
  const auto next_run = [&](const std::vector<std::byte*>& blocks, int64_t b) {
    int64_t end = b + 1;
    while (end < last && blocks[end] == blocks[end - 1] + block_bytes) ++end;
    return end;
  };
  int64_t runs = 0;
  std::vector<std::byte*> unlocked;
  for (int h = 0; h < n_heads; ++h) {
    const auto& host = host_->head(s, layer, head + h).blocks;
    for (int64_t b = first; b < last; b = next_run(host, b)) ++runs;
    if (!on_device(s).unlocked.empty())
      slabs_->add_unlocked(host.data() + first, last - first, unlocked);
  }
  const bool locked = slabs_->wait(unlocked);
  const int64_t blocks = (last - first) * n_heads;
  if (locked && runs > 2 * n_heads && runs * kLongRun > blocks * block_bytes) {
    host_copies_.clear();
    for (int h = 0; h < n_heads; ++h)
      for (int64_t b = first; b < last; ++b) {
        std::byte* host = host_->head(s, layer, head + h).blocks[b];
        std::byte* at = device + h * head_stride + (b - first) * block_bytes;
        host_copies_.push_back(to_host ? Copy{at, host} : Copy{host, at});
      }
    return run_gather(block_bytes, stream);
  }
  for (int h = 0; h < n_heads; ++h) {
    const auto& host = host_->head(s, layer, head + h).blocks;
    for (int64_t b = first, end; b < last; b = end) {
      end = next_run(host, b);
      std::byte* at = device + h * head_stride + (b - first) * block_bytes;
      const size_t bytes = (end - b) * block_bytes;
      check(to_host ? cudaMemcpyAsync(host[b], at, bytes, cudaMemcpyDeviceToHost, stream)
                    : cudaMemcpyAsync(at, host[b], bytes, cudaMemcpyHostToDevice, stream),
            what);
    }
  }
}

int64_t CudaKv::copy_held(SequenceKv& s, int layer, int64_t first, int64_t last, std::byte* device,
                          int64_t head_stride, bool to_host, const Stream& stream) {
  const std::vector<std::byte*>& blocks = host_->head(s, layer, 0).blocks;  // as all heads
  const int heads = shape().heads(layer);
  int64_t n = 0;
  for (int64_t b = first, end; b < last; b = end) {
    end = b + 1;
    while (end < last && !blocks[end] == !blocks[b]) ++end;
    if (!blocks[b]) continue;
    copy_blocks(s, layer, 0, heads, b, end, device + b * layout(layer).block_bytes, head_stride,
                to_host, stream);
    n += (end - b) * heads;
  }
  return n;
}

LayerKv CudaKv::prefill_layer(SequenceKv& s, int layer, int64_t n_total) {
  const DeviceScope on(device_.ordinal);
  park(s);
  reading_ = s.device.get();
  if (layer == 0) forget_kept(on_device(s));
  const int64_t block_bytes = layout(layer).block_bytes, n_blocks = shape().in_blocks(n_total),
                old = shape().in_blocks(s.n_tokens);
  // An earlier layer of this prompt left its KV, of all n_total tokens.
  if (const int source = shape().source(layer); source != layer)
    return {nullptr, layer_at(source), n_blocks};
  const int heads = shape().heads(layer);
  if (heads == 0) return {};
  const uint64_t bytes = size_t(n_blocks) * heads * block_bytes;
  if (source_at_[layer] >= 0) {
    held_sources_ += bytes;
  } else {
    turn_ = pair_ ? turn_ ^ 1 : 0;
    held_[turn_] = bytes;
    check(cudaStreamWaitEvent(*compute_, flushed_[turn_]), "waiting for a flush");
  }
  std::byte* base = layer_at(layer);
  const size_t head_bytes = n_blocks * block_bytes;
  // The last blocks are written in part. Their remaining bytes go to the host too, so they must not
  // be NaN.
  check(cudaMemset2DAsync(base + head_bytes - block_bytes, head_bytes, 0, block_bytes, heads,
                          *compute_),
        "clearing a layer's KV");
  // Blocks before first_needed are not held, and they are not read.
  counters.loaded_bytes += copy_held(s, layer, shape().first_needed(layer, s.n_tokens), old, base,
                                     head_bytes, false, *compute_) *
                           block_bytes;
  return {nullptr, base, n_blocks};
}

void CudaKv::flush_layer(SequenceKv& s, int layer, int64_t n_total) {
  const int64_t block_bytes = layout(layer).block_bytes, n_blocks = shape().in_blocks(n_total),
                first = s.n_tokens / block_size_;
  std::byte* base = layer_at(layer);
  if (shape().indexed(layer)) digest_layer(s, layer, first, n_total / block_size_, base, n_blocks);
  computed_.record(*compute_);
  check(cudaStreamWaitEvent(flush_, computed_), "flushing KV");
  counters.flushed_bytes +=
      copy_held(s, layer, first, n_blocks, base, n_blocks * block_bytes, true, flush_) *
      block_bytes;
  // Also after a layer with memory of its own, so that the event is that of the last flush.
  flushed_[turn_].record(flush_);
}

void CudaKv::finish_layer(SequenceKv& s, int layer, int64_t n_total) {
  const DeviceScope on(device_.ordinal);
  reading_ = nullptr;
  if (shape().heads(layer) > 0) flush_layer(s, layer, n_total);
  if (layer + 1 < shape().n_layers()) return;
  // The next decode step reads the host blocks.
  check(cudaStreamWaitEvent(*compute_, flushed_[turn_]), "flushing KV");
}

void CudaKv::commit_prompt(SequenceKv& s, int64_t n_total, const Marks& marks) {
  // A block that is given back now may still be on its way to the host.
  if (shape().windowed_layers() > 0) flush_.wait("flushing KV");
  if (has_states()) {
    take_states(s, n_total);
    keep_states(s, s.next_states.back());
  }
  host_->commit_prompt(s, n_total, marks, [this](const std::byte* block) { leave(block); });
}

}  // namespace riffle::cuda
