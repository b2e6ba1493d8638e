// KV of devices on the CPU that have a pool: while a prompt is read, one of its layers is in memory
// of its own, as on a GPU. Slots are granted by the pool's owner (slot_pool_kv.cpp) or by the
// readers themselves (emulated_kv.cpp). All slots have the size of the largest block, so any slot
// can hold any block. A copy moves only the block's own bytes.
#pragma once
#include <map>
#include <vector>

#include "kv/cpu_kv.h"
#include "util/buffer.h"
#include "util/thread_pool.h"

namespace riffle {

class PoolKv : public CpuKv {
 public:
  PoolKv(HostKv* host, ThreadPool* threads)
      : CpuKv(host), threads_(threads), slot_bytes_(host->shape().largest_block()) {}

  bool in_place() const override { return false; }
  LayerKv prefill_layer(SequenceKv& sequence, int layer, int64_t n_total, int64_t rows) override;
  uint64_t prefill_held() const override;

 protected:
  void flush_layer(SequenceKv& sequence, int layer, int64_t n_total) override;
  // Returns the bytes of each block of a head.
  size_t bytes_of(int64_t head) const {
    return host_->shape().block_bytes(host_->shape().layer_of(head));
  }

  ThreadPool* threads_;
  size_t slot_bytes_;  // bytes of a slot

 private:
  Buffer layer_memory_;                  // one layer of KV
  std::map<int, Buffer> source_memory_;  // layers of KV that later layers attend to
  std::vector<std::byte*> table_;        // blocks of the current layer
};

}  // namespace riffle
