// KV of the emulated device behind a SlotPool, whose owner grants slots: for settings that a GPU's
// own protocol cannot run (grants_slots).
#include <algorithm>
#include <cstring>

#include "kv/pool_kv.h"
#include "kv/slot_pool.h"
#include "util/error.h"

namespace riffle {

namespace {

class Pooled : public PoolKv {
 public:
  Pooled(HostKv* host, ThreadPool* threads, int64_t n_slots, EvictPolicy policy, bool per_layer)
      : PoolKv(host, threads),
        per_layer_(per_layer),
        pool_(n_slots, policy, per_layer ? host->shape().n_layers() : 1),
        memory_(size_t(n_slots) * slot_bytes_) {}

  int64_t slots() const override { return pool_.size(); }
  int64_t used_slots() const override { return pool_.used(); }

  // The pool must hold the newest blocks of all sequences of a step, and the slots that one row
  // needs.
  int64_t sequences_per_step(int64_t row_slots) const override {
    const int64_t parts = per_layer_ ? host_->shape().n_layers() : 1;
    const KvShape& shape = host_->shape();
    int64_t tails = per_layer_ ? 1 : n_heads();  // the most in a part
    for (int layer = 0; per_layer_ && layer < parts; ++layer)
      tails = std::max<int64_t>(tails, shape.heads(layer));
    const int64_t have = slots() / parts;
    return have < row_slots ? 0 : (have - row_slots) / tails;
  }
  // One row's iteration must find room in addition to everything that is kept.
  int64_t selection_slots(int64_t n, int64_t row_slots) const override {
    return std::max<int64_t>(1, slots() - n * n_heads() - row_slots);
  }

  // The block that will be written next may be in the pool because another sequence held it too, or
  // from before a cut.
  void reserve(SequenceKv& s, int64_t n_tokens, const Marks& marks) override {
    host_->reserve_prompt(s, n_tokens, marks);
    const size_t block = s.n_tokens / host_->shape().block_size();
    if (!s.tail_slots.empty()) return;
    for (const HeadKv& h : s.heads)
      if (block < h.blocks.size() && h.blocks[block]) pool_.drop(block_key(h.blocks[block]));
  }

  void activate(SequenceKv* const* sequences, size_t n, int64_t spare) override {
    for (size_t i = 0; i < n; ++i) {
      SequenceKv& s = *sequences[i];
      if (!s.tail_slots.empty()) continue;
      active_.reserve(active_.size() + 1);  // nothing may fail once the slots are taken
      while (!take_tails(s)) make_room(sequences, n, spare);
      active_.push_back(&s);
    }
    for (int layer = 0; layer < (per_layer_ ? host_->shape().n_layers() : 1); ++layer)
      while (room(layer) < spare) make_room(sequences, n, spare);
  }

  std::byte* tail(SequenceKv& s, int layer, int head) override {
    return slot_data(s.tail_slots[host_->shape().first_head(layer) + head]);
  }

  int64_t room(int layer) const override {
    const int p = partition(layer);
    return pool_.partition_size(p) - pool_.partition_pinned(p);
  }

  void acquire(SequenceKv& s, int layer, int head, const int32_t* blocks, int n,
               Held* held) override {
    const HeadKv& h = host_->head(s, layer, head);
    const auto bytes = static_cast<uint32_t>(host_->shape().block_bytes(layer));
    for (int i = 0; i < n; ++i) {
      const SlotPool::Grant grant = pool_.acquire(block_key(h.blocks[blocks[i]]), partition(layer));
      if (grant.slot == SlotPool::kNone) {
        abandon(held, i);
        fail(RIFFLE_NO_SLOT, "no slot is free in a pool of %lld slots",
             static_cast<long long>(pool_.size()));
      }
      const bool wait = grant.hit && pool_.state(grant.slot) == SlotPool::State::Loading;
      held[i] = {slot_data(grant.slot), h.blocks[blocks[i]], grant.slot, !grant.hit, wait, bytes};
      counters.hits += grant.hit;
      counters.evictions += grant.evicted;
      if (!grant.hit) counters.loaded_bytes += bytes;
    }
    counters.lookups += n;
  }

  void load(const Held* held, int n) override {
    for (int i = 0; i < n; ++i)
      if (held[i].miss)
        std::memcpy(const_cast<std::byte*>(held[i].data), held[i].host, held[i].bytes);
  }

  void release(const Held* held, int n) override {
    for (int i = n;
         i-- > 0;) {  // reverse rank order: the most critical block ends as the most recent
      if (held[i].slot < 0) continue;
      if (held[i].miss) pool_.loaded(held[i].slot);
      pool_.unpin(held[i].slot);
    }
  }

