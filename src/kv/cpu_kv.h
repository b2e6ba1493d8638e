// KV of devices that compute on the CPU: in place (the host store itself), or with a pool in front
// of it that emulates a GPU's, which has memory of its own and is filled by copies. Either the
// readers manage the pool, as on a GPU (emulated_kv.cpp), or the owner grants its slots
// (slot_pool_kv.cpp).
#pragma once
#include "kv/kv_store.h"
#include "kv/slot_pool.h"
#include "util/buffer.h"

namespace riffle {

// A block that attention may read.
struct Held {
  const std::byte* data = nullptr;
  const std::byte* host = nullptr;  // where to copy from, if it is a miss
  int32_t slot = -1;                // -1: nothing to release
  bool miss = false;
  bool wait = false;   // another row is loading the block
  uint32_t bytes = 0;  // size of the block; 0 if the KV is in place: nothing is copied
  // Place where a miss is entered once its bytes have arrived: SharedPool::enter.
  int32_t table = 0;
  int64_t entry = 0;
};

class CpuKv : public KvStore {
 public:
  using KvStore::KvStore;
  void destroy(SequenceKv& sequence) override;
  SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) override;
  void truncate(SequenceKv& sequence, int64_t n_tokens) override;
  void settle(SequenceKv& sequence) override { park(sequence); }
  void commit(SequenceKv& sequence) override;

  // ---- prompts
  // rows: the most tokens that are appended before they attend.
  virtual LayerKv prefill_layer(SequenceKv& sequence, int layer, int64_t n_total, int64_t rows) = 0;
  // Called when the layer is complete: builds its digests, flushes it, and drops the device's copy.
  void finish_layer(SequenceKv& sequence, int layer, int64_t n_total);
  // Called when all layers are complete (HostKv::commit_prompt).
  void commit_prompt(SequenceKv& sequence, int64_t n_total, const Marks& marks);
  virtual uint64_t prefill_held() const { return 0; }

  // ---- steps
  // Makes the newest block of these sequences writable at position n_tokens, and leaves room for
  // `spare` more blocks in every layer. Other sequences are parked if needed. Throws
  // RIFFLE_NO_SLOT; every sequence still holds its KV then.
  virtual void activate(SequenceKv* const* sequences, size_t n, int64_t spare) = 0;
  virtual bool in_place() const = 0;
  // Returns true if the newest blocks are in the device's memory, and not in the host store.
  virtual bool holds_tail(const SequenceKv& sequence) const { return !sequence.tail_slots.empty(); }
  // Brings everything that the device changed back to the host store, drops its copies, and gives
  // the sequence blocks of its own, which are about to change. On RIFFLE_OUT_OF_MEMORY the
  // sequence's contents are unchanged.
  void retire(SequenceKv& sequence);
  virtual int64_t used_slots() const = 0;
  virtual std::byte* tail(SequenceKv& sequence, int layer, int head) = 0;
  // Returns the number of blocks of a layer that can be held at once besides the tails.
  virtual int64_t room(int layer) const = 0;
  // Holds blocks (not the tail) for reading; misses have a slot but not yet the bytes. A shared
  // block is a miss only for the first holder; `wait` is set for the others until the first has
  // loaded it. In place: safe from any thread. Pooled: the owner's thread only; never asks for more
  // than room().
  virtual void acquire(SequenceKv& sequence, int layer, int head, const int32_t* blocks, int n,
                       Held* held) = 0;
  virtual void load(const Held* held,
                    int n) = 0;  // copies the misses; threads may load different blocks
  virtual void release(const Held* held, int n) = 0;
  // After an error: gives up the acquired blocks. Misses do not count as loaded.
  virtual void abandon(const Held* held, int n) = 0;

 protected:
  virtual void park(SequenceKv& sequence) = 0;  // the newest blocks, wherever they are written, go
                                                // to the host store
  virtual void flush_full(SequenceKv& sequence) = 0;  // commit: the newest blocks are full
  virtual void flush_layer(SequenceKv& sequence, int layer, int64_t n_total) = 0;
  // Forgets blocks from this index on that no other sequence holds (truncation; 0: the sequence
  // ends).
  virtual void forget(SequenceKv& sequence, int64_t from_block) = 0;
  virtual void leave(const std::byte* block) = 0;  // called as HostKv::Leaving
};

std::unique_ptr<CpuKv> make_in_place(HostKv* host);
// Make KV with a pool of n_slots slots, of the store's block size, in memory of their own.
std::unique_ptr<CpuKv> make_emulated(HostKv* host, ThreadPool* threads, int64_t n_slots);
std::unique_ptr<CpuKv> make_pooled(HostKv* host, ThreadPool* threads, int64_t n_slots,
                                   EvictPolicy policy, bool per_layer);

}  // namespace riffle
