// KV of a device that is emulated on the CPU: it does in host memory what a GPU does
// (backend/cuda/cuda_kv.h). Pool and page tables are a GPU's, and the newest blocks are in memory
// of their own.
#include <algorithm>
#include <cstring>

#include "kv/page_tables.h"
#include "kv/pool_kv.h"
#include "kv/shared_pool.h"
#include "util/error.h"

namespace riffle {

namespace {

struct EmulatedSequence : PagedSequence {
  Buffer tails;            // newest, unfilled blocks of all heads
  bool tail_here = false;  // they are here; else the host store has them
};

class Emulated : public PoolKv, PagedPool {
 public:
  Emulated(HostKv* host, ThreadPool* threads, int64_t n_slots)
      : PoolKv(host, threads), pool_(n_slots, slot_bytes_), tables_(this) {}

  int64_t slots() const override { return pool_.size(); }
  int64_t used_slots() const override { return pool_.used(); }

  SequenceKv create(int64_t n_ctx, const DigestSpec& spec) override {
    SequenceKv s = host_->create(n_ctx, spec);
    open(s, n_ctx);
    return s;
  }
  void destroy(SequenceKv& s) override {
    tables_.end(on_device(s));
    s.device.reset();
    host_->destroy(s);
  }
  SequenceKv fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) override {
    const int64_t block = n_tokens / block_size();
    if (n_tokens % block_size() != 0 && block == from.n_tokens / block_size()) save_tails(from);
    SequenceKv s = host_->fork(from, n_tokens, n_ctx);
    try {
      open(s, n_ctx);
    } catch (...) {
      host_->destroy(s);
      throw;
    }
    tables_.share(on_device(from), on_device(s), block);
    return s;
  }
  void reserve(SequenceKv& s, int64_t n_tokens, const Marks& marks) override {
    tables_.make(on_device(s));
    host_->reserve_prompt(s, n_tokens, marks);
  }

  void activate(SequenceKv* const* sequences, size_t n, int64_t) override {
    for (size_t i = 0; i < n; ++i) {
      SequenceKv& s = *sequences[i];
      EmulatedSequence& d = on_device(s);
      if (d.tail_here) continue;
      if (s.n_tokens % block_size() != 0) {
        copy_tails(s, false);
        counters.loaded_bytes += host_->shape().tails_bytes();
      }
      d.tail_here = true;
    }
    pool_.begin_step();
  }
  std::byte* tail(SequenceKv& s, int layer, int head) override {
    return tail_of(s, host_->shape().first_head(layer) + head);
  }
  bool holds_tail(const SequenceKv& s) const override { return on_device(s).tail_here; }

  int64_t room(int) const override { return kMaxBlocks; }
  void acquire(SequenceKv& s, int layer, int head, const int32_t* blocks, int n,
               Held* held) override {
    const EmulatedSequence& d = on_device(s);
    const int64_t of_head = (host_->shape().first_head(layer) + head) * d.max_blocks;
    const HeadKv& h = host_->head(s, layer, head);
    const auto bytes = static_cast<uint32_t>(host_->shape().block_bytes(layer));
    for (int i = 0; i < n; ++i) {
      const std::byte* const host = h.blocks[blocks[i]];
      const PageTable* const table = (blocks[i] < d.prefix_blocks ? d.prefix : d.own).get();
      held[i] = {host, host, -1, true, false, bytes};
      ++counters.lookups;
      if (!table) continue;  // since a cut the block has no name
      held[i].table = table->index;
      held[i].entry = of_head + blocks[i];
      const SharedPool::Found found = pool_.find(held[i].table, held[i].entry);
      held[i].miss = !found.hit;
      counters.hits += found.hit;
      if (!found.hit) counters.loaded_bytes += bytes;
      if (found.slot < 0) continue;  // no slot is left: the block is read from the host store
      held[i].slot = found.slot;
      held[i].data = pool_.slot(found.slot);
    }
  }
  void load(const Held* held, int n) override {
    for (int i = 0; i < n; ++i) {
      if (!held[i].miss || held[i].slot < 0) continue;
      std::memcpy(pool_.slot(held[i].slot), held[i].host, held[i].bytes);
      pool_.enter(held[i].table, held[i].entry, held[i].slot);
    }
  }
  void release(const Held*, int) override {}
  void abandon(const Held*, int) override {}

