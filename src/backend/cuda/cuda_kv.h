// KV on a GPU: host blocks in pinned slabs, a pool of slots whose table the device keeps by
// itself (struct Pool of kernels/cuda/pool/pool.h), one layer of KV while prefilling. On an
// integrated GPU the pool has no slots, and steps read all blocks in place.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/pinned_slabs.h"
#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/step_selection.h"
#include "kernels/cuda/pool/pool.h"
#include "kernels/cuda/select/code_bytes.h"
#include "kernels/cuda/select/select.h"
#include "kv/kv_store.h"
#include "kv/page_tables.h"
#include "kv/slot_pool.h"
#include "model/model.h"

namespace riffle::cuda {

// The states of a sequence's recurrent layers on the device (kernels/cuda/recurrent/recurrent.h).
// The newest ones are here only. The host store gets a copy at a checkpoint, and when a fork or a
// save needs one.
struct DeviceStates {
  // Each: the states of all layers, as in a block of the host store, then the inputs of tokens
  // ahead. Empty if no layer keeps a state.
  Buffer buffers[2];
  Event copied[2];        // the last copy from each to the host store has ended
  int newest = 0;         // the buffer that has them; steps and prompts write to the other one
  int64_t n_tokens = -1;  // length that buffers[newest] belongs to; -1: it has nothing yet
  int32_t replayed = 0;   // tokens after it whose inputs are in buffers[newest]
  // The sequence's length before the last step, whose states are in the other buffer and are not
  // yet the newest (CudaKv::take_states); -1: there are none.
  int64_t ended = -1;
};

// The device's data of a sequence; tables as in StepSequence.
struct CudaSequence : PagedSequence {
  Buffer host_table, digests, bound_factor, tails;
  Buffer expected;  // for a sequence's next token, and for each that may be computed ahead
  Buffer kept;      // data that a selection keeps from step to step; empty until one wants it
  Buffer codes;     // key codes of kind `kind`; empty until a selector wants them
  KeyCodes kind = KeyCodes::None;
  Buffer last_use;  // StepSequence::last_use; empty until a step needs it
  int counted_window =
      0;  // StepRequest::working_set of the last step, to which the stamps belong; 0: they are void
  Buffer addresses;          // pinned: of one new block of every head, on their way to host_table
  Event entered;             // ... and when they have arrived
  bool tail_here = false;    // tails hold the newest, unfilled blocks (else the host store does)
  int64_t known_blocks = 0;  // blocks whose host addresses are in host_table
  std::vector<std::byte*> unlocked;  // slabs of its blocks that no step has waited for
  bool stale = false;  // digests do not match the sequence's spec: they could not be rebuilt
  DeviceStates states;
};

// Bytes of the buffers that a device may have for one sequence. Some buffers exist only on a
// condition.
struct SequenceBytes {
  uint64_t page_table = 0, host_table = 0, tails = 0, expected = 0;
  uint64_t digests = 0, bound_factor = 0;  // only if digests are kept
  uint64_t entries = 0;   // blocks of the index: as many codes, if a selector reads them
  uint64_t last_use = 0;  // only if working sets are counted
};
SequenceBytes sequence_bytes(const KvShape& shape, const DigestSpec& spec, int lookup,
                             int64_t max_blocks);
// Returns the bytes that a selection keeps of a sequence from step to step.
uint64_t kept_bytes(const Config& config, const KvShape& shape, const StepSelection& selection,
                    int64_t max_blocks);
// Returns the bytes of each of the two buffers of DeviceStates, and the place of a layer's kept
// inputs in them.
uint64_t device_states_bytes(const Config& config, const KvShape& shape, int lookup);
int64_t kept_inputs_at(const Config& config, const KvShape& shape, int lookup, int layer);
// Lists the device memory of one session of n_ctx tokens.
MemoryList session_list(const Config& config, const KvShape& shape, const DigestSpec& spec,
                        const StepSelection& selection, int lookup, int64_t n_ctx);
KvLayout device_layout(const BlockLayout& layout);

class CudaKv : public KvStore, PagedPool {
 public:
  CudaKv(const Config& config, const DeviceInfo& device, DeviceHeap* heap, Stream* compute,
         HostKv* host, PinnedSlabs* slabs, const BackendOptions& options);

