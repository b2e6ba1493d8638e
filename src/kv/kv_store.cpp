#include "kv/kv_store.h"

#include <algorithm>
#include <cstring>

namespace riffle {

KvStore::KvStore(const BlockLayout& layout, int n_layers, int n_kv_heads,
                 const cpu::Kernels* kernels, ThreadPool* threads,
                 std::unique_ptr<SlabSource> slabs, bool host_digests, uint64_t limit)
    : layout_(layout),
      n_layers_(n_layers),
      n_kv_heads_(n_kv_heads),
      kernels_(kernels),
      threads_(threads),
      host_digests_(host_digests),
      store_(layout.bytes(), std::move(slabs), limit) {}

SequenceKv KvStore::create(int64_t n_ctx, const DigestSpec& spec) {
  SequenceKv s;
  s.spec = spec;
  s.max_blocks = layout_.blocks(n_ctx);
  s.heads.resize(size_t(n_layers_) * n_kv_heads_);
  const size_t blocks = layout_.blocks(n_ctx);
  for (HeadKv& h : s.heads) {
    h.blocks.reserve(blocks);
    if (!host_digests_) continue;
    if (!spec.kept) continue;
    h.digests.reserve(blocks * digest_stride(spec));
    h.bound_factor.reserve(blocks);
  }
  s.tail_slots.reserve(s.heads.size());
  return s;
}

SequenceKv KvStore::fork(const SequenceKv& from, int64_t n_tokens, int64_t n_ctx) {
  SequenceKv s = create(n_ctx, from.spec);
  const size_t full = n_tokens / layout_.block_size, blocks = layout_.blocks(n_tokens);
  const int64_t stride = digest_stride(from.spec);
  s.unrotated = from.unrotated;
  try {
    for (size_t i = 0; i < s.heads.size(); ++i) {
      HeadKv& h = s.heads[i];
      h.blocks.reserve(blocks);
      for (size_t b = 0; b < full; ++b) {
        store_.share(from.heads[i].blocks[b]);
        h.blocks.push_back(from.heads[i].blocks[b]);
      }
      if (full < blocks) h.blocks.push_back(store_.take());
      const size_t digested =
          std::min(full, from.heads[i].bound_factor.size());  // none where the device has them
      h.digests.assign(from.heads[i].digests.begin(),
                       from.heads[i].digests.begin() + digested * stride);
      h.bound_factor.assign(from.heads[i].bound_factor.begin(),
                            from.heads[i].bound_factor.begin() + digested);
    }
    if (host_digests_) build_digests(s, n_tokens);  // what `from` lacks after memory ran out
  } catch (...) {
    destroy(s);
    throw;
  }
  if (full < blocks)
    threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
      std::memcpy(s.heads[i].blocks[full], from.heads[i].blocks[full], layout_.bytes());
    });
  s.n_tokens = n_tokens;
  return s;
}

void KvStore::make_own(SequenceKv& s, int64_t first, int64_t last) {
  for (HeadKv& h : s.heads)
    for (int64_t b = first; b < last; ++b) {
      if (!store_.shared(h.blocks[b])) continue;
      std::byte* own = store_.take();
      std::memcpy(own, h.blocks[b], layout_.bytes());
      store_.give_back(h.blocks[b]);
      h.blocks[b] = own;
    }
}

void KvStore::destroy(SequenceKv& s) {
  for (HeadKv& h : s.heads)
    for (std::byte* block : h.blocks) store_.give_back(block);
  s.heads.clear();
  s.selection.reset();
  s.n_tokens = 0;
}

void KvStore::reserve(SequenceKv& s, int64_t n_tokens) {
  const size_t want = layout_.blocks(n_tokens);
  try {
    // Full when it was shared, and cut since.
    if (n_tokens > s.n_tokens)
      make_own(s, s.n_tokens / layout_.block_size, layout_.blocks(s.n_tokens));
    for (HeadKv& h : s.heads)
      while (h.blocks.size() < want) {
        h.blocks.reserve(h.blocks.size() + 1);
        h.blocks.push_back(store_.take());
      }
  } catch (...) {
    truncate(s, s.n_tokens);
    throw;
  }
}

void KvStore::truncate(SequenceKv& s, int64_t n_tokens) {
  const size_t keep = layout_.blocks(n_tokens), full = n_tokens / layout_.block_size;
  for (HeadKv& h : s.heads) {
    while (h.blocks.size() > keep) {
      store_.give_back(h.blocks.back());
      h.blocks.pop_back();
    }
    if (h.bound_factor.size() > full) {
      h.bound_factor.resize(full);
      h.digests.resize(full * digest_stride(s.spec));
    }
  }
  if (s.selection) s.selection->truncate(n_tokens);
  s.n_tokens = n_tokens;
}

void KvStore::build_digests(SequenceKv& s, int64_t n_tokens, int layer) {
  const size_t full = n_tokens / layout_.block_size;
  const int64_t stride = digest_stride(s.spec);
  const size_t first = layer < 0 ? 0 : size_t(layer) * n_kv_heads_;
  const size_t count = layer < 0 ? s.heads.size() : n_kv_heads_;
  for (size_t i = 0; s.spec.kept && i < count; ++i) {  // what can fail first
    s.heads[first + i].digests.reserve(full * stride);
    s.heads[first + i].bound_factor.reserve(full);
  }
  threads_->parallel_for(count, [&](int64_t i, int) {
    HeadKv& h = s.heads[first + i];
    if (s.selection)
      s.selection->add_blocks(static_cast<int>((first + i) / n_kv_heads_),
                              static_cast<int>((first + i) % n_kv_heads_), static_cast<int>(full),
                              h.blocks.data());
    const size_t old = h.bound_factor.size();
    if (old >= full || !s.spec.kept) return;
    h.digests.resize(full * stride);
    h.bound_factor.resize(full);
    for (size_t b = old; b < full; ++b)
      h.bound_factor[b] = kernels_->attention.digest_build(
          h.blocks[b], layout_.type, layout_.block_size, layout_.head_dim, s.spec.kind,
          s.spec.with_mean, h.digests.data() + b * stride);
  });
}

void KvStore::change_digests(SequenceKv& s, const DigestSpec& spec) {
  if (s.spec == spec) return;
  const size_t blocks = s.n_tokens / layout_.block_size;
  for (HeadKv& h : s.heads) {  // what can fail first
    h.digests.reserve(blocks * digest_stride(spec));
    h.bound_factor.reserve(blocks);
  }
  for (HeadKv& h : s.heads) {
    h.digests.clear();
    h.bound_factor.clear();
  }
  s.spec = spec;
  build_digests(s, s.n_tokens);
}

void KvStore::begin_working_set(SequenceKv& s, int window) const {
  if (s.working_set && s.working_set->window() != window) s.working_set.reset();
  if (window == 0) return;
  if (!s.working_set)
    s.working_set = std::make_unique<WorkingSet>(s.heads.size(), s.max_blocks, window);
  s.working_set->begin_step(s.n_tokens);
}

void KvStore::renew_digests(SequenceKv& s) {
  for (HeadKv& h : s.heads) {
    h.digests.clear();
    h.bound_factor.clear();
  }
  s.selection.reset();
  if (host_digests_) build_digests(s, s.n_tokens);
}

}  // namespace riffle
