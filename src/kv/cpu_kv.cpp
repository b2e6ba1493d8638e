#include "kv/cpu_kv.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace riffle {

void CpuKv::destroy(SequenceKv& s) {
  forget(s, 0);
  host_->destroy(s);
}

SequenceKv CpuKv::fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) {
  const int64_t block_size = host_->shape().block_size();
  if (n_tokens % block_size != 0 && n_tokens / block_size == from.n_tokens / block_size) park(from);
  return host_->fork(from, n_tokens, n_ctx);
}

void CpuKv::retire(SequenceKv& s) {
  forget(s, 0);
  host_->make_own(s, 0, host_->shape().in_blocks(s.n_tokens));
}

void CpuKv::truncate(SequenceKv& s, int64_t n_tokens) {
  forget(s, n_tokens / host_->shape().block_size());
  host_->truncate(s, n_tokens);
}

void CpuKv::commit(SequenceKv& s) {
  host_->drop_passed(s, [this](const std::byte* block) { leave(block); });
  if (s.n_tokens % host_->shape().block_size() != 0) return;
  flush_full(s);
  host_->build_digests(s, s.n_tokens);
}

void CpuKv::finish_layer(SequenceKv& s, int layer, int64_t n_total) {
  flush_layer(s, layer, n_total);
  host_->build_digests(s, n_total, layer);
}

void CpuKv::commit_prompt(SequenceKv& s, int64_t n_total, const Marks& marks) {
  host_->commit_prompt(s, n_total, marks, [this](const std::byte* block) { leave(block); });
}

namespace {

class InPlace : public CpuKv {
 public:
  using CpuKv::CpuKv;
  bool in_place() const override { return true; }
  void activate(SequenceKv* const*, size_t, int64_t) override {}
  std::byte* tail(SequenceKv& s, int layer, int head) override {
    return host_->head(s, layer, head).blocks[s.n_tokens / host_->shape().block_size()];
  }
  int64_t used_slots() const override { return 0; }
  int64_t room(int) const override { return kMaxBlocks; }
  void acquire(SequenceKv& s, int layer, int head, const int32_t* blocks, int n,
               Held* held) override {
    const HeadKv& h = host_->head(s, layer, head);
    for (int i = 0; i < n; ++i) held[i] = {h.blocks[blocks[i]], nullptr, -1, false, false};
  }
  void load(const Held*, int) override {}
  void release(const Held*, int) override {}
  void abandon(const Held*, int) override {}

  // Blocks that are not kept take turns in a buffer, which holds a chunk and its window. A layer
  // that attends to an earlier one reads that layer's blocks in this buffer. This works because the
  // earlier layer is the last one before it that uses the buffer.
  LayerKv prefill_layer(SequenceKv& s, int layer, int64_t n_total, int64_t rows) override {
    const int64_t n_blocks = host_->shape().in_blocks(n_total);
    const size_t bytes = host_->shape().block_bytes(layer);
    const int n_heads = host_->shape().rows(layer);
    table_.resize(n_blocks * n_heads);
    int64_t turns = 0;
    if (host_->shape().window(layer) > 0) {
      turns = std::min(n_blocks, host_->shape().prompt_blocks(layer, rows));
      passing_.reserve(turns * n_heads * bytes);
    }
    for (int h = 0; h < n_heads; ++h) {
      const std::vector<std::byte*>& blocks = host_->head(s, layer, h).blocks;
      for (int64_t b = 0; b < n_blocks; ++b)
        table_[h * n_blocks + b] =
            blocks[b] ? blocks[b] : passing_.as<std::byte>() + (h * turns + b % turns) * bytes;
    }
    return {table_.data(), nullptr, n_blocks};
  }

 protected:
  void park(SequenceKv&) override {}
  void flush_full(SequenceKv&) override {}
  void flush_layer(SequenceKv&, int, int64_t) override {}
  void forget(SequenceKv&, int64_t) override {}
  void leave(const std::byte*) override {}

 private:
  std::vector<std::byte*> table_;
  Buffer passing_;  // prefill: a layer's blocks that its window will have passed at the end
};

}  // namespace

std::unique_ptr<CpuKv> make_in_place(HostKv* host) { return std::make_unique<InPlace>(host); }

}  // namespace riffle