  // Slots that steps can use: all except the lent ones.
  int64_t slots() const override {
    return pool_.n_slots - (streamed() || prompt_memory_.is_open() ? lent_slots_ : 0);
  }
  SequenceKv create(int64_t n_ctx, const DigestSpec& spec) override;
  void destroy(SequenceKv& sequence) override;
  SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) override;
  void reserve(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) override;
  void expect(int64_t bytes) override;
  void truncate(SequenceKv& sequence, int64_t n_tokens) override;
  void change_digests(SequenceKv& sequence, const DigestSpec& spec) override;
  void settle(SequenceKv& sequence) override;
  bool maps_files() const override { return false; }  // the GPU needs pinned memory
  void enter(SequenceKv& sequence, int64_t n_tokens, const Marks& marks) override;
  // Keeps codes of this kind of all full blocks from now on. None: changes nothing.
  void require_codes(SequenceKv& sequence, KeyCodes kind);
  // Makes room for what the selection keeps, until the sequence is cut or prefilled.
  void require_kept(SequenceKv& sequence, const StepSelection& selection);
  void clear_working_set(SequenceKv& sequence) override;
  // HostKv::begin_working_set; counted on the device, unless the host decides residency.
  void begin_working_set(SequenceKv& sequence, int window);
  void commit(SequenceKv& sequence) override;

  // Brings the newest block of these sequences to the device, writable at position n_tokens.
  void activate(SequenceKv* const* sequences, size_t n);
  // Runs the recurrent layers through tokens of a sequence whose inputs were kept, as described,
  // without rows of their own. Set once, by the device.
  using Replay = std::function<void(const StepSequence& sequence)>;
  void set_replay(Replay replay) { replay_ = std::move(replay); }
  // Called after a step with these sequences: their other buffers have new states.
  void end_states(SequenceKv* const* sequences, size_t n);
  // Begins a prompt: brings the states that it goes on from to the device, and keeps a copy if they
  // are a checkpoint.
  void begin_states(SequenceKv& sequence, int64_t n_total);
  // Returns a layer's state, from which the sequence goes on (null: all values are 0), and the
  // place of the state that a prompt makes of it.
  const float* state(const SequenceKv& sequence, int layer) const;
  float* next_state(const SequenceKv& sequence, int layer) const;
  // Copies a layer's state on the device to a checkpoint that the prompt passes.
  void keep_state(int layer, const StateAt& checkpoint, const float* state);

  // The stages of a prompt: begins a layer; completes it (Prompt::finish_layer); completes all
  // layers.
  LayerKv prefill_layer(SequenceKv& sequence, int layer, int64_t n_total);
  void finish_layer(SequenceKv& sequence, int layer, int64_t n_total);
  void commit_prompt(SequenceKv& sequence, int64_t n_total, const Marks& marks);
  uint64_t prefill_held() const { return held_[0] + held_[1] + held_sources_; }

  // Takes and gives back the device memory of a prompt: its layers' KV, and prompt_memory() for the
  // rest. n_total: tokens of the sequence when the prompt is read.
  void begin_prompt(int64_t n_total);
  void end_prompt();
  DeviceArena& prompt_memory() { return prompt_memory_; }

  // Returns the device bytes of the KV that a prompt of n_tokens holds at once: a layer or two
  // (turn_bytes), and all layers to which later layers attend.
  static uint64_t prefill_bytes(const KvShape& shape, int64_t n_tokens);

  // Returns the bytes of buffers that do not depend on sessions and slots: descriptors of blocks on
  // their way, for each of two streams, of sequences of `blocks` blocks; the pool's tables.
  static std::array<uint64_t, 2> copy_bytes(const KvShape& shape, int64_t blocks);
  static uint64_t table_bytes();

