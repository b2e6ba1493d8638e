// The KV of sequences: the host blocks of its tokens, and each full block's digest.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kv/block_layout.h"
#include "kv/checkpoints.h"
#include "kv/host_store.h"
#include "kv/kv_shape.h"
#include "kv/selector_state.h"
#include "kv/working_set.h"
#include "util/thread_pool.h"

namespace riffle {

// The summary of a block's keys that is kept for ranking (src/select/README.md, digests). with_mean
// adds the mean key, which VETO needs. kept false: there is no summary, since no selection so far
// has read digests.
struct DigestSpec {
  bool kept = true;
  cpu::DigestKind kind = cpu::DigestKind::CuboidMean;
  bool with_mean = false;
  int vectors() const { return !kept ? 0 : with_mean ? 3 : 2; }
  // Returns the bytes of one block: f16 vectors of head_dim values and the f32 factor of its bound.
  uint64_t bytes(int head_dim) const {
    return kept ? uint64_t(vectors()) * head_dim * 2 + sizeof(float) : 0;
  }
  bool operator==(const DigestSpec&) const = default;
};

// The KV of one (sequence, layer, KV head).
struct HeadKv {
  // Host blocks in token order. Null: a block that a layer with a window does not keep.
  std::vector<std::byte*> blocks;
  std::vector<uint16_t> digests;  // f16, [full blocks][vectors][head_dim]
  std::vector<float>
      bound_factor;  // [full blocks]: R of digest_build, see kernels/cpu/attention/attention.h
};

// The states of all layers that keep one, after n_tokens tokens, in a block of the host store. The
// block is written once, so that forks share it.
struct StateAt : Checkpoint {
  std::byte* block = nullptr;  // null: the newest state, which only the device has
  std::shared_ptr<const std::vector<float>> logits{};  // after these tokens; null: not kept
};

// A device's data of a sequence.
struct DeviceKv {
  virtual ~DeviceKv() = default;
};

struct SequenceKv {
  int64_t n_tokens = 0;       // committed; blocks may hold more during a step or a prefill
  Marks marks;                // up to n_tokens
  int64_t max_blocks = 0;     // the most blocks that a head may hold
  std::vector<HeadKv> heads;  // heads of all layers: KvShape::first_head
  // If layers keep a state: the states at n_tokens (not at 0, where all values are 0) and at
  // checkpoints, ascending; and memory for those that the prompt or step under way writes.
  std::vector<StateAt> states, next_states;
  // It belongs to a request of a batch: it keeps fewer states (Checkpoints::kOfRequest), no lead
  // and no logits.
  bool of_request = false;
  DigestSpec spec;
  // Keys are held as before RoPE, since their positions are those in the attended list. Otherwise
  // they are rotated to their positions in the text.
  bool unrotated = false;
  // Queries of a prompt read chosen tiles of keys (PrefillSelector::TILES), not all.
  bool chose_tiles = false;
  std::unique_ptr<DeviceKv> device;          // null on device cpu
  std::unique_ptr<SelectorState> selection;  // null until a selector needs one
  // Null until a step asks for it, and on devices that count it themselves.
  std::unique_ptr<WorkingSet> working_set;
  // Pool slot of each head's unfilled block; empty while these blocks are in the host store only.
  std::vector<int32_t> tail_slots;
};

// Blocks [first, first + n) of a layer in a file's mapping: those of head h are consecutive, from
// data + h * stride blocks on.
struct MappedBlocks {
  int layer = 0;
  int64_t first = 0, n = 0, stride = 0;
  const std::byte* data = nullptr;
};

class HostKv {
 public:
  // whole: the host store keeps and builds digests, and keeps the newest state of recurrent layers.
  // False: the device does. Then create, fork, enter and renew_digests build no digests, but
  // build_digests and change_digests still do, so the device's KvStore must override commit and
  // change_digests, whose defaults call them; and reserve_rows takes no memory for states. limit:
  // see HostStore. Layers with a window have no digests, since they are not selected from.
  HostKv(const KvShape& shape, const cpu::Kernels* kernels, ThreadPool* threads,
         std::unique_ptr<SlabSource> slabs = make_system_slabs(), bool whole = true,
         uint64_t limit = 0);

