// The KV of sequences as the engine sees it. A device keeps it where its attention reads it: in
// place, which is the host store itself (InPlace of cpu_kv.cpp), in slots filled by copies
// (pool_kv.h), or in a GPU's memory (backend/cuda). A device overrides the operations that it does
// in its own way. The ones here act on the host store alone, so commit, settle, fork and enter suit
// only a device that writes keys and values straight to it.
//
// The host store. Each block that a sequence keeps has a place there (SequenceKv::heads[].blocks),
// wherever the device holds its bytes. commit copies full blocks there, Prompt::finish_layer those
// of a prompt, and settle, at the latest, the newest block. Copies may end later: a device's fork,
// settle, truncate and destroy wait for them. Three functions read the bytes. A save reads all
// blocks, after settle. HostKv::fork reads the newest block if the fork ends inside it, so a
// device's fork copies this block there first. Engine::check_loaded reads the tokens that came from
// a file, at any time. HostKv::reach and Engine::freed_by_cut read only the pointers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kv/host_kv.h"

namespace riffle {

// One layer's KV while a prompt is read: blocks [n_kv_heads][n_blocks], readable up to n_tokens and
// writable beyond. In a layer with a window only the blocks that a chunk of the prompt sees or
// writes have memory of their own; others may share memory. The device fills it in for its own
// operations. The engine reads blocks and n_blocks, and only if the sequence has a SelectorState.
struct LayerKv {
  std::byte* const* blocks = nullptr;  // host pointers; null on a GPU
  std::byte* base = nullptr;           // first of consecutive blocks; null in place
  int64_t n_blocks = 0;
  bool unrotated = false;  // SequenceKv::unrotated; false on a GPU, which refuses list positions
};

struct PoolCounters {
  uint64_t lookups = 0, hits = 0, evictions = 0, loaded_bytes = 0, flushed_bytes = 0;
};

class KvStore {
 public:
  explicit KvStore(HostKv* host) : host_(host) {}
  virtual ~KvStore() = default;
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  const HostKv& host() const { return *host_; }

  // ---- sequences
  virtual SequenceKv create(int64_t n_ctx, const DigestSpec& spec) {
    return host_->create(n_ctx, spec);
  }
  virtual void destroy(SequenceKv& sequence) { host_->destroy(sequence); }
  // Returns a new sequence of the first n_tokens of `from` (HostKv::fork). On an error there is no
  // new sequence, and `from` is as before.
  virtual SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) {
    return host_->fork(from, n_tokens, n_ctx);
  }
  // Takes memory for a prompt (HostKv::reserve_prompt), or, with the marks that the sequence has,
  // for steps. On RIFFLE_OUT_OF_MEMORY the sequence is as before.
  virtual void reserve(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) {
    host_->reserve_prompt(sequence, n_tokens, marks);
  }
  // Take memory for states of layers (HostKv): of a step, of a prompt, or of a file. A step's rows
  // are those that it computes of the sequence. On RIFFLE_OUT_OF_MEMORY the sequence is as before,
  // but a prompt may have dropped states of lengths that it would not keep. If memory suffices only
  // for a prompt's end, the other lengths are left out without an error.
  void reserve_rows(SequenceKv& sequence, int64_t rows) { host_->reserve_rows(sequence, rows); }
  void reserve_checkpoints(SequenceKv& sequence, int64_t n_tokens, std::span<const int64_t> turns) {
    host_->reserve_checkpoints(sequence, n_tokens, turns);
  }
  void reserve_states(SequenceKv& sequence, std::span<const Checkpoint> states) {
    host_->reserve_states(sequence, states);
  }
  // Announces that `bytes` more bytes of blocks will be reserved soon, so that slow work may begin
  // now. Never fails.
  virtual void expect(int64_t bytes) { (void)bytes; }
  // Keeps the first n_tokens and drops the rest everywhere. Requires: HostKv::reach allows
  // n_tokens.
  virtual void truncate(SequenceKv& sequence, int64_t n_tokens) {
    host_->truncate(sequence, n_tokens);
  }
  // Gives back blocks that windows have passed, flushes blocks that became full to the host store
  // and builds their digests. Requires: n_tokens was just advanced by one. The default flushes
  // nothing, and builds digests on the host whatever HostKv's `whole` is.
  virtual void commit(SequenceKv& sequence);
  // Clears the working set of a sequence that was cut or prefilled. After: it starts again with the
  // next step.
  virtual void clear_working_set(SequenceKv& sequence) {
    if (sequence.working_set) sequence.working_set->clear();
  }
  // Drops all digests and builds digests of another kind. The default builds them on the host.
  virtual void change_digests(SequenceKv& sequence, const DigestSpec& spec) {
    host_->change_digests(sequence, spec);
  }

  // ---- files
  // Settles a sequence before a save: brings its newest bytes to the host store, and drops a
  // selection that was to be reused. It may write to the newest block only if this has tokens that
  // the host store lacks. After a cut the newest block may be one that forks share or that lies in
  // a file's read-only mapping (HostKv::shared); the host store has its tokens then.
  virtual void settle(SequenceKv& sequence) { (void)sequence; }
  // Returns true if blocks may lie in a file's mapping; then adopt gives them to a sequence.
  virtual bool maps_files() const { return true; }
  void adopt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks,
             std::span<const MappedBlocks> blocks, const std::shared_ptr<const void>& owner) {
    host_->adopt(sequence, n_tokens, marks, blocks, owner);
  }
  // Without maps_files, reserve gives a sequence its blocks, and HostKv::forget removes those that
  // the file lacks.
  void forget_blocks(SequenceKv& sequence, int layer, int64_t first, int64_t last) {
    host_->forget(sequence, layer, first, last);
  }
  // Gives a sequence n_tokens: does the same as HostKv::enter, and the device's part. Requires: the
  // sequence has no tokens, and its host blocks hold n_tokens, by adopt or, after reserve, by a
  // writer. With maps_files, reserve was not called: a device that takes memory of its own in
  // reserve takes it here.
  virtual void enter(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) {
    host_->enter(sequence, n_tokens, marks);
  }

  // ---- the pool
  virtual int64_t slots() const { return 0; }  // 0: there is no pool
  // Returns the number of sequences that can step together if one row at a time needs row_slots
  // slots besides the newest blocks. 0: not even one.
  virtual int64_t sequences_per_step(int64_t row_slots) const { return (void)row_slots, INT64_MAX; }
  // Returns the number of slots, at least 1, that the selections of n sequences may fill when they
  // step together. 0: there is no pool.
  virtual int64_t selection_slots(int64_t n, int64_t row_slots) const {
    return (void)n, (void)row_slots, slots();
  }
  PoolCounters counters;

 protected:
  HostKv* host_;
};

}  // namespace riffle