  const Pool& pool() const { return pool_; }
  const KvShape& shape() const { return host_->shape(); }
  const KvLayout& layout(int layer) const { return layouts_[layer]; }
  // Returns DecodeStep::tail_offset of a layer.
  int64_t tail_offset(int layer) const {
    return static_cast<int64_t>(shape().tail_at(shape().first_head(layer)));
  }
  // ahead: as StepRequest::ahead_of.
  StepSequence describe(const SequenceKv& sequence, int ahead = 0) const;
  // Returns true if the host decides which blocks are in the slots and streams them in
  // (host_driven.h), because of an option or because memory could not be pinned.
  bool streamed() const { return slot_pool_ != nullptr; }
  // Returns true if there is no pool: kernels read each block where the host store has it.
  bool in_place() const { return pool_.n_slots == 0; }
  // Returns true if all slabs that were tried could be locked: kernels reach the blocks of
  // sequences that activate has seen.
  bool pinned() { return slabs_->failed().empty(); }
  const std::string& notice() const { return notice_; }
  // Returns true if the device has to decide residency: steps fail if memory cannot be pinned.
  bool must_pin() const { return must_pin_; }
  // Learns whether the system pins memory at all. It waits for one slab of the sequence if none was
  // pinned before. If the system refuses, this does the same as activate.
  void try_pinning(SequenceKv& sequence);
  // Says why pinned() is false.
  std::string why_not_pinned() const;
  uint64_t waits() const {
    return flush_.waits() + event_waits_;
  }  // waits, besides those of the compute stream
  // Streamed attention: what is in the slots, and how many of a layer's slots are free to take.
  SlotPool& slot_pool() { return *slot_pool_; }
  int partition(int layer) const { return per_layer_ ? layer : 0; }
  int64_t unpinned_slots(int layer) const {
    return slot_pool_->partition_size(partition(layer)) -
           slot_pool_->partition_pinned(partition(layer));
  }
  const std::byte* host_block(const SequenceKv& s, int layer, int head, int64_t block) const {
    return host_->head(s, layer, head).blocks[block];
  }

  // Ages the pool by a step. Launched when a step begins.
  void age_pool();

 private:
  static constexpr uint64_t kSmallLayer = uint64_t(256) << 20;

  // Returns the bytes of the largest layer whose memory the next layers use again. HeadRoom takes
  // the same memory, so it also has room for the blocks of any head.
  static uint64_t turn_layer(const KvShape& shape, int64_t n_tokens);
  // Returns the bytes for such layers: two are kept if both fit, so that flushing overlaps.
  static uint64_t turn_bytes(const KvShape& shape, int64_t n_tokens) {
    const uint64_t layer = turn_layer(shape, n_tokens);
    return DeviceArena::rounded(layer <= kSmallLayer ? 2 * layer : layer);
  }
  // Returns the bytes for a layer to which later layers attend.
  static uint64_t source_bytes(const KvShape& shape, int layer, int64_t n_tokens) {
    return DeviceArena::rounded(shape.layer_bytes(layer, n_tokens));
  }
  static CudaSequence& on_device(const SequenceKv& s) {
    return static_cast<CudaSequence&>(*s.device);
  }
  SequenceBytes bytes_of(const DigestSpec& spec, int64_t max_blocks) const {
    return sequence_bytes(shape(), spec, lookup_, max_blocks);
  }
  int64_t index_entry(const CudaSequence& d, int layer, int head) const {
    return (shape().index_row(layer) + head) * d.max_blocks;
  }
  // Returns the layout of the layers that have an index; of layer 0 if none has.
  const KvLayout& index_layout() const { return layouts_[shape().index_layer()]; }
  int64_t digest_stride(const DigestSpec& spec) const {
    return host_->digest_stride(spec, shape().index_layer());
  }
  void open(SequenceKv& s, int64_t n_ctx);
  // PagedPool
  Buffer take_entries(int32_t index, int64_t max_blocks) override;
  void forget(const PageTable& table, int64_t max_blocks, int64_t first) override;
  void finish(const PageTable& table, int64_t max_blocks) noexcept override;
  void copy_index(const SequenceKv& from, SequenceKv& to);
  void learn_addresses(SequenceKv& s);
  // While it lives, there is memory for the full blocks of one head. Prefill uses the same memory
  // for a layer's KV, so it is in the plan.
  class HeadRoom {
   public:
    explicit HeadRoom(CudaKv& kv);
    ~HeadRoom();
    HeadRoom(const HeadRoom&) = delete;
    HeadRoom& operator=(const HeadRoom&) = delete;
    operator std::byte*() const { return kv_.layers_.as<std::byte>(); }

