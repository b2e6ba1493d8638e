#include "kv/host_kv.h"

#include <algorithm>
#include <cstring>

#include "util/error.h"

namespace riffle {

HostKv::HostKv(const KvShape& shape, const cpu::Kernels* kernels, ThreadPool* threads,
               std::unique_ptr<SlabSource> slabs, bool whole, uint64_t limit)
    : shape_(shape),
      kernels_(kernels),
      threads_(threads),
      whole_(whole),
      store_(std::move(slabs), limit) {}

SequenceKv HostKv::create(int64_t n_ctx, const DigestSpec& spec) {
  SequenceKv s;
  s.spec = spec;
  s.max_blocks = shape_.in_blocks(n_ctx);
  s.heads.resize(shape_.heads());
  const size_t blocks = shape_.in_blocks(n_ctx);
  for (size_t i = 0; i < s.heads.size(); ++i) {
    HeadKv& h = s.heads[i];
    h.blocks.reserve(blocks);
    if (!whole_ || !spec.kept || !selects_head(i)) continue;
    h.digests.reserve(blocks * digest_stride(spec, shape_.layer_of(i)));
    h.bound_factor.reserve(blocks);
  }
  s.tail_slots.reserve(s.heads.size());
  return s;
}

void HostKv::reserve_states(SequenceKv& s, std::span<const Checkpoint> states) {
  if (shape_.state_bytes() == 0) return;
  s.next_states.reserve(states.size());
  s.states.reserve(s.states.size() + states.size());
  while (s.next_states.size() > states.size()) {
    give_back(s.next_states.back());
    s.next_states.pop_back();
  }
  while (s.next_states.size() < states.size())
    s.next_states.push_back({{}, store_.take(shape_.state_bytes())});
  for (size_t i = 0; i < states.size(); ++i) static_cast<Checkpoint&>(s.next_states[i]) = states[i];
}

int HostKv::most_states(const SequenceKv& s) const {
  return s.of_request ? std::min(shape_.most_states(), Checkpoints::kOfRequest)
                      : shape_.most_states();
}

void HostKv::reserve_rows(SequenceKv& s, int64_t rows) {
  if (shape_.state_bytes() == 0) return;
  std::vector<Checkpoint> next;
  for (int64_t row = 1; row <= rows; ++row) next.push_back({s.n_tokens + row});
  if (whole_) return reserve_states(s, next);
  drop_next_states(s);
  s.states.reserve(s.states.size() + next.size());
  for (const Checkpoint& c : next) s.next_states.push_back({c});
}

std::byte* HostKv::take_state() { return store_.take(shape_.state_bytes()); }

void HostKv::reserve_checkpoints(SequenceKv& s, int64_t n_tokens, std::span<const int64_t> turns) {
  if (shape_.state_bytes() == 0) return;
  std::vector<int64_t> lengths = Checkpoints::grid(s.n_tokens, n_tokens);
  // A lead before the end of the prompt; in a short prompt it is the state before the prompt.
  const auto is_turn = [&](int64_t length) {
    return std::find(turns.begin(), turns.end(), length) != turns.end();
  };
  const int64_t lead =
      !s.of_request && is_turn(n_tokens) ? std::max(s.n_tokens, n_tokens - Checkpoints::kLead) : 0;
  if (lead > s.n_tokens) lengths.push_back(lead);
  for (const int64_t turn : turns)
    if (turn > s.n_tokens && turn < n_tokens) lengths.push_back(turn);
  lengths.push_back(n_tokens);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  std::vector<Checkpoint> all(s.states.begin(), s.states.end());
  for (const int64_t length : lengths) all.push_back({length});
  for (Checkpoint& c : all) {
    if (is_turn(c.n_tokens)) c.kind = Checkpoint::TURN;
    else if (c.n_tokens == lead && c.kind == Checkpoint::OTHER) c.kind = Checkpoint::LEAD;
  }
  Checkpoints::choose(all, n_tokens, most_states(s));

  const size_t held = s.states.size();
  drop_next_states(s);
  s.next_states.reserve(all.size());
  s.states.reserve(held + all.size());
  s.next_states.push_back({all.back(), store_.take(shape_.state_bytes())});
  for (size_t i = 0; i < held; ++i) {
    static_cast<Checkpoint&>(s.states[i]) = all[i];
    if (s.states[i].n_tokens == s.n_tokens) s.states[i].keep = true;
  }
  drop_unkept(s);
  try {
    for (size_t i = all.size() - 1; i-- > held;)
      if (all[i].keep) s.next_states.push_back({all[i], store_.take(shape_.state_bytes())});
  } catch (const Error&) {  // the sequence can be cut at fewer lengths
  }
  std::reverse(s.next_states.begin(), s.next_states.end());
}

void HostKv::keep_states(SequenceKv& s) {
  size_t n = 0;  // states that were reached
  while (n < s.next_states.size() && s.next_states[n].n_tokens <= s.n_tokens)
    s.states.push_back(s.next_states[n++]);  // there is room: reserve_*
  s.next_states.erase(s.next_states.begin(), s.next_states.begin() + static_cast<int64_t>(n));
  while (!s.states.empty() && s.states.back().n_tokens > s.n_tokens) {
    give_back(s.states.back());
    s.states.pop_back();
  }
  Checkpoints::choose(s.states, s.n_tokens, most_states(s));
  // A state without a block is on the device only, which has just the newest.
  for (StateAt& state : s.states) state.keep &= state.block || state.n_tokens == s.n_tokens;
  drop_unkept(s);
}

void HostKv::drop_unkept(SequenceKv& s) {
  for (const StateAt& state : s.states)
    if (!state.keep) give_back(state);
  std::erase_if(s.states, [](const StateAt& state) { return !state.keep; });
}

void HostKv::drop_next_states(SequenceKv& s) {
  for (const StateAt& state : s.next_states) give_back(state);
  s.next_states.clear();
}

SequenceKv HostKv::fork(const SequenceKv& from, int64_t n_tokens, int64_t n_ctx) {
  SequenceKv s = create(n_ctx, from.spec);
  const size_t full = n_tokens / shape_.block_size(), blocks = shape_.in_blocks(n_tokens);
  s.unrotated = from.unrotated;
  s.chose_tiles = from.chose_tiles;
  s.of_request = from.of_request;
  s.marks = from.marks.of_fork(n_tokens);
  try {
    for (size_t i = 0; i < s.heads.size(); ++i) {
      HeadKv& h = s.heads[i];
      const int layer = shape_.layer_of(static_cast<int64_t>(i));
      const int64_t stride = digest_stride(from.spec, layer);
      h.blocks.reserve(blocks);
      for (size_t b = 0; b < full; ++b) {
        std::byte* block = from.heads[i].blocks[b];
        if (block && !shape_.keeps(layer, static_cast<int64_t>(b), n_tokens, s.marks))
          block = nullptr;
        if (block) store_.share(block);
        h.blocks.push_back(block);
      }
      if (full < blocks) h.blocks.push_back(store_.take(shape_.block_bytes(layer)));
      const size_t digested =
          std::min(full, from.heads[i].bound_factor.size());  // empty if the device has them
      h.digests.assign(from.heads[i].digests.begin(),
                       from.heads[i].digests.begin() + digested * stride);
      h.bound_factor.assign(from.heads[i].bound_factor.begin(),
                            from.heads[i].bound_factor.begin() + digested);
    }
    s.states.reserve(from.states.size());
    for (const StateAt& state : from.states)
      if (state.n_tokens <= n_tokens) store_.share(state.block), s.states.push_back(state);
    if (whole_)
      build_digests(s, n_tokens);  // builds digests that `from` lacks because memory ran out
  } catch (...) {
    destroy(s);
    throw;
  }
  if (full < blocks)
    threads_->parallel_for(s.heads.size(), [&](int64_t i, int) {
      std::memcpy(s.heads[i].blocks[full], from.heads[i].blocks[full], block_bytes_of(i));
    });
  s.n_tokens = n_tokens;
  if (!s.states.empty()) s.states.back().kind = Checkpoint::TURN;  // as Marks::of_fork
  keep_states(s);
  return s;
}

void HostKv::make_own(SequenceKv& s, int64_t first, int64_t last) {
  for (size_t i = 0; i < s.heads.size(); ++i)
    for (int64_t b = first; b < last; ++b) {
      std::byte*& block = s.heads[i].blocks[b];
      if (!block || !store_.shared(block)) continue;
      std::byte* own = store_.take(block_bytes_of(i));
      std::memcpy(own, block, block_bytes_of(i));
      store_.give_back(block);
      block = own;
    }
}

void HostKv::destroy(SequenceKv& s) {
  for (HeadKv& h : s.heads)
    for (std::byte* block : h.blocks)
      if (block) store_.give_back(block);
  drop_next_states(s);
  for (const StateAt& state : s.states) give_back(state);
  s.states.clear();
  s.heads.clear();
  s.selection.reset();
  s.n_tokens = 0;
}

// A step writes to the newest block, which all layers keep.
void HostKv::reserve(SequenceKv& s, int64_t n_tokens) { reserve_prompt(s, n_tokens, s.marks); }

void HostKv::reserve_prompt(SequenceKv& s, int64_t n_tokens, const Marks& marks) {
  const size_t want = shape_.in_blocks(n_tokens);
  try {
    // The block to write next may be shared: it was full when it was shared, and has been cut
    // since.
    if (n_tokens > s.n_tokens)
      make_own(s, s.n_tokens / shape_.block_size(), shape_.in_blocks(s.n_tokens));
    for (size_t i = 0; i < s.heads.size(); ++i) {
      HeadKv& h = s.heads[i];
      const int layer = shape_.layer_of(static_cast<int64_t>(i));
      while (h.blocks.size() < want) {
        const auto block = static_cast<int64_t>(h.blocks.size());
        h.blocks.reserve(h.blocks.size() + 1);
        const bool keeps = shape_.keeps(layer, block, n_tokens, marks);
        h.blocks.push_back(keeps ? store_.take(shape_.block_bytes(layer)) : nullptr);
      }
    }
  } catch (...) {
    truncate(s, s.n_tokens);
    throw;
  }
}

void HostKv::drop(SequenceKv& s, int layer, int64_t first, int64_t last, const Leaving& leaving) {
  for (int64_t b = first; b < last; ++b) {
    if (shape_.keeps(layer, b, s.n_tokens, s.marks)) continue;
    for (int i = 0; i < shape_.heads(layer); ++i) {
      std::byte*& block = head(s, layer, i).blocks[b];
      if (!block) continue;
      if (store_.held_once(block)) leaving(block);
      store_.give_back(block);
      block = nullptr;
    }
  }
}

// Earlier than the window of its old end, a layer holds only the blocks that the old marks keep.
void HostKv::commit_prompt(SequenceKv& s, int64_t n_tokens, const Marks& marks,
                           const Leaving& leaving) {
  const int64_t before = s.n_tokens;
  const Marks old = s.marks;
  s.n_tokens = n_tokens;
  s.marks = marks;
  for (int layer = 0; layer < shape_.n_layers(); ++layer) {
    if (shape_.window(layer) == 0) continue;
    for (const int64_t mark : old)
      drop(s, layer, shape_.first_kept(layer, mark), shape_.in_blocks(mark), leaving);
    drop(s, layer, shape_.first_kept(layer, before), shape_.in_blocks(before), leaving);
  }
  keep_states(s);
}

void HostKv::drop_passed(SequenceKv& s, const Leaving& leaving) {
  for (int layer = 0; layer < shape_.n_layers(); ++layer)
    if (shape_.window(layer) > 0)
      drop(s, layer, shape_.first_kept(layer, s.n_tokens - 1), shape_.first_kept(layer, s.n_tokens),
           leaving);
  keep_states(s);
}

// All heads of a layer hold the same blocks, so one head is enough.
int64_t HostKv::blocks_held(const SequenceKv& s, int layer, int64_t first, int64_t last) const {
  if (shape_.heads(layer) == 0) return 0;
  const std::vector<std::byte*>& blocks = head(s, layer, 0).blocks;
  return shape_.heads(layer) *
         std::count_if(blocks.begin() + first, blocks.begin() + last,
                       [](const std::byte* block) { return block != nullptr; });
}

int64_t HostKv::reach(const SequenceKv& s, int64_t n_tokens) const {
  std::vector<int64_t> states;
  for (const StateAt& state : s.states) states.push_back(state.n_tokens);
  return shape_.reach(
      n_tokens, [&](int layer, int64_t b) { return head(s, layer, 0).blocks[b] != nullptr; },
      states);
}

void HostKv::forget(SequenceKv& s, int layer, int64_t first, int64_t last) {
  for (int h = 0; h < shape_.heads(layer); ++h)
    for (int64_t b = first; b < last; ++b) {
      std::byte*& block = head(s, layer, h).blocks[b];
      if (block) store_.give_back(block);
      block = nullptr;
    }
}

void HostKv::truncate(SequenceKv& s, int64_t n_tokens) {
  const size_t keep = shape_.in_blocks(n_tokens), full = n_tokens / shape_.block_size();
  s.marks.cut(n_tokens);
  for (size_t i = 0; i < s.heads.size(); ++i) {
    HeadKv& h = s.heads[i];
    while (h.blocks.size() > keep) {
      if (h.blocks.back()) store_.give_back(h.blocks.back());
      h.blocks.pop_back();
    }
    if (h.bound_factor.size() > full) {
      h.bound_factor.resize(full);
      h.digests.resize(full * digest_stride(s.spec, shape_.layer_of(static_cast<int64_t>(i))));
    }
  }
  if (s.selection) s.selection->truncate(n_tokens);
  s.n_tokens = n_tokens;
  drop_next_states(s);
  keep_states(s);
}

void HostKv::adopt(SequenceKv& s, int64_t n_tokens, const Marks& marks,
                   std::span<const MappedBlocks> blocks, const std::shared_ptr<const void>& owner) {
  try {
    for (HeadKv& h : s.heads) h.blocks.reserve(shape_.in_blocks(n_tokens));
    for (const MappedBlocks& m : blocks)
      store_.adopt(m.data, shape_.block_bytes(m.layer), m.stride * shape_.heads(m.layer), owner);
  } catch (...) {
    store_.drop_unheld();
    throw;
  }
  for (HeadKv& h : s.heads) h.blocks.assign(shape_.in_blocks(n_tokens), nullptr);
  for (const MappedBlocks& m : blocks)
    for (int64_t b = m.first; b < m.first + m.n; ++b) {
      if (!shape_.keeps(m.layer, b, n_tokens, marks)) continue;
      for (int h = 0; h < shape_.heads(m.layer); ++h) {
        const std::byte* block =
            m.data + (h * m.stride + b - m.first) * shape_.block_bytes(m.layer);
        head(s, m.layer, h).blocks[b] = const_cast<std::byte*>(block);
        store_.share(head(s, m.layer, h).blocks[b]);
      }
    }
  store_.drop_unheld();  // extents that keep nothing
}

void HostKv::enter(SequenceKv& s, int64_t n_tokens, const Marks& marks) {
  s.n_tokens = n_tokens;
  s.marks = marks;
  keep_states(s);
  if (whole_) build_digests(s, n_tokens);
}

void HostKv::build_digests(SequenceKv& s, int64_t n_tokens, int layer) {
  const size_t full = n_tokens / shape_.block_size();
  const size_t first = layer < 0 ? 0 : shape_.first_head(layer);
  const size_t count = layer < 0 ? s.heads.size() : shape_.heads(layer);
  const auto stride_of = [&](size_t head) {
    return digest_stride(s.spec, shape_.layer_of(static_cast<int64_t>(head)));
  };
  for (size_t i = 0; s.spec.kept && i < count; ++i) {  // operations that can fail come first
    if (!selects_head(first + i)) continue;
    s.heads[first + i].digests.reserve(full * stride_of(first + i));
    s.heads[first + i].bound_factor.reserve(full);
  }
  threads_->parallel_for(count, [&](int64_t i, int) {
    const int at = shape_.layer_of(static_cast<int64_t>(first) + i);
    if (!shape_.selects(at)) return;
    HeadKv& h = s.heads[first + i];
    if (s.selection)
      s.selection->add_blocks(
          at, static_cast<int>(static_cast<int64_t>(first) + i - shape_.first_head(at)),
          static_cast<int>(full), h.blocks.data());
    const size_t old = h.bound_factor.size();
    if (old >= full || !s.spec.kept) return;
    const int64_t stride = stride_of(first + i);
    const BlockLayout layout = shape_.layout(at);
    h.digests.resize(full * stride);
    h.bound_factor.resize(full);
    for (size_t b = old; b < full; ++b)
      h.bound_factor[b] = kernels_->attention.digest_build(
          h.blocks[b], layout.type, layout.block_size, layout.head_dim, s.spec.kind,
          s.spec.with_mean, h.digests.data() + b * stride);
  });
}

void HostKv::change_digests(SequenceKv& s, const DigestSpec& spec) {
  if (s.spec == spec) return;
  const size_t blocks = s.n_tokens / shape_.block_size();
  for (size_t i = 0; i < s.heads.size(); ++i) {  // operations that can fail come first
    if (!selects_head(i)) continue;
    const int layer = shape_.layer_of(static_cast<int64_t>(i));
    s.heads[i].digests.reserve(blocks * digest_stride(spec, layer));
    s.heads[i].bound_factor.reserve(blocks);
  }
  for (HeadKv& h : s.heads) {
    h.digests.clear();
    h.bound_factor.clear();
  }
  s.spec = spec;
  build_digests(s, s.n_tokens);
}

void HostKv::begin_working_set(SequenceKv& s, int window) const {
  if (s.working_set && s.working_set->window() != window) s.working_set.reset();
  if (window == 0) return;
  if (!s.working_set)
    s.working_set = std::make_unique<WorkingSet>(s.heads.size(), s.max_blocks, window);
  s.working_set->begin_step(s.n_tokens);
}

void HostKv::renew_digests(SequenceKv& s) {
  for (HeadKv& h : s.heads) {
    h.digests.clear();
    h.bound_factor.clear();
  }
  s.selection.reset();
  if (whole_) build_digests(s, s.n_tokens);
}

}  // namespace riffle
