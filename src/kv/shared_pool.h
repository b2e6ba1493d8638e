// The slot pool of a device that is emulated on the CPU: the protocol of a GPU's pool
// (kernels/cuda/pool/pool.h), with threads for warps. The owner begins steps, makes tables and
// forgets blocks; no reader may run meanwhile. In a step readers find, claim and fill slots from
// any thread.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/common/pool_words.h"
#include "util/buffer.h"

namespace riffle {

class SharedPool {
 public:
  SharedPool(int64_t n_slots, size_t slot_bytes);

  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  int64_t used() const;
  std::byte* slot(int32_t i) const { return memory_.as<std::byte>() + size_t(i) * slot_bytes_; }

  // Enters a table: entries[entry] is the block's slot, or -1. Null: removes the table.
  void set_table(int32_t table, std::atomic<int32_t>* entries) { tables_[table] = entries; }
  // Begins a step: its stamp is one more, and its victims are all slots by last use, oldest first.
  // Slots of one age come in the order of their numbers.
  void begin_step();
  // Removes a table's blocks from `first` on from the pool. n_heads: the table has max_blocks
  // entries for each.
  void forget(int32_t table, int64_t n_heads, int64_t max_blocks, int64_t first);

  struct Found {
    int32_t slot = -1;
    bool hit = false;
  };
  // Finds the slot of the block at an entry of a table, which then stays for this step. A miss gets
  // the slot of a victim: the reader copies the block there, then calls enter. -1: no slot is left.
  Found find(int32_t table, int64_t entry);
  // Returns the slot of a victim for a block that is not in the pool; -1: no slot is left.
  int32_t take(int32_t table, int64_t entry);
  // Enters a block whose bytes are in its slot. From now on others find it there.
  void enter(int32_t table, int64_t entry, int32_t slot) {
    tables_[table][entry].store(slot, std::memory_order_release);
  }

 private:
  bool claim(int32_t slot, uint64_t key);

  size_t slot_bytes_;
  Buffer memory_;
  std::vector<std::atomic<uint64_t>> words_;
  std::vector<std::atomic<int32_t>*> tables_;
  std::vector<int32_t> victims_;
  std::vector<uint32_t> starts_;  // start of each age in victims_, while these are sorted
  std::atomic<int32_t> next_victim_{0};
  uint32_t now_ = 0;  // stamp of this step, 1 to kMaxStamp
};

}  // namespace riffle