   private:
    CudaKv& kv_;
    bool opened_;  // the prompt memory, only for this
  };
  void refuse_inside_layer() const;
  void lend(bool lent);
  // Returns the place of a prompt's KV of a layer that keeps KV. The memory of layers to which
  // later layers attend is theirs until the prompt ends; the others take turns.
  std::byte* layer_at(int layer) const {
    if (source_at_[layer] >= 0) return layers_.as<std::byte>() + source_at_[layer];
    return layers_.as<std::byte>() + turn_ * (turn_room_ / 2 / 16 * 16);
  }
  void place_prompt_layers(int64_t n_tokens);
  void open_prompt_memory();
  void close_prompt_memory();
  void build_all_digests(SequenceKv& s, const DigestSpec& spec);
  int64_t code_bytes(KeyCodes kind) const {
    return cuda::code_bytes(kind, index_layout().block_size, index_layout().head_dim);
  }
  void forget_kept(CudaSequence& d);
  void reset_pool();
  void use_slot_pool();
  void learn_pinning();
  void drop_from_slot_pool(const SequenceKv& s, int64_t from_block);
  void drop_next(const SequenceKv& s);
  void leave(const std::byte* block);  // HostKv::Leaving
  void move_tails(SequenceKv& s, bool to_host);
  void park(SequenceKv& s);
  // Copies blocks [first, last) of n_heads heads of a layer between the host store and device
  // memory, where those of head h lie one after the other from device + h * head_stride.
  // Neighbouring host blocks are copied together. If there are few of them, one kernel moves all
  // blocks (like SparseServe's FlashH2D and FlashD2H, but without their staging buffer and
  // scattering threads). Requires: the sequence holds the blocks.
  void copy_blocks(SequenceKv& s, int layer, int head, int n_heads, int64_t first, int64_t last,
                   std::byte* device, int64_t head_stride, bool to_host, const Stream& stream);
  // Does the same, but only for blocks that the sequence holds. device: where block 0 of head 0
  // would be. Returns the number of blocks copied.
  int64_t copy_held(SequenceKv& s, int layer, int64_t first, int64_t last, std::byte* device,
                    int64_t head_stride, bool to_host, const Stream& stream);
  void run_gather(int64_t block_bytes, const Stream& stream);
  // cuda_kv_states.cpp
  bool has_states() const { return shape().state_bytes() > 0; }
  void describe_states(const CudaSequence& d, StepSequence& out) const;
  void bring_states(SequenceKv& s);
  void take_states(SequenceKv& s, int64_t n_tokens);
  void advance_states(SequenceKv& s);
  void replay_states(SequenceKv& s);
  void wait_locked(const std::byte* block);
  void copy_states(SequenceKv& s, std::byte* block);
  void open_states(DeviceStates& states);
  void keep_states(SequenceKv& s, StateAt& state);
  void settle_states(SequenceKv& s);
  // Moves a finished layer of a prompt to the host store, after its digests are built.
  void flush_layer(SequenceKv& s, int layer, int64_t n_total);
  void digest_layer(SequenceKv& s, int layer, int64_t first, int64_t last, const std::byte* base,
                    int64_t n_blocks);

  const Config& config_;
  DeviceInfo device_;
  DeviceHeap* heap_;
  Stream* compute_;
  PinnedSlabs* slabs_;
  std::vector<KvLayout> layouts_;  // [layer]
  std::vector<SealRun> seal_runs_, seal_indexed_;
  Pool pool_;
  Buffer slots_, words_, tables_, victims_, counters_, victims_scratch_;
  EvictPolicy evict_;
  uint64_t host_mem_;
  bool per_layer_, must_pin_;
  int64_t block_size_;
  int lookup_;  // the most tokens ahead
  uint64_t event_waits_ = 0;
  std::unique_ptr<SlotPool> slot_pool_;
  std::string notice_;
  uint32_t steps_ = 0;  // since the pool's stamps began
  PageTables page_tables_{this};
  std::vector<CudaSequence*> sequences_;  // alive

  // Memory for prompts: that of the last slots, which the pool lends while it is open, or
  // own_prompt_.
  DeviceArena prompt_memory_;
  Buffer own_prompt_;
  int64_t lent_slots_;
  uint64_t prompt_bytes_;
  // Part of prompt_memory_: the KV of one layer, and of the layer before while it is copied to the
  // host; then that of each layer to which later layers attend.
  Buffer layers_;
  uint64_t held_[2] = {0, 0};        // bytes of the first two
  uint64_t held_sources_ = 0;        // bytes of the others
  bool pair_ = false;                // both of the first two fit
  uint64_t layer_room_, turn_room_;  // bytes of layers_; of its first part
  std::vector<int64_t> source_at_;   // [layer]: its place in layers_; -1: it has none of its own
  uint64_t session_host_bytes_;      // host memory of n_ctx tokens
  Event computed_, flushed_[2];
  Stream flush_;
  int turn_ = 0;
  // The sequence whose prompt's layer is in layers_, unfinished.
  const DeviceKv* reading_ = nullptr;
  Buffer copies_[2];  // device: descriptors of gather, for each of two streams
  Replay replay_;
  Event states_copied_;  // the last copy of states to the host store has ended
  std::vector<Copy> host_copies_;
};

}  // namespace riffle::cuda
