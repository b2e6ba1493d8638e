#include "backend/cuda/papers/streamed_attention.h"

#include <algorithm>
#include <thread>

#include "util/error.h"

namespace riffle::cuda {

static constexpr int kRankAhead = 8;  // microbatches ranked at a time

StreamedAttention::StreamedAttention(const Config& config, const DeviceInfo& device,
                                     DeviceHeap* heap, Stream* compute, CudaKv* kv)
    : config_(config), device_(device), heap_(heap), compute_(compute), kv_(kv) {
  flag_ = pinned(sizeof(uint32_t), "the stop flag");
  *flag_.as<uint32_t>() = 0;
}

void StreamedAttention::reserve(const DecodeStep& step, const Batching& batching) {
  const size_t rows = config_.n_kv_heads;
  const int regions = batching.regions();
  const auto device = [&](Buffer& b, size_t bytes) {
    if (b.size() >= bytes) return;
    if (b.size() > 0) compute_->wait("attention's scratch");
    b = Buffer();
    b = heap_->take(bytes, "attention's scratch");
  };
  const auto host = [&](Buffer& b, size_t bytes) {
    if (b.size() < bytes) b = pinned(bytes, "attention's staging");
  };
  const std::vector<uint64_t> bytes = host_driven_buffers(step);
  Buffer* const buffers[] = {&scratch_, &order_, &counts_, &done_};
  for (size_t i = 0; i < bytes.size(); ++i) device(*buffers[i], bytes[i]);
  host(host_order_, rows * step.max_blocks * sizeof(int32_t));
  host(host_counts_, rows * 2 * sizeof(int32_t));
  widest_ = std::max(widest_, batching.widest());
  host(sources_, regions * rows * widest_ * sizeof(std::byte*));
  host(copies_, regions * rows * widest_ * sizeof(Copy));
  host(host_done_, regions * rows * sizeof(int32_t));
  while (static_cast<int>(loaded_.size()) < regions) {
    loaded_.push_back(std::make_unique<Event>());
    verified_.push_back(std::make_unique<Event>());
  }
}

void StreamedAttention::fetch_order(const StreamedStep& host, int known) {
  const size_t pitch = host.step.max_blocks * sizeof(int32_t), rows = config_.n_kv_heads;
  check(cudaMemcpy2DAsync(host_order_.data(), pitch, order_.data(), pitch, known * sizeof(int32_t),
                          rows, cudaMemcpyDeviceToHost, *compute_),
        "reading a ranking");
  compute_->wait("ranking blocks");
}

StreamedAttention::Batch StreamedAttention::issue(const StreamedStep& shared, const SequenceKv& s,
                                                  int begin, int end, int region, Counts* counts) {
  const int rows = config_.n_kv_heads,
            tail = static_cast<int>(s.n_tokens / kv_->layout(0).block_size);
  const int64_t bytes = kv_->layout(shared.step.layer).block_bytes;
  auto** sources = sources_.as<const std::byte*>() + size_t(region) * rows * widest_;
  Copy* copies = copies_.as<Copy>() + size_t(region) * rows * widest_;
  SlotPool& pool = kv_->slot_pool();
  PoolCounters& counters = kv_->counters;
  Batch batch{begin, std::min(end, n_total_), region, {}};
  int64_t n_copies = 0;
  try {
    for (int h = 0; h < rows; ++h) {
      if (done_rows_[h])
        continue;  // the kernels skip rows that are done, even if the host does not know it yet
      for (int p = begin; p < batch.end; ++p) {
        const int32_t block = block_at(shared.step, h, p);
        if (block == tail) continue;
        const SlotPool::Grant grant =
            pool.acquire(block_key(kv_->host_block(s, shared.step.layer, h, block)),
                         kv_->partition(shared.step.layer));
        if (grant.slot == SlotPool::kNone)
          fail(RIFFLE_NO_SLOT, "no slot is free in a pool of %lld",
               static_cast<long long>(pool.size()));
        batch.pinned.push_back(grant.slot);
        std::byte* slot = kv_->pool().slots + grant.slot * kv_->pool().slot_bytes;
        sources[size_t(h) * widest_ + p - begin] = slot;
        ++counts[h].lookups;
        counters.evictions += grant.evicted;
        if (grant.hit) continue;
        ++counts[h].misses;
        copies[n_copies++] = {kv_->host_block(s, shared.step.layer, h, block), slot};
      }
    }
    if (n_copies > 0 && kv_->pinned()) {
      check(gather(copies, n_copies, bytes, device_.limits.n_sm, load_), "loading blocks");
    } else {
      for (int64_t i = 0; i < n_copies; ++i)
        check(cudaMemcpyAsync(copies[i].dst, copies[i].src, bytes, cudaMemcpyHostToDevice, load_),
              "loading blocks");
    }
    loaded_[region]->record(load_);
    check(cudaStreamWaitEvent(*compute_, *loaded_[region]), "loading blocks");
    StreamedStep host = shared;
    host.sources = sources;
    host.max_positions = widest_;
    check(attend_positions(host, begin, batch.end, device_.limits, *compute_),
          "computing a step's attention");
    check(verify_rows(host, begin, batch.end, flag_.as<uint32_t>(), ++epoch_, *compute_),
          "running attention's test");
    check(cudaMemcpyAsync(host_done_.as<int32_t>() + size_t(region) * rows, done_.data(),
                          rows * sizeof(int32_t), cudaMemcpyDeviceToHost, *compute_),
          "running attention's test");
    verified_[region]->record(*compute_);
  } catch (...) {
    cudaStreamSynchronize(load_);
    cudaStreamSynchronize(*compute_);
    for (const int32_t slot : batch.pinned) pool.drop_slot(slot);
    throw;
  }
  return batch;
}

bool StreamedAttention::finish(Batch& batch) {
  const volatile uint32_t* flag = flag_.as<uint32_t>();
  cudaError_t status;
  while ((status = cudaEventQuery(*verified_[batch.region])) == cudaErrorNotReady)
    std::this_thread::yield();
  check(status, "computing a step's attention");
  SlotPool& pool = kv_->slot_pool();
  // In reverse rank order, so that the most critical block becomes the most recently used.
  for (size_t i = batch.pinned.size(); i-- > 0;) {
    const int32_t slot = batch.pinned[i];
    if (pool.state(slot) == SlotPool::State::Loading) pool.loaded(slot);
    pool.unpin(slot);
  }
  batch.pinned.clear();
  std::copy_n(host_done_.as<int32_t>() + size_t(batch.region) * config_.n_kv_heads,
              config_.n_kv_heads, done_rows_.begin());
  return *flag - first_epoch_ <=
         epoch_ - first_epoch_;  // the flag is an epoch of this layer, even if epochs wrap
}

StreamedAttention::Batching StreamedAttention::plan_batches(const DecodeStep& step,
                                                            const RankRule& rank,
                                                            const SequenceKv& s,
                                                            int lookahead) const {
  const int rows = config_.n_kv_heads;
  const int64_t room = kv_->unpinned_slots(step.layer);
  Batching batching;
  batching.progressive = rank.progressive();
  batching.ahead = batching.progressive ? lookahead + 1 : 1;
  batching.n_blocks = static_cast<int>(s.n_tokens / kv_->layout(0).block_size + 1);
  batching.most_forced =
      std::min<int>(batching.n_blocks, step.rule.sink_blocks + step.rule.recent_blocks + 1);
  batching.piece = batching.progressive
                       ? rank.test.microbatch
                       : static_cast<int>(std::min<int64_t>(batching.n_blocks, room / rows));
  const bool fits =
      room >= rows &&
      (!batching.progressive ||
       room >= int64_t(rows) * (batching.most_forced + batching.ahead * batching.piece));
  if (!fits)
    fail(
        RIFFLE_NO_SLOT, "a pool of %lld slots is too small for one iteration of this selection%s%s",
        static_cast<long long>(kv_->slots()),
        kv_->notice().empty() ? "" : "; the host drives attention because ", kv_->notice().c_str());
  return batching;
}

StreamedStep StreamedAttention::streamed_step(const DecodeStep& step, const RankRule& rank) const {
  StreamedStep host;
  host.step = step;
  host.rank = rank;
  host.step.scratch = scratch_.data();
  host.order = order_.as<int32_t>();
  host.counts = counts_.as<int32_t>();
  host.done = done_.as<int32_t>();
  host.n_active = done_.as<int32_t>() + config_.n_kv_heads;
  return host;
}

void StreamedAttention::rank_first(const StreamedStep& host, const Batching& batching) {
  const int known =
      batching.progressive ? batching.most_forced + kRankAhead * batching.piece : batching.n_blocks;
  check(rank_rows(host, known, device_.limits, *compute_), "ranking blocks");
  check(
      cudaMemcpyAsync(host_counts_.data(), counts_.data(), config_.n_kv_heads * 2 * sizeof(int32_t),
                      cudaMemcpyDeviceToHost, *compute_),
      "reading a ranking");
  known_ = std::min(known, batching.n_blocks);
  fetch_order(host, known_);
  n_forced_ = host_counts_.as<int32_t>()[0];
  n_total_ = host_counts_.as<int32_t>()[1];
}

void StreamedAttention::rank_up_to(int end, const StreamedStep& host, const Batching& batching) {
  if (host.step.rule.everything || end <= known_) return;
  known_ = std::min(batching.n_blocks, 2 * known_);
  check(rank_more(host, known_, device_.limits, *compute_), "ranking blocks");
  fetch_order(host, known_);
}

void StreamedAttention::run_batches(const StreamedStep& host, const SequenceKv& s,
                                    const Batching& batching, Counts* counts, uint64_t* syncs) {
  std::deque<Batch> pending;
  int next = 0, region = 0;
  bool stop = false;
  try {
    while (!stop) {
      if (next < n_total_ && static_cast<int>(pending.size()) < batching.ahead) {
        const int size =
            batching.progressive && next < n_forced_ ? n_forced_ - next : batching.piece;
        const int end = std::min(next + size, n_total_);
        rank_up_to(end, host, batching);
        pending.push_back(issue(host, s, next, end, region, counts));
        region = (region + 1) % batching.regions();
        next = end;
        continue;
      }
      if (pending.empty()) break;
      ++*syncs;
      stop = finish(pending.front());  // if this throws, the batch's pinned slots are dropped below
      pending.pop_front();
    }
    for (Batch& b : pending) finish(b);
    pending.clear();
    check(finish_rows(host, device_.limits, *compute_), "merging attention");
  } catch (...) {
    cudaStreamSynchronize(load_);
    cudaStreamSynchronize(*compute_);
    for (const Batch& b : pending)
      for (const int32_t slot : b.pinned) kv_->slot_pool().drop_slot(slot);
    throw;
  }
}

int32_t StreamedAttention::block_at(const DecodeStep& step, int head, int position) const {
  return step.rule.everything ? first_block_ + position
                              : host_order_.as<int32_t>()[head * step.max_blocks + position];
}

void StreamedAttention::attend(DecodeStep step, const StepSelection& selection, const SequenceKv& s,
                               int64_t position, int lookahead, Counts* counts, int32_t* order,
                               uint64_t* syncs) {
  // A step that reads everything has nothing to rank.
  const auto* ranked = dynamic_cast<const RankedSelection*>(&selection);
  const RankRule rank = ranked ? ranked->rank() : RankRule{};
  // The host, not the device, assigns slots and reports the blocks that were read.
  step.pool = {};
  step.order = nullptr;
  step.stamp = false;
  const Batching batching = plan_batches(step, rank, s, lookahead);
  const int64_t unseen =
      step.rule.window > 0 ? std::max<int64_t>(0, position + 1 - step.rule.window) : 0;
  first_block_ = step.rule.everything ? static_cast<int>(unseen / kv_->layout(0).block_size) : 0;
  reserve(step, batching);
  const StreamedStep host = streamed_step(step, rank);
  done_rows_.assign(config_.n_kv_heads, 0);
  rank_first(host, batching);
  first_epoch_ = epoch_ + 1;
  run_batches(host, s, batching, counts, syncs);
  for (int h = 0; order && h < config_.n_kv_heads; ++h)
    for (int p = 0; p < std::min(n_total_, known_); ++p)
      order[h * step.max_blocks + p] = block_at(step, h, p);
}

std::unique_ptr<HostDrivenAttention> make_host_driven(const Config& config,
                                                      const DeviceInfo& device, DeviceHeap* heap,
                                                      Stream* compute, CudaKv* kv) {
  return std::make_unique<StreamedAttention>(config, device, heap, compute, kv);
}
bool has_host_driven() { return true; }
std::vector<uint64_t> host_driven_buffers(const DecodeStep& step) {
  const uint64_t rows = step.n_kv_heads;
  return {streamed_scratch_bytes(step), rows * step.max_blocks * sizeof(int32_t),
          rows * 2 * sizeof(int32_t), (rows + 1) * sizeof(int32_t)};
}

}  // namespace riffle::cuda