 protected:
  // Moves the newest blocks to the host store, where they are used from now on.
  void park(SequenceKv& s) override {
    save_tails(s);
    on_device(s).tail_here = false;
  }
  void settle(SequenceKv& s) override { save_tails(s); }
  // Copies full tails to the host store and to a victim's slot, as kernels/cuda/pool/seal.cu does.
  void flush_full(SequenceKv& s) override {
    EmulatedSequence& d = on_device(s);
    const int64_t block = s.n_tokens / block_size() - 1;
    threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
      std::memcpy(s.heads[i].blocks[block], tail_of(s, i), bytes_of(i));
      const int64_t entry = i * d.max_blocks + block;
      const int32_t slot = pool_.take(d.own->index, entry);
      if (slot < 0) return;
      std::memcpy(pool_.slot(slot), tail_of(s, i), bytes_of(i));
      pool_.enter(d.own->index, entry, slot);
    });
    counters.flushed_bytes += host_->shape().tails_bytes();
    d.tail_here = false;
  }
  void forget(SequenceKv& s, int64_t from_block) override {
    EmulatedSequence& d = on_device(s);
    if (from_block == 0) park(s);  // its blocks are about to be changed
    else if (from_block != s.n_tokens / block_size()) d.tail_here = false;
    tables_.cut(d, from_block);
  }
  // No step asks for a block that a window has passed, and its slot becomes a victim like any
  // unused one.
  void leave(const std::byte*) override {}

 private:
  static EmulatedSequence& on_device(const SequenceKv& s) {
    return static_cast<EmulatedSequence&>(*s.device);
  }
  int block_size() const { return host_->shape().block_size(); }
  std::byte* tail_of(const SequenceKv& s, int64_t head) const {
    return on_device(s).tails.as<std::byte>() + host_->shape().tail_at(head);
  }
  void open(SequenceKv& s, int64_t n_ctx) {
    auto d = std::make_unique<EmulatedSequence>();
    d->max_blocks = host_->shape().in_blocks(n_ctx);
    d->tails = Buffer(host_->shape().tails_bytes());
    std::memset(d->tails.data(), 0, d->tails.size());
    tables_.make(*d);
    s.device = std::move(d);
  }
  void copy_tails(SequenceKv& s, bool to_host) {
    const int64_t block = s.n_tokens / block_size();
    threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
      std::byte* const host = s.heads[i].blocks[block];
      if (to_host) std::memcpy(host, tail_of(s, i), bytes_of(i));
      else std::memcpy(tail_of(s, i), host, bytes_of(i));
    });
  }
  void save_tails(SequenceKv& s) {
    if (!on_device(s).tail_here || s.n_tokens % block_size() == 0) return;
    copy_tails(s, true);
    counters.flushed_bytes += host_->shape().tails_bytes();
  }

  // PagedPool
  Buffer take_entries(int32_t index, int64_t max_blocks) override {
    const int64_t n = host_->shape().heads() * max_blocks;
    Buffer entries(n * sizeof(std::atomic<int32_t>));
    auto* const at = entries.as<std::atomic<int32_t>>();
    for (int64_t i = 0; i < n; ++i) new (at + i) std::atomic<int32_t>(-1);
    pool_.set_table(index, at);
    return entries;
  }
  void forget(const PageTable& table, int64_t max_blocks, int64_t first) override {
    pool_.forget(table.index, host_->shape().heads(), max_blocks, first);
  }
  void finish(const PageTable& table, int64_t max_blocks) noexcept override {
    forget(table, max_blocks, 0);
    pool_.set_table(table.index, nullptr);
  }

  SharedPool pool_;
  PageTables tables_;
};

}  // namespace

std::unique_ptr<CpuKv> make_emulated(HostKv* host, ThreadPool* threads, int64_t n_slots) {
  return std::make_unique<Emulated>(host, threads, n_slots);
}

}  // namespace riffle