  // Reserves space for n_ctx tokens without touching it, so that decoding does not allocate.
  SequenceKv create(int64_t n_ctx, const DigestSpec& spec);
  void destroy(SequenceKv& sequence);
  // Returns a new sequence of the first n_tokens of `from`. Full blocks are shared; partial ones
  // and digests are copied; the selector's state is not. The new sequence has the marks of `from`
  // up to n_tokens, and one at n_tokens. Throws RIFFLE_OUT_OF_MEMORY; `from` is as before then.
  // Requires: `from` can continue from there (reach), and the host store has the newest bytes.
  SequenceKv fork(const SequenceKv& from, int64_t n_tokens, int64_t n_ctx);
  bool shared(const std::byte* block) const { return store_.shared(block); }
  bool held_once(const std::byte* block) const { return store_.held_once(block); }
  // Makes blocks [first, last) the sequence's own, by copying those that others hold too. On
  // RIFFLE_OUT_OF_MEMORY some may have been copied; the sequence reads the same bytes.
  void make_own(SequenceKv& sequence, int64_t first, int64_t last);

  HeadKv& head(SequenceKv& s, int layer, int h) const {
    return s.heads[shape_.first_head(layer) + h];
  }
  const HeadKv& head(const SequenceKv& s, int layer, int h) const {
    return s.heads[shape_.first_head(layer) + h];
  }