  void abandon(const Held* held, int n) override {
    for (int i = 0; i < n; ++i) {
      if (held[i].slot < 0) continue;
      // A block that was not loaded leaves the pool with the last row that asked for it.
      if (pool_.state(held[i].slot) == SlotPool::State::Loading && pool_.pins(held[i].slot) == 1)
        pool_.drop_slot(held[i].slot);
      else pool_.unpin(held[i].slot);
    }
  }

 protected:
  void flush_full(SequenceKv& s) override {
    const int64_t block = s.n_tokens / host_->shape().block_size() - 1;
    for (int32_t slot : s.tail_slots) pool_.seal(slot);
    threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
      std::memcpy(s.heads[i].blocks[block], slot_data(s.tail_slots[i]), bytes_of(i));
    });
    counters.flushed_bytes += host_->shape().tails_bytes();
    for (int32_t slot : s.tail_slots) {
      pool_.flushed(slot);
      pool_.unpin(slot);
    }
    s.tail_slots.clear();
    active_.erase(std::find(active_.begin(), active_.end(), &s));
  }

  void forget(SequenceKv& s, int64_t from_block) override {
    park(s);
    for (const HeadKv& h : s.heads)
      for (size_t b = from_block; b < h.blocks.size(); ++b)
        if (h.blocks[b] && host_->held_once(h.blocks[b])) leave(h.blocks[b]);
  }
  void leave(const std::byte* block) override { pool_.drop(block_key(block)); }

  void park(SequenceKv& s) override {
    if (s.tail_slots.empty()) return;
    const int64_t block = s.n_tokens / host_->shape().block_size();
    if (s.n_tokens % host_->shape().block_size() != 0) {
      threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
        std::memcpy(s.heads[i].blocks[block], slot_data(s.tail_slots[i]), bytes_of(i));
      });
      counters.flushed_bytes += host_->shape().tails_bytes();
    }
    for (int32_t slot : s.tail_slots) pool_.drop_slot(slot);
    s.tail_slots.clear();
    active_.erase(std::find(active_.begin(), active_.end(), &s));
  }

 private:
  int64_t n_heads() const { return host_->shape().heads(); }
  int partition(int layer) const { return per_layer_ ? layer : 0; }
  std::byte* slot_data(int32_t slot) const {
    return memory_.as<std::byte>() + size_t(slot) * slot_bytes_;
  }

  // Takes a FILLING slot for every layer and head of s. Returns false, and takes none, if there are
  // too few.
  bool take_tails(SequenceKv& s) {
    const int64_t block = s.n_tokens / host_->shape().block_size();
    for (size_t i = 0; i < s.heads.size(); ++i) {
      const int layer = host_->shape().layer_of(static_cast<int64_t>(i));
      const SlotPool::Grant grant =
          pool_.fill(block_key(s.heads[i].blocks[block]), partition(layer));
      if (grant.slot == SlotPool::kNone) {
        for (int32_t slot : s.tail_slots) pool_.drop_slot(slot);
        s.tail_slots.clear();
        return false;
      }
      counters.evictions += grant.evicted;
      s.tail_slots.push_back(grant.slot);
    }
    if (s.n_tokens % host_->shape().block_size() != 0) {
      threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
        std::memcpy(slot_data(s.tail_slots[i]), s.heads[i].blocks[block], bytes_of(i));
      });
      counters.loaded_bytes += host_->shape().tails_bytes();
    }
    return true;
  }

  // Parks a sequence that is not in `keep`.
  void make_room(SequenceKv* const* keep, size_t n, int64_t spare) {
    for (SequenceKv* s : active_) {
      if (std::find(keep, keep + n, s) != keep + n) continue;
      park(*s);
      return;
    }
    fail(
        RIFFLE_NO_SLOT,
        "the pool's %lld slots cannot hold the newest blocks of %zu sequences and %lld more blocks",
        static_cast<long long>(pool_.size()), n, static_cast<long long>(spare));
  }

  bool per_layer_;
  SlotPool pool_;
  Buffer memory_;
  std::vector<SequenceKv*> active_;  // sequences that hold FILLING slots
};

}  // namespace

std::unique_ptr<CpuKv> make_pooled(HostKv* host, ThreadPool* threads, int64_t n_slots,
                                   EvictPolicy policy, bool per_layer) {
  return std::make_unique<Pooled>(host, threads, n_slots, policy, per_layer);
}

}  // namespace riffle
