// Where attention reads a block from, and how it gets there. Two kinds: in place (the host store itself) and pooled
// (a slot of a pool on the device, filled by copies). Everything above sees only this interface.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
};

struct ResidencyCounters {
  uint64_t lookups = 0, hits = 0, evictions = 0, loaded_bytes = 0, flushed_bytes = 0;
};

class Residency {
 public:
  virtual ~Residency() = default;
  virtual bool in_place() const = 0;
  virtual int64_t slots() const = 0;  // 0 if in place

  // ---- decode
  // Makes the newest block of these sequences writable at position n_tokens and leaves room for `spare` more blocks in
  // every layer; other sequences are parked to that end. Throws RIFFLE_NO_SLOT (every sequence still holds its KV).
  virtual void activate(SequenceKv* const* sequences, size_t n, int64_t spare) = 0;
  virtual std::byte* tail(SequenceKv& sequence, int layer, int head) = 0;
  // After n_tokens was advanced: blocks that became full go to the host store.
  virtual void commit(SequenceKv& sequence) = 0;

  // How many blocks of a layer can be held at once besides the tails.
  virtual int64_t room(int layer) const = 0;
  // Holds blocks (not the tail) for reading; misses have a slot but not yet the bytes. In place: safe from any thread.
  // Pooled: the owner's thread only; never asks for more than room().
  virtual void acquire(SequenceKv& sequence, int layer, int head, const int32_t* blocks, int n, Held* held) = 0;
  virtual void load(const Held* held, int n) = 0;  // copies the misses; any thread, different blocks
  virtual void release(const Held* held, int n) = 0;
  // After an error: gives up what was acquired, without taking a miss for loaded.
  virtual void abandon(const Held* held, int n) = 0;

  // ---- prefill
  // Blocks [n_kv_heads][blocks(n_total)] of one layer, readable up to n_tokens and writable beyond.
  virtual std::byte* const* prefill_layer(SequenceKv& sequence, int layer, int64_t n_total) = 0;
  // The layer is complete: flush it, and drop what the device held of it.
  virtual void finish_layer(SequenceKv& sequence, int layer, int64_t n_total) = 0;

  // Forgets blocks from this index on (truncation; 0: the sequence ends).
  virtual void forget(SequenceKv& sequence, int64_t from_block) = 0;

  ResidencyCounters counters;
};

std::unique_ptr<Residency> make_in_place(KvStore* store);
// n_slots slots of the store's block size in memory of their own.
std::unique_ptr<Residency> make_pooled(KvStore* store, ThreadPool* threads, int64_t n_slots, EvictPolicy policy,
                                       bool per_layer);

}  // namespace riffle