  // Takes host blocks for n_tokens in every layer and head. Makes the blocks that are written next
  // the sequence's own. On RIFFLE_OUT_OF_MEMORY the sequence is as before.
  void reserve(SequenceKv& sequence, int64_t n_tokens);
  // Does the same for a prompt that makes the sequence n_tokens long, with these marks. It takes
  // only the blocks that are kept once the prompt is read, not the blocks that a window passes
  // before. Blocks that the sequence held before stay until the prompt is read.
  void reserve_prompt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks);
  // Do nothing if no layer keeps a state. reserve_rows takes memory, in next_states, for the state
  // after each of the next `rows` tokens. reserve_checkpoints takes it for the states of a prompt
  // that makes the sequence n_tokens long, with these turns. It first frees states that will not be
  // kept after the prompt, except the one from which the prompt goes on. If memory is short, only
  // the state at the prompt's end is reserved.
  void reserve_rows(SequenceKv& sequence, int64_t rows);
  void reserve_checkpoints(SequenceKv& sequence, int64_t n_tokens, std::span<const int64_t> turns);
  // Gives a sequence without tokens memory for these states, which a file has.
  void reserve_states(SequenceKv& sequence, std::span<const Checkpoint> states);
  // Returns the bytes that reserve_rows takes for a row.
  size_t row_state_bytes() const { return whole_ ? shape_.state_bytes() : 0; }
  // Takes a block for the states of all layers after some tokens.
  std::byte* take_state();
  // Returns the state after n_tokens, from which a layer continues; null: all values are 0.
  const std::byte* state(const SequenceKv& s, int layer) const {
    return s.n_tokens == 0 ? nullptr : s.states.back().block + shape_.state_at(layer);
  }
  // Called with a block whose last holder is about to give it back. Must not throw.
  using Leaving = std::function<void(const std::byte*)>;
  // Called when a prompt up to n_tokens is read: sets n_tokens and marks, and gives back the blocks
  // that are not kept. Never allocates.
  void commit_prompt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks,
                     const Leaving& leaving);
  // Called when n_tokens has grown by one: gives back blocks that windows have passed. Never
  // allocates.
  void drop_passed(SequenceKv& sequence, const Leaving& leaving);
  // Returns the number of a layer's blocks [first, last) that the sequence holds, over all heads.
  int64_t blocks_held(const SequenceKv& sequence, int layer, int64_t first, int64_t last) const;
  // Returns KvShape::reach for the blocks that the sequence holds.
  int64_t reach(const SequenceKv& sequence, int64_t n_tokens) const;
  // Gives back a layer's blocks [first, last), which nothing will read. Never allocates.
  void forget(SequenceKv& sequence, int layer, int64_t first, int64_t last);
  // Gives back the blocks beyond n_tokens (which reach allows), drops the digests of blocks that
  // are no longer full, and sets n_tokens.
  void truncate(SequenceKv& sequence, int64_t n_tokens);
  // Gives a sequence without tokens the blocks of n_tokens that lie in a file's mapping; it keeps
  // only the blocks that it would keep after reading these tokens. They are never written to.
  // Throws std::bad_alloc, and RIFFLE_BAD_SESSION if blocks overlap; the sequence has no blocks
  // then.
  void adopt(SequenceKv& sequence, int64_t n_tokens, const Marks& marks,
             std::span<const MappedBlocks> blocks, const std::shared_ptr<const void>& owner);
  // Sets n_tokens and marks, and builds the digests. Requires: the sequence has no tokens yet, but
  // its blocks hold n_tokens, by adopt or otherwise.
  void enter(SequenceKv& sequence, int64_t n_tokens, const Marks& marks);
  // Builds digests of all blocks that n_tokens fill and that have none yet, from the host store,
  // and shows these blocks to the selector's state. layer < 0: all layers.
  void build_digests(SequenceKv& sequence, int64_t n_tokens, int layer = -1);
  // Drops all digests and builds digests of another kind.
  void change_digests(SequenceKv& sequence, const DigestSpec& spec);
  // Begins a step whose selections are counted in SequenceKv::working_set. A window that differs
  // from the last step's starts from an empty set. 0: do not count, and drop the set. Throws
  // std::bad_alloc.
  void begin_working_set(SequenceKv& sequence, int window) const;
  // Rebuilds all digests after keys of full blocks were changed in place, and drops the selector's
  // state. Does not allocate.
  void renew_digests(SequenceKv& sequence);

  const KvShape& shape() const { return shape_; }
  // Returns the layout of all layers with blocks. Requires: they are alike (KvShape::uneven).
  BlockLayout layout() const { return shape_.layout(shape_.first_with_blocks()); }
  int64_t digest_stride(const DigestSpec& spec, int layer) const {
    return int64_t(spec.vectors()) * shape_.layer(layer).head_dim;
  }
  uint64_t host_bytes() const { return store_.bytes_in_use(); }
  // Returns the bytes of host_mem that are left.
  int64_t host_room() const {
    return static_cast<int64_t>(std::min<uint64_t>(store_.room(), INT64_MAX));
  }

 private:
  bool selects_head(size_t head) const {
    return shape_.selects(shape_.layer_of(static_cast<int64_t>(head)));
  }
  size_t block_bytes_of(size_t head) const {
    return shape_.block_bytes(shape_.layer_of(static_cast<int64_t>(head)));
  }
  // Call when n_tokens has changed. Takes in the states that were reached, and gives back those
  // that are not kept. Never allocates.
  void keep_states(SequenceKv& sequence);
  void give_back(const StateAt& state) {
    if (state.block) store_.give_back(state.block);
  }
  void drop_next_states(SequenceKv& sequence);
  void drop_unkept(SequenceKv& sequence);             // Checkpoint::keep
  int most_states(const SequenceKv& sequence) const;  // its limit for Checkpoints::choose
  // Gives back those of a layer's blocks [first, last) that the sequence does not keep.
  void drop(SequenceKv& sequence, int layer, int64_t first, int64_t last, const Leaving& leaving);

  KvShape shape_;
  const cpu::Kernels* kernels_;
  ThreadPool* threads_;
  bool whole_;
  HostStore store_;
};

}  // namespace riffle
