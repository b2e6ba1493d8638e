// A slot pool that its owner manages: which block is in which slot. It is bookkeeping only: it
// touches no block memory and knows no device. README.md draws the states.
//
// This is not a GPU's default pool. There kernels evict: select_victims (kernels/cuda/pool/pool.cu)
// lists the victims of a step, and take_victim (kernels/cuda/attend/decode.cuh) takes them. On emu
// SharedPool::take (shared_pool.cpp) does. SlotPool::take evicts for `evict` fifo and for pools per
// layer; on cuda also for `residency` host and where host memory is not pinned.
//
// States of a slot:
//   FREE      holds nothing
//   FILLING   the newest block of a sequence, being written; exists nowhere else; pinned
//   FLUSHING  full, on its way to the host store; pinned
//   LOADING   promised to a block that is being copied in; pinned
//   CLEAN     same bytes as in the host store; evictable while its pin count is 0
//     FREE -fill-> FILLING -seal-> FLUSHING -flushed-> CLEAN -(victim)-> LOADING -loaded->
//     CLEAN -drop-> FREE
// Invariants (tested as properties):
//   used + free = slots; key <-> slot is a bijection; only CLEAN slots without pins are evicted;
//   eviction never copies; a partition's slots are only given to its own blocks.
// Not thread-safe: one owner. No allocation after construction.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle {

enum class EvictPolicy : uint8_t { Lru, Fifo };

class SlotPool {
 public:
  enum class State : uint8_t { Free, Filling, Flushing, Loading, Clean };
  static constexpr int32_t kNone = -1;

  // n_slots are split evenly among n_partitions (1: unified); a remainder goes to the first ones.
  SlotPool(int64_t n_slots, EvictPolicy policy, int n_partitions);

  struct Grant {
    int32_t slot = kNone;  // kNone: every slot of the partition is pinned
    // The block was in the pool. Otherwise the slot is LOADING: the caller copies the block in and
    // calls loaded.
    bool hit = false;
    bool evicted = false;
  };
  // Finds the block or gives it a slot (a free one, else the policy's victim). Adds a pin.
  Grant acquire(uint64_t key, int partition);
  void loaded(int32_t slot);  // LOADING -> CLEAN

  // Finds a slot for a block that is about to be written. Adds a pin. Requires: key is not in the
  // pool.
  Grant fill(uint64_t key, int partition);
  void seal(int32_t slot);     // FILLING -> FLUSHING
  void flushed(int32_t slot);  // FLUSHING -> CLEAN

  void pin(int32_t slot);
  // When the last pin of a CLEAN slot is released, the slot becomes evictable and, with LRU, the
  // most recently used. So release a row's blocks in reverse rank order: the most critical block is
  // then the newest.
  void unpin(int32_t slot);

  // Forgets a block in any state. The block may have one pin at most, its writer's. Does nothing if
  // the block is not in the pool.
  void drop(uint64_t key);
  void drop_slot(int32_t slot);

  int32_t find(uint64_t key) const;  // slot or kNone; changes nothing
  State state(int32_t slot) const { return slots_[slot].state; }
  int pins(int32_t slot) const { return slots_[slot].pins; }
  uint64_t key(int32_t slot) const { return slots_[slot].key; }
  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  int64_t used() const { return used_; }
  int64_t partition_size(int partition) const { return partitions_[partition].size; }
  int64_t partition_pinned(int partition) const { return partitions_[partition].pinned; }

 private:
  struct Slot {
    uint64_t key = 0;
    // Neighbours in the partition's list, oldest first. With LRU the list has the unpinned slots,
    // with FIFO all used ones. A free slot uses only next, in the free list.
    int32_t prev = kNone, next = kNone;
    int32_t pins = 0;
    int16_t partition = 0;
    State state = State::Free;
  };
  struct Partition {
    int32_t oldest = kNone, newest = kNone, free = kNone;
    int64_t size = 0, pinned = 0;
  };

  Grant take(uint64_t key, int partition, State state);
  void append(Partition& p, int32_t slot);
  void unlink(Partition& p, int32_t slot);
  void release_to_free(int32_t slot);
  size_t bucket(uint64_t key) const;
  void index_insert(uint64_t key, int32_t slot);
  void index_erase(uint64_t key);

  EvictPolicy policy_;
  std::vector<Slot> slots_;
  std::vector<Partition> partitions_;
  std::vector<int32_t> index_;  // open addressing, linear probing; slot or kNone
  size_t mask_ = 0;
  int64_t used_ = 0;
};

}  // namespace riffle
