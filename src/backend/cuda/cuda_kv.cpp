#include "backend/cuda/cuda_kv.h"

#include <algorithm>

#include "backend/cuda/host_driven.h"
#include "util/error.h"

namespace riffle::cuda {

SequenceBytes sequence_bytes(const KvShape& shape, const DigestSpec& spec, int lookup,
                             int64_t max_blocks) {
  const uint64_t entries = shape.heads() * max_blocks,
                 indexed = std::max<int64_t>(1, shape.index_rows()) * max_blocks;
  const BlockLayout index = shape.layout(shape.index_layer());
  SequenceBytes b;
  b.page_table = entries * sizeof(int32_t);
  b.host_table = entries * sizeof(std::byte*);
  b.last_use = entries * sizeof(uint32_t);
  b.tails = shape.tails_bytes();
  b.expected = (1 + lookup) * shape.rows() * sizeof(int32_t);
  b.digests = indexed * spec.vectors() * index.head_dim * 2;
  b.bound_factor = indexed * sizeof(float);
  b.entries = indexed;
  return b;
}

uint64_t kept_bytes(const Config& c, const KvShape& shape, const StepSelection& selection,
                    int64_t max_blocks) {
  return std::max(1, shape.choices()) *
         selection.kept_bytes(c.q_width(shape.index_layer()), max_blocks);
}

MemoryList session_list(const Config& c, const KvShape& shape, const DigestSpec& spec,
                        const StepSelection& selection, int lookup, int64_t n_ctx) {
  const int64_t blocks = shape.in_blocks(n_ctx);
  const SequenceBytes b = sequence_bytes(shape, spec, lookup, blocks);
  MemoryList list;
  const auto add = [&](const char* name, uint64_t bytes) {
    add_to(list, MemoryUse::DIGESTS, name, DeviceHeap::rounded(bytes));
  };
  add("digests of blocks", b.digests);
  if (spec.kept) add("digests of blocks", b.bound_factor);
  // Each session may have two page tables: its own, and one from an ended session that it was
  // forked from.
  for (int table = 0; table < 2; ++table) add("page tables", b.page_table);
  add("addresses of host blocks", b.host_table);
  // Planned even if working sets are not counted.
  add("stamps of last use", b.last_use);
  const BlockLayout index = shape.layout(shape.index_layer());
  add("key codes", b.entries * code_bytes(selection.codes(), index.block_size, index.head_dim));
  add("last selections", kept_bytes(c, shape, selection, blocks));
  add("newest blocks", b.tails);
  add("last selections", b.expected);
  for (int i = 0; i < 2; ++i)
    add_to(list, MemoryUse::ACTIVATIONS, "recurrent states",
           DeviceHeap::rounded(device_states_bytes(c, shape, lookup)));
  return list;
}

KvLayout device_layout(const BlockLayout& l) {
  KvLayout layout;
  layout.type = static_cast<KvType>(l.type);
  layout.block_size = l.block_size;
  layout.head_dim = l.head_dim;
  layout.block_bytes = static_cast<int64_t>(l.bytes());
  layout.value_offset = static_cast<int64_t>(l.value_offset());
  return layout;
}

std::array<uint64_t, 2> CudaKv::copy_bytes(const KvShape& shape, int64_t blocks) {
  int64_t most = shape.heads();
  for (int layer = 0; layer < shape.n_layers(); ++layer)
    most = std::max(most, blocks * shape.heads(layer));
  const uint64_t bytes = sizeof(Copy) * most;
  return {bytes, bytes};
}

uint64_t CudaKv::table_bytes() {
  return DeviceHeap::rounded(kMaxTables * sizeof(int32_t*)) +
         DeviceHeap::rounded(victims_scratch_bytes());
}

CudaKv::CudaKv(const Config& config, const DeviceInfo& device, DeviceHeap* heap, Stream* compute,
               HostKv* host, PinnedSlabs* slabs, const BackendOptions& options)
    : KvStore(host),
      config_(config),
      device_(device),
      heap_(heap),
      compute_(compute),
      slabs_(slabs),
      evict_(options.evict()),
      host_mem_(options.options.host_mem),
      per_layer_(options.options.pool_per_layer),
      must_pin_(options.options.residency == ResidencyKind::DEVICE || !has_host_driven() ||
                !host->shape().uneven().empty() || !beyond_papers(config).empty()),
      block_size_(host->shape().block_size()),
      lookup_(options.rows_ahead) {
  const int64_t n_slots = options.slots;
  // The tokens that a step computes ahead end with a block, so a checkpoint is never among them,
  // and its copy takes no kept input from a token that may still be accepted.
  if (has_states() && Checkpoints::kApart % block_size_ != 0)
    fail(RIFFLE_INTERNAL, "blocks of %lld tokens do not divide %lld",
         static_cast<long long>(block_size_), static_cast<long long>(Checkpoints::kApart));
  for (int layer = 0; layer < shape().n_layers(); ++layer)
    layouts_.push_back(device_layout(shape().layout(shape().source(layer))));
  for (const bool indexed : {false, true})
    for (const KvShape::HeadRun& run : shape().runs(indexed))
      (indexed ? seal_indexed_ : seal_runs_)
          .push_back({run.first_head, run.n_heads,
                      static_cast<int64_t>(shape().tail_at(run.first_head)),
                      indexed ? shape().index_row(run.layer) : 0, layouts_[run.layer]});
  place_prompt_layers(options.options.n_ctx);
  lent_slots_ = options.lent_slots;
  prompt_bytes_ = layer_room_ + options.prompt_bytes;
  if (lent_slots_ == 0) own_prompt_ = heap->take(prompt_bytes_, "memory for prompts");
  session_host_bytes_ = shape().most_bytes(options.options.n_ctx);

  pool_.slot_bytes = static_cast<int64_t>(shape().largest_block());
  slots_ = heap->take(n_slots * pool_.slot_bytes, "the slot pool");
  words_ = heap->take(size_t(n_slots) * sizeof(unsigned long long), "the slot pool's table");
  victims_ = heap->take(size_t(n_slots) * sizeof(int32_t), "the slot pool's table");
  tables_ = heap->take(kMaxTables * sizeof(int32_t*), "the slot pool's table");
  counters_ = heap->take(4 * sizeof(int32_t), "the slot pool's table");
  victims_scratch_ = heap->take(victims_scratch_bytes(), "the slot pool's table");
  pool_.slots = slots_.as<std::byte>();
  pool_.n_slots = n_slots;
  pool_.words = words_.as<unsigned long long>();
  pool_.page_tables = tables_.as<int32_t*>();
  pool_.victims = victims_.as<int32_t>();
  pool_.n_victims = counters_.as<int32_t>();
  pool_.next_victim = counters_.as<int32_t>() + 1;
  pool_.now = counters_.as<uint32_t>() + 2;
  pool_.n_usable = counters_.as<int32_t>() + 3;
  check(cudaMemsetAsync(tables_.data(), 0, tables_.size(), *compute_), "clearing the page tables");
  reset_pool();
  if (why_host_residency(options.options)) use_slot_pool();
}

void CudaKv::use_slot_pool() {
  if (!has_host_driven())
    fail(RIFFLE_UNSUPPORTED,
         "the host cannot decide which blocks are in GPU memory: this build of riffle lacks "
         "host-driven attention");
  // Lent slots cannot be taken back from the host's pool, so it never has them.
  slot_pool_ = std::make_unique<SlotPool>(pool_.n_slots - lent_slots_, evict_,
                                          per_layer_ ? config_.n_layers : 1);
}

void CudaKv::reset_pool() {
  steps_ = 0;
  if (in_place()) return;
  const std::vector<unsigned long long> words(pool_.n_slots, kFreeWord);
  check(cudaMemcpyAsync(pool_.words, words.data(), words.size() * sizeof(words[0]),
                        cudaMemcpyHostToDevice, *compute_),
        "clearing the slot pool");
  check(cudaMemsetAsync(counters_.data(), 0, counters_.size(), *compute_),
        "clearing the slot pool");
  for (PageTable* t : page_tables_.alive())
    check(cudaMemsetAsync(t->entries.data(), 0xff, t->entries.size(), *compute_),
          "clearing a page table");
  lend(prompt_memory_.is_open());
  compute_->wait("clearing the slot pool");
}

void CudaKv::lend(bool lent) {
  check(lend_slots(pool_, pool_.n_slots - (lent ? lent_slots_ : 0), *compute_), "lending slots");
}

void CudaKv::age_pool() {
  if (in_place()) return;
  check(select_victims(pool_, victims_scratch_.data(), *compute_), "sorting slots by last use");
}

StepSequence CudaKv::describe(const SequenceKv& s, int ahead) const {
  const CudaSequence& d = on_device(s);
  StepSequence out;
  out.n_tokens = static_cast<int32_t>(s.n_tokens + ahead + 1);
  out.table = d.own->index;
  out.prefix_table = d.prefix ? d.prefix->index : 0;
  out.prefix_blocks = static_cast<int32_t>(d.prefix_blocks);
  out.max_blocks = d.max_blocks;
  out.host = d.host_table.as<std::byte*>();
  out.digests = d.digests.as<uint16_t>();
  out.vectors = s.spec.vectors();
  out.bound_factor = d.bound_factor.as<float>();
  out.codes = d.codes.as<std::byte>();
  out.kept = d.kept.as<std::byte>();
  out.tail = d.tails.as<std::byte>();
  out.expected = d.expected.as<int32_t>() + ahead * shape().rows();
  out.last_use = d.last_use.as<uint32_t>();
  if (has_states()) describe_states(d, out);
  out.row = ahead;
  return out;
}

SequenceKv CudaKv::create(int64_t n_ctx, const DigestSpec& spec) {
  const DeviceScope on(device_.ordinal);
  SequenceKv s = host_->create(n_ctx, spec);
  open(s, n_ctx);
  return s;
}

Buffer CudaKv::take_entries(int32_t index, int64_t max_blocks) {
  Buffer buffer = heap_->take(bytes_of({}, max_blocks).page_table, "a session's page table");
  int32_t* at = buffer.as<int32_t>();
  check(cudaMemsetAsync(at, 0xff, buffer.size(), *compute_), "clearing a page table");
  check(
      cudaMemcpyAsync(pool_.page_tables + index, &at, sizeof at, cudaMemcpyHostToDevice, *compute_),
      "entering a page table");
  compute_->wait("entering a page table");
  return buffer;
}

void CudaKv::forget(const PageTable& table, int64_t max_blocks, int64_t first) {
  if (streamed()) return;
  check(riffle::cuda::forget_blocks(pool_, table.index, table.entries.as<int32_t>(),
                                    shape().heads(), max_blocks, first, *compute_),
        "forgetting blocks");
}

// If the device is lost, so are its blocks.
void CudaKv::finish(const PageTable& table, int64_t max_blocks) noexcept {
  try {
    forget(table, max_blocks, 0);
  } catch (const Error&) {
  }
  cudaStreamSynchronize(*compute_);
  cudaGetLastError();
}

// Makes the device's data of a sequence. If it throws, none of it is left.
void CudaKv::open(SequenceKv& s, int64_t n_ctx) {
  auto d = std::make_unique<CudaSequence>();
  d->max_blocks = shape().in_blocks(n_ctx);
  const SequenceBytes bytes = bytes_of(s.spec, d->max_blocks);
  d->host_table = heap_->take(bytes.host_table, "a session's table of host blocks");
  d->digests = heap_->take(bytes.digests, "a session's digests");
  if (s.spec.kept) d->bound_factor = heap_->take(bytes.bound_factor, "a session's digests");
  d->tails = heap_->take(bytes.tails, "a session's newest blocks");
  d->expected = heap_->take(bytes.expected, "a session's history");
  d->addresses =
      riffle::cuda::pinned(s.heads.size() * sizeof(std::byte*), "a session's new blocks");
  if (has_states()) open_states(d->states);
  sequences_.reserve(sequences_.size() + 1);
  check(cudaMemsetAsync(d->expected.data(), 0, d->expected.size(), *compute_),
        "clearing a session's history");
  check(cudaMemsetAsync(d->tails.data(), 0, d->tails.size(), *compute_),
        "clearing a session's blocks");
  page_tables_.make(*d);  // and waits
  sequences_.push_back(d.get());
  s.device = std::move(d);
}

SequenceKv CudaKv::fork(SequenceKv& from, int64_t n_tokens, int64_t n_ctx) {
  const DeviceScope on(device_.ordinal);
  CudaSequence& f = on_device(from);
  const int64_t block = n_tokens / block_size_;
  flush_.wait("flushing KV");
  compute_->wait("flushing KV");  // full blocks are on their way to the host
  if (f.tail_here && n_tokens % block_size_ != 0 && block == from.n_tokens / block_size_)
    move_tails(from, true);
  if (n_tokens == from.n_tokens) settle_states(from);
  SequenceKv s = host_->fork(from, n_tokens, n_ctx);
  try {
    open(s, n_ctx);
  } catch (...) {
    host_->destroy(s);
    throw;
  }
  try {
    if (!streamed()) page_tables_.share(f, on_device(s), block);
    copy_index(from, s);
    learn_addresses(s);
    compute_->wait("forking a session");
  } catch (...) {
    destroy(s);
    throw;
  }
  return s;
}

void CudaKv::settle(SequenceKv& s) {
  const DeviceScope on(device_.ordinal);
  flush_.wait("flushing KV");
  compute_->wait("flushing KV");  // full blocks are on their way to the host
  CudaSequence& d = on_device(s);
  if (d.tail_here && s.n_tokens % block_size_ != 0) move_tails(s, true);
  settle_states(s);
  forget_kept(d);
}

// reserve has entered the addresses.
void CudaKv::enter(SequenceKv& s, int64_t n_tokens, const Marks& marks) {
  const DeviceScope on(device_.ordinal);
  host_->enter(s, n_tokens, marks);
  if (s.spec.kept) build_all_digests(s, s.spec);
}

void CudaKv::destroy(SequenceKv& s) {
  CudaSequence& d = on_device(s);
  if (reading_ == &d) reading_ = nullptr;
  // Nothing may be on its way to or from this memory. Errors are ignored: they mean that the device
  // is lost, and its blocks with it.
  cudaStreamSynchronize(flush_);
  cudaStreamSynchronize(*compute_);
  cudaGetLastError();
  drop_from_slot_pool(s, 0);
  try {
    const DeviceScope on(device_.ordinal);
    page_tables_.end(d);
  } catch (const Error&) {
  }
  page_tables_.end(d);  // in case DeviceScope has thrown
  sequences_.erase(std::find(sequences_.begin(), sequences_.end(), &d));
  s.device.reset();
  host_->destroy(s);
}

void CudaKv::drop_from_slot_pool(const SequenceKv& s, int64_t from_block) {
  if (!streamed()) return;
  for (const HeadKv& h : s.heads)
    for (size_t b = from_block; b < h.blocks.size(); ++b)
      if (h.blocks[b] && host_->held_once(h.blocks[b])) leave(h.blocks[b]);
}

// A pool that the device manages names blocks by their place in a sequence, not by their address.
// So nothing is done there: no step asks for a block that a window has passed, its slot becomes a
// victim like any unused one, and a cut forgets a place before another block gets it.
void CudaKv::leave(const std::byte* block) {
  if (streamed()) slot_pool_->drop(block_key(block));
}

// The block that will be written next may be in the host's pool because another sequence held it
// too.
void CudaKv::drop_next(const SequenceKv& s) {
  const size_t block = s.n_tokens / block_size_;
  for (const HeadKv& h : s.heads)
    if (block < h.blocks.size() && h.blocks[block]) slot_pool_->drop(block_key(h.blocks[block]));
}

void CudaKv::reserve(SequenceKv& s, int64_t n_tokens, const Marks& marks) {
  const DeviceScope on(device_.ordinal);
  CudaSequence& d = on_device(s);
  page_tables_.make(d);
  host_->reserve_prompt(s, n_tokens, marks);
  if (streamed() && d.known_blocks <= s.n_tokens / block_size_) drop_next(s);
  learn_addresses(s);
  // Locking a slab takes longer than a step, so the next slab is prepared when the last is half
  // used.
  const uint64_t taken = slabs_->taken_bytes(), slab = std::max<uint64_t>(slabs_->slab_bytes(), 1);
  uint64_t most = sequences_.size() * session_host_bytes_;
  if (host_mem_) most = std::min(most, host_mem_);
  if (taken > 0 && taken - host_->host_bytes() < slab / 2 && taken < most)
    slabs_->lock_ahead(slab, 1);
}

void CudaKv::expect(int64_t more) {
  const uint64_t slab = slabs_->slab_bytes(), taken = slabs_->taken_bytes();
  uint64_t bytes = host_->host_bytes() + more;
  if (host_mem_) bytes = std::min(bytes, host_mem_);
  if (bytes > taken) slabs_->lock_ahead(slab, (bytes - taken + slab - 1) / slab);
}

void CudaKv::learn_addresses(SequenceKv& s) {
  CudaSequence& d = on_device(s);
  const int64_t blocks = static_cast<int64_t>(s.heads[0].blocks.size()), first = d.known_blocks,
                n = blocks - first;
  if (n <= 0) return;
  std::vector<std::byte*> many;
  std::byte** addresses = d.addresses.as<std::byte*>();
  if (n == 1) {
    // A step's addresses go through pinned memory, so that no thread waits. Earlier ones have
    // usually arrived long ago.
    if (const cudaError_t status = cudaEventQuery(d.entered); status != cudaSuccess) {
      if (status != cudaErrorNotReady) check(status, "entering host blocks");
      cudaGetLastError();
      ++event_waits_;
      check(cudaEventSynchronize(d.entered), "entering host blocks");
    }
  } else {
    many.resize(s.heads.size() * n);
    addresses = many.data();
  }
  for (size_t h = 0; h < s.heads.size(); ++h)
    std::copy_n(s.heads[h].blocks.begin() + first, n, addresses + h * n);
  slabs_->add_unlocked(addresses, s.heads.size() * n, d.unlocked);
  check(cudaMemcpy2DAsync(d.host_table.as<std::byte*>() + first, d.max_blocks * sizeof(std::byte*),
                          addresses, n * sizeof(std::byte*), n * sizeof(std::byte*), s.heads.size(),
                          cudaMemcpyHostToDevice, *compute_),
        "entering host blocks");
  if (n == 1) d.entered.record(*compute_);
  else compute_->wait("entering host blocks");
  d.known_blocks = blocks;
}

void CudaKv::truncate(SequenceKv& s, int64_t n_tokens) {
  const DeviceScope on(device_.ordinal);
  if (reading_ == s.device.get()) reading_ = nullptr;
  CudaSequence& d = on_device(s);
  const int64_t block = n_tokens / block_size_;
  flush_.wait("flushing KV");
  if (block != s.n_tokens / block_size_) d.tail_here = false;
  drop_from_slot_pool(s, block);
  page_tables_.cut(d, block);
  forget_kept(d);
  compute_->wait("forgetting blocks");
  d.states.ended = -1;
  if (n_tokens != s.n_tokens) d.states.n_tokens = -1, d.states.replayed = 0;
  host_->truncate(s, n_tokens);
  d.known_blocks =
      std::min(d.known_blocks, block);  // the last address may still change: HostKv::make_own
}

// Moves the newest blocks of all layers and heads from the tails to the host store, or back.
void CudaKv::move_tails(SequenceKv& s, bool to_host) {
  CudaSequence& d = on_device(s);
  const int64_t block = s.n_tokens / block_size_;
  const auto copy = [&](int64_t head) {
    std::byte* tail = d.tails.as<std::byte>() + shape().tail_at(head);
    std::byte* host = s.heads[head].blocks[block];
    return to_host ? Copy{tail, host} : Copy{host, tail};
  };
  std::vector<std::byte*>
      unlocked;  // slabs of these sequences only: a prompt that was just begun may have many more
  for (const HeadKv& h : s.heads) slabs_->add_unlocked(&h.blocks[block], 1, unlocked);
  const bool locked = slabs_->wait(unlocked);
  for (const SealRun& run : seal_runs_) {
    host_copies_.clear();
    for (int64_t i = 0; i < run.n_heads; ++i) host_copies_.push_back(copy(run.first_head + i));
    if (locked) {
      run_gather(run.layout.block_bytes, *compute_);
      continue;
    }
    for (const Copy& c : host_copies_)
      check(cudaMemcpyAsync(c.dst, c.src, run.layout.block_bytes, cudaMemcpyDefault, *compute_),
            "moving newest blocks");
  }
  compute_->wait("moving newest blocks");
  (to_host ? counters.flushed_bytes : counters.loaded_bytes) += shape().tails_bytes();
}

void CudaKv::park(SequenceKv& s) {
  CudaSequence& d = on_device(s);
  if (d.tail_here && s.n_tokens % block_size_ != 0) move_tails(s, true);
  d.tail_here = false;
}

std::string CudaKv::why_not_pinned() const {
  if (slabs_->refuses()) return "`pin` is off";
  return format("the system does not let riffle pin %.1f MiB of host memory (%s)",
                double(host_->host_bytes()) / (1 << 20), slabs_->failed().c_str());
}

// If the system has refused to pin memory, the host decides residency. With must_pin_ a refusal is
// an error.
void CudaKv::learn_pinning() {
  if (pinned() || slabs_->refuses()) return;
  if (const std::string uneven = shape().uneven(); !uneven.empty())
    fail(RIFFLE_OUT_OF_MEMORY,
         "%s, but device cuda needs pinned memory for a model whose layers differ (%s): set "
         "`device` to cpu",
         why_not_pinned().c_str(), uneven.c_str());
  if (const std::string beyond = beyond_papers(config_); !beyond.empty())
    fail(RIFFLE_OUT_OF_MEMORY,
         "%s, but device cuda needs pinned memory for a model with %s: set `device` to cpu",
         why_not_pinned().c_str(), beyond.c_str());
  if (!has_host_driven())
    fail(RIFFLE_OUT_OF_MEMORY,
         "%s, but this build of riffle needs pinned memory on device cuda: set `device` to cpu",
         why_not_pinned().c_str());
  if (must_pin_)
    fail(RIFFLE_OUT_OF_MEMORY,
         "%s, but `residency` device needs pinned memory: set `residency` to auto or host",
         why_not_pinned().c_str());
  if (notice_.empty()) notice_ = why_not_pinned() + ": blocks are copied one by one, which is slow";
  if (!streamed()) use_slot_pool();
}

// One slab is locked in 20 ms. A prompt's others are locked while it is being read.
void CudaKv::try_pinning(SequenceKv& s) {
  CudaSequence& d = on_device(s);
  if (!d.unlocked.empty() && pinned() && slabs_->pinned_bytes() == 0) {
    std::vector<std::byte*> first(1, d.unlocked.front());
    slabs_->wait(first);
  }
  learn_pinning();
}

void CudaKv::activate(SequenceKv* const* sequences, size_t n) {
  const DeviceScope on(device_.ordinal);
  // Slabs that were promised to a prompt may not be locked yet. A step waits only for its own
  // sequences' slabs.
  for (size_t i = 0; i < n; ++i) slabs_->wait(on_device(*sequences[i]).unlocked);
  learn_pinning();
  for (size_t i = 0; i < n; ++i) {
    SequenceKv& s = *sequences[i];
    CudaSequence& d = on_device(s);
    if (d.stale) build_all_digests(s, s.spec);
    bring_states(s);
    if (d.tail_here) continue;
    if (s.n_tokens % block_size_ != 0) move_tails(s, false);
    d.tail_here = true;
  }
  if (!streamed() && ++steps_ >= kMaxStamp - 1) reset_pool();
}

// The step is over: no kernel reads the blocks that are given back.
void CudaKv::commit(SequenceKv& s) {
  advance_states(s);
  host_->drop_passed(s, [this](const std::byte* block) { leave(block); });
  if (s.n_tokens % block_size_ != 0) return;
  const DeviceScope on(device_.ordinal);
  CudaSequence& d = on_device(s);
  Seal seal;
  seal.sequence = describe(s);
  seal.digests = s.spec.kept ? d.digests.as<uint16_t>() : nullptr;
  seal.bound_factor = d.bound_factor.as<float>();
  seal.codes = d.codes.as<std::byte>();
  seal.kind = d.kind;
  seal.block = s.n_tokens / block_size_ - 1;
  seal.runs = seal_runs_.data();
  seal.n_runs = static_cast<int>(seal_runs_.size());
  seal.indexed = seal_indexed_.data();
  seal.n_indexed = static_cast<int>(seal_indexed_.size());
  seal.digest = static_cast<DigestKind>(s.spec.kind);
  seal.with_mean = s.spec.with_mean;
  if (!streamed()) seal.pool = pool_;
  seal.to_host = pinned();
  check(seal_tails(seal, *compute_), "sealing full blocks");
  if (!seal.to_host) {
    for (int64_t i = 0; i < shape().heads(); ++i)
      check(cudaMemcpyAsync(
                s.heads[i].blocks[seal.block], d.tails.as<std::byte>() + shape().tail_at(i),
                shape().block_bytes(shape().layer_of(i)), cudaMemcpyDeviceToHost, *compute_),
            "flushing KV");
    compute_->wait("flushing KV");
  }
  counters.flushed_bytes += shape().tails_bytes();
  d.tail_here = false;
}

}  // namespace riffle::cuda
