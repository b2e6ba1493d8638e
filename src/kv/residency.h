// The KV of sequences as the engine sees it: held in the host store, and brought to where attention
// reads it. In place (the CPU reads the host store itself), pooled (slots filled by copies;
// cpu_residency.h), or on a GPU (backend/cuda).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/kv_store.h"

namespace riffle {

// One layer's KV while prefilling: blocks [n_kv_heads][n_blocks], readable up to n_tokens and
// writable beyond. In a layer with a window only the blocks that a chunk of the prompt sees or
// writes have memory of their own; others may share memory.
struct LayerKv {
  std::byte* const* blocks = nullptr;  // host pointers; null on a GPU
  std::byte* base = nullptr;           // first of consecutive blocks; null in place
  int64_t n_blocks = 0;
  bool unrotated = false;  // SequenceKv::unrotated
};

struct ResidencyCounters {
  uint64_t lookups = 0, hits = 0, evictions = 0, loaded_bytes = 0, flushed_bytes = 0;
};

class Residency {
 public:
  virtual ~Residency() = default;
  virtual int64_t slots() const = 0;  // 0 if in place
  virtual uint64_t host_bytes() const = 0;
  virtual int64_t host_room() const = 0;  // blocks left of host_mem
  // By several sequences, or with a file: HostStore::shared.
  virtual bool shared(const std::byte* host_block) const = 0;

  // ---- sequences
  virtual SequenceKv create(int64_t n_ctx, const DigestSpec& spec) = 0;
  virtual void destroy(SequenceKv& sequence) = 0;
  // KvStore::reach.
  virtual int64_t reach(const SequenceKv& sequence, int64_t n_tokens) const = 0;
  // A new sequence of the first n_tokens of `from` (KvStore::fork). On an error there is no new
  // sequence, and `from` is as before.
  virtual SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) = 0;
  // Takes memory for n_tokens. On RIFFLE_OUT_OF_MEMORY the sequence is as before.
  virtual void reserve(SequenceKv& sequence, int64_t n_tokens) = 0;
  // Takes memory for a prompt (KvStore::reserve_prompt).
  virtual void reserve_prompt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) = 0;
  // Announces that n_blocks more blocks will be reserved soon, so that slow work may begin now.
  // Never fails.
  virtual void expect(int64_t n_blocks) { (void)n_blocks; }
  // Keeps the first n_tokens, which reach must allow, and forgets the rest everywhere.
  virtual void truncate(SequenceKv& sequence, int64_t n_tokens) = 0;
  virtual void change_digests(SequenceKv& sequence, const DigestSpec& spec) = 0;
  // Before a sequence is saved: brings its newest bytes to the host store, and forgets a selection
  // that was to be used again.
  virtual void settle(SequenceKv& sequence) = 0;
  // Whether blocks may lie in a file's mapping; then adopt is KvStore::adopt.
  virtual bool maps_files() const { return false; }
  virtual void adopt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks,
                     std::span<const MappedBlocks> blocks,
                     const std::shared_ptr<const void>& owner) {
    (void)sequence, (void)n_tokens, (void)marks, (void)blocks, (void)owner;
  }
  // Else blocks that reserve_prompt has taken and that the file lacks: KvStore::forget.
  virtual void forget(SequenceKv& sequence, int layer, int64_t first, int64_t last) {
    (void)sequence, (void)layer, (void)first, (void)last;
  }
  // The host blocks of a sequence without tokens hold n_tokens, by adopt or, after reserve_prompt,
  // by whoever wrote them: what KvStore::enter does, and what the device needs.
  virtual void enter(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) = 0;
  // Called when a sequence was cut or prefilled: its working set begins anew with the next step.
  virtual void clear_working_set(SequenceKv& sequence) {
    if (sequence.working_set) sequence.working_set->clear();
  }

  // ---- decode
  // How many sequences can step together if one row at a time needs row_slots slots beside the
  // newest blocks. 0: not even one.
  virtual int64_t sequences_per_step(int64_t row_slots) const { return (void)row_slots, INT64_MAX; }
  // Slots that the selections of n sequences that step together may fill, at least 1. 0: there is
  // no pool.
  virtual int64_t selection_slots(int64_t n, int64_t row_slots) const {
    return (void)n, (void)row_slots, slots();
  }
  // Makes the newest block of these sequences writable at position n_tokens, and leaves room for
  // `spare` more blocks in every layer. Other sequences are parked if needed. Throws
  // RIFFLE_NO_SLOT; every sequence still holds its KV then.
  virtual void activate(SequenceKv* const* sequences, size_t n, int64_t spare) = 0;
  // Called after n_tokens was advanced by one: gives back blocks that windows have passed, flushes
  // blocks that became full to the host store and builds their digests.
  virtual void commit(SequenceKv& sequence) = 0;

  // ---- prefill
  // rows: the most tokens that are appended before they attend.
  virtual LayerKv prefill_layer(SequenceKv& sequence, int layer, int64_t n_total, int64_t rows) = 0;
  // Called when the layer is complete: builds its digests, flushes it, and drops what the device
  // held of it.
  virtual void finish_layer(SequenceKv& sequence, int layer, int64_t n_total) = 0;
  // Called when all layers are complete (KvStore::commit_prompt).
  virtual void commit_prompt(SequenceKv& sequence, int64_t n_total, const Marks& marks) = 0;
  // Bytes that the device holds now for layers of prompts.
  virtual uint64_t prefill_held() const { return 0; }

  ResidencyCounters counters;
};

}  // namespace riffle
