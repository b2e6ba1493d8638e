// Residency for devices that compute on the CPU: in place (the host store itself) or pooled (a slot
// pool in memory of its own, filled by copies: what a GPU has, emulated).
#pragma once
#include "kv/residency.h"
#include "kv/slot_pool.h"
#include "util/buffer.h"

namespace riffle {

// A block that attention may read.
struct Held {
  const std::byte* data = nullptr;
  const std::byte* host = nullptr;  // where to copy from, if it is a miss
  int32_t slot = -1;                // -1: nothing to release
  bool miss = false;
  bool wait = false;  // another's miss
};

class CpuResidency : public Residency {
 public:
  explicit CpuResidency(KvStore* store) : store_(store) {}
  uint64_t host_bytes() const override { return store_->host_bytes(); }
  int64_t host_room() const override { return store_->host_room(); }
  bool shared(const std::byte* block) const override { return store_->shared(block); }
  SequenceKv create(int64_t n_ctx, const DigestSpec& spec) override {
    return store_->create(n_ctx, spec);
  }
  void destroy(SequenceKv& sequence) override;
  int64_t reach(const SequenceKv& sequence, int64_t n_tokens) const override {
    return store_->reach(sequence, n_tokens);
  }
  SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) override;
  void reserve(SequenceKv& sequence, int64_t n_tokens) override {
    store_->reserve(sequence, n_tokens);
  }
  void reserve_prompt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) override {
    store_->reserve_prompt(sequence, n_tokens, marks);
  }
  void truncate(SequenceKv& sequence, int64_t n_tokens) override;
  void change_digests(SequenceKv& sequence, const DigestSpec& spec) override {
    store_->change_digests(sequence, spec);
  }
  void settle(SequenceKv& sequence) override { park(sequence); }
  bool maps_files() const override { return true; }
  void adopt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks,
             std::span<const MappedBlocks> blocks,
             const std::shared_ptr<const void>& owner) override {
    store_->adopt(sequence, n_tokens, marks, blocks, owner);
  }
  void enter(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) override {
    store_->enter(sequence, n_tokens, marks);
  }
  void commit(SequenceKv& sequence) override;
  void finish_layer(SequenceKv& sequence, int layer, int64_t n_total) override;
  void commit_prompt(SequenceKv& sequence, int64_t n_total, const Marks& marks) override;

  virtual bool in_place() const = 0;
  // Brings all that the device changed back to the host store, forgets its copies, and gives the
  // sequence blocks of its own: they are about to be changed. On RIFFLE_OUT_OF_MEMORY the sequence
  // reads the same.
  void retire(SequenceKv& sequence);
  virtual int64_t used_slots() const = 0;
  virtual std::byte* tail(SequenceKv& sequence, int layer, int head) = 0;
  // How many blocks of a layer can be held at once besides the tails.
  virtual int64_t room(int layer) const = 0;
  // Holds blocks (not the tail) for reading; misses have a slot but not yet the bytes, and a block
  // that sequences share is a miss for the first that asks alone (`wait` for the others, until its
  // holder has loaded it). In place: safe from any thread. Pooled: the owner's thread only; never
  // asks for more than room().
  virtual void acquire(SequenceKv& sequence, int layer, int head, const int32_t* blocks, int n,
                       Held* held) = 0;
  virtual void load(const Held* held,
                    int n) = 0;  // copies the misses; any thread, different blocks
  virtual void release(const Held* held, int n) = 0;
  // After an error: gives up what was acquired, without taking a miss for loaded.
  virtual void abandon(const Held* held, int n) = 0;

 protected:
  virtual void park(SequenceKv& sequence) = 0;  // the newest blocks, wherever they are written, go
                                                // to the host store
  virtual void flush_full(SequenceKv& sequence) = 0;  // commit: the newest blocks are full
  virtual void flush_layer(SequenceKv& sequence, int layer, int64_t n_total) = 0;
  // Forgets blocks from this index on that no other sequence holds (truncation; 0: the sequence
  // ends).
  virtual void forget(SequenceKv& sequence, int64_t from_block) = 0;
  virtual void leave(const std::byte* block) = 0;  // called as KvStore::Leaving

  KvStore* store_;
};

std::unique_ptr<CpuResidency> make_in_place(KvStore* store);
// n_slots slots of the store's block size in memory of their own.
std::unique_ptr<CpuResidency> make_pooled(KvStore* store, ThreadPool* threads, int64_t n_slots,
                                          EvictPolicy policy, bool per_layer);

}  // namespace riffle
