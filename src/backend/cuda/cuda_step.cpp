// A decode step on the device: inputs go to fixed places, the operations are launched one by one
// or, from the second time on, replayed as one graph; logits and counts come back with one
// synchronisation.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/cuda_backend.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/measure/measure.h"
#include "kernels/cuda/sample/sample.h"
#include "select/int4_keys.h"
#include "util/error.h"
#include "util/thread_pool.h"

namespace riffle::cuda {

void CudaBackend::fill_synthetic(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n,
                                 const LayerKv& kv) {
  const DeviceScope on = enter();
  check(synthetic_keys(spec, layer, pos0, n, config_.n_kv_heads, kv.base, kv.n_blocks,
                       residency_.layout(), compute_),
        "synthetic keys");
}

Ranked ranked_of(const SelectionRule& r) {
  Ranked out;
  out.everything = r.everything;
  out.sink_blocks = r.sink_blocks;
  out.recent_blocks = r.recent_blocks;
  out.progressive = r.progressive;
  out.budget = r.budget;
  out.digest = static_cast<DigestKind>(r.digest);
  out.gqa = static_cast<Gqa>(r.gqa);
  out.stop = static_cast<Stop>(r.stop);
  out.slack = r.slack;
  out.microbatch = r.microbatch;
  out.rank_codes = r.rank_codes;
  out.by_share = r.by_share;
  out.log2_share = r.log_share * 1.44269504f;
  out.share_blocks = r.share_blocks;
  out.everything_below = r.everything_below;
  out.top_p = r.top_p;
  if (r.by_vote)
    out.vote = {.select = r.select_tokens,
                .init = r.init_tokens,
                .local = r.local_tokens,
                .kind = static_cast<VoteKind>(r.vote),
                .cache_threshold = r.cache_threshold};
  return out;
}

DecodeStep CudaBackend::decode_step(int layer, const float* q, float* out) const {
  const int64_t rows = step_.n * config_.n_kv_heads;
  DecodeStep s;
  s.n = static_cast<int>(step_.n);
  s.layer = layer;
  s.n_layers = config_.n_layers;
  s.not_indexed = residency_.not_indexed(layer);
  s.n_heads = config_.n_heads;
  s.n_kv_heads = config_.n_kv_heads;
  s.max_blocks = max_blocks_;
  s.sequences = sequences_.as<StepSequence>();
  s.q = q;
  s.out = out;
  s.sinks = sinks(layer);
  s.layout = residency_.layout();
  s.overlap = overlap_;
  s.ranked = ranked_of(step_.is_dense(layer) ? dense_rule_ : rule_);
  s.ranked.window = step_.window_of(layer);
  s.pool = residency_.pool();
  s.scratch = scratch_.data();
  s.arrivals = arrivals_.as<uint32_t>();
  s.results =
      results_.as<RowResult>() + 1 + layer * rows;  // the first says whether something went wrong
  s.fault = results_.as<uint32_t>();
  s.stamp = step_.working_set > 0 && !residency_.streamed();
  if (step_.orders) s.order = orders_.as<int32_t>() + layer * rows * max_blocks_;
  if (step_.coverage) s.lse = lse_.as<float>() + int64_t(2 * layer) * step_.n * config_.n_heads;
  return s;
}

// Everything that allocates, before the operations: none of them may while a graph is captured.
void CudaBackend::grow_step_memory() {
  const int64_t n = step_.n, rows = n * config_.n_kv_heads, layers = config_.n_layers;
  const int64_t vocab = config_.vocab_size;
  grow(sequences_, n * sizeof(StepSequence), "a step's inputs");
  if (results_.size() < (1 + layers * rows) * sizeof(RowResult)) {
    grow(results_, (1 + layers * rows) * sizeof(RowResult), "a step's counts");
    check(cudaMemsetAsync(results_.data(), 0, sizeof(RowResult), compute_), "a step's counts");
  }
  grow(hidden_, n * config_.ffn_values() * sizeof(float), "a step's FFN");
  grow_experts(n);
  if (config_.post_norm) grow(products_, n * config_.dim * sizeof(float), "a step's products");
  DecodeStep sparse = decode_step(0, nullptr, nullptr);
  sparse.ranked = ranked_of(rule_);  // also where the first layers are dense
  grow(scratch_, decode_scratch_bytes(sparse), "attention's scratch");
  if (arrivals_.size() < rows * sizeof(uint32_t)) {
    grow(arrivals_, rows * sizeof(uint32_t), "attention's scratch");
    check(cudaMemsetAsync(arrivals_.data(), 0, arrivals_.size(), compute_), "attention's scratch");
  }
  if (step_.orders) grow(orders_, layers * rows * max_blocks_ * sizeof(int32_t), "row reports");
  if (step_.coverage) {
    grow(lse_, 2 * layers * n * config_.n_heads * sizeof(float), "row reports");
    grow(dense_out_, n * config_.n_heads * config_.head_dim * sizeof(float), "row reports");
  }
  const auto pin = [&](Buffer& buffer, size_t bytes) {
    if (buffer.size() >= bytes) return;
    if (buffer.size() > 0) compute_.wait("a step's staging");
    buffer = pinned(bytes, "a step's staging");
    ++growths_;
  };
  pin(host_sequences_, n * sizeof(StepSequence));
  pin(host_rows_, n * config_.dim * sizeof(float));
  pin(host_logits_, n * vocab * sizeof(float));
  pin(host_results_, (1 + layers * rows) * sizeof(RowResult));
  if (!samples_here_) return;
  grow(sample_params_, n * sizeof(SampleParams), "sampling");
  grow(sampled_, n * sizeof(int32_t), "sampling");
  grow(sample_scratch_, sample_scratch_bytes(n, vocab), "sampling");
  pin(host_params_, n * sizeof(SampleParams));
  pin(host_sampled_, n * sizeof(int32_t));
  // Memory for masks and changes is taken when the first answer has some.
  if (masked_) {
    grow(masks_, n * mask_words() * sizeof(uint32_t), "sampling");
    pin(host_masks_, n * mask_words() * sizeof(uint32_t));
  }
  const auto has_changes = [](const SampleRequest& r) { return r.n_changes > 0; };
  if (std::any_of(step_.samples, step_.samples + n, has_changes)) {
    grow(changes_, n * kMostChanges * sizeof(LogitChange), "sampling");
    pin(host_changes_, n * kMostChanges * sizeof(LogitChange));
  }
}

void CudaBackend::check_selector(const Selector& selector, const Selection& s) const {
  const SelectionRule rule = selector.rule();
  if (rule.host_only)
    fail(RIFFLE_UNSUPPORTED, "`selection.selector` %s %s: it needs device cpu or emu",
         selector.name(), rule.host_only_why);
  const char* found = why_host_residency(options_.options);
  if (!rule.needs_device_residency() || !found) return;
  fail(RIFFLE_UNSUPPORTED,
       "`selection.selector` %s%s needs the GPU to decide residency: %s; without that it runs, or "
       "with `selection.selector` psa and `selection.rank` digests, which may lose answers",
       selector.name(), s.rank == RankBy::CODES ? " with `selection.rank` codes" : "", found);
}

void CudaBackend::prepare(const Selector& selector, SequenceKv& sequence) {
  const SelectionRule rule = selector.rule();
  if (rule.codes()) residency_.require_codes(sequence);
  if (rule.by_vote) residency_.require_votes(sequence);
}

// The same while memory is pinned: the host takes over where the system refuses.
void CudaBackend::require_device_residency(const Selector& selector) const {
  if (!selector.rule().needs_device_residency() || !residency_.streamed()) return;
  fail(RIFFLE_UNSUPPORTED,
       "`selection.selector` %s needs the GPU to decide residency: %s; `selection.selector` psa "
       "with "
       "`selection.rank` digests does without, but may lose answers",
       selector.name(),
       residency_.notice().empty() ? "`residency` is host" : residency_.notice().c_str());
}

void CudaBackend::check_prompt(const Selector& selector, SequenceKv& sequence) {
  if (!selector.rule().needs_device_residency() && !residency_.must_pin())
    return;  // the host can take over
  const DeviceScope on = enter();
  residency_.try_pinning(sequence);
  require_device_residency(selector);
}

void CudaBackend::begin_step(const Step& step) {
  step_scope_.emplace(device_.ordinal);  // until end_step or abandon_step
  step_ = step;
  settle_rules(step);
  grow_step_memory();
  for (int64_t i = 0; i < step.n; ++i)
    residency_.begin_working_set(*step.sequences[i], step.working_set);
  upload_step();
}

// What the step does, and whether it can be done.
void CudaBackend::settle_rules(const Step& step) {
  rule_ = step.selector->rule();
  dense_rule_ = step.dense->rule();
  const auto few_changes = [](const SampleRequest& r) { return r.n_changes <= kMostChanges; };
  samples_here_ = step.samples != nullptr && drawable_ids_ <= kSampleMaxVocab &&
                  std::all_of(step.samples, step.samples + step.n, few_changes);
  const auto has_mask = [](const SampleRequest& r) { return r.allowed != nullptr; };
  masked_ = samples_here_ && std::any_of(step.samples, step.samples + step.n, has_mask);
  if (step.coverage && !residency_.pinned())
    fail(RIFFLE_UNSUPPORTED, "coverage cannot be measured: %s",
         residency_.why_not_pinned().c_str());
  require_device_residency(*step.selector);
  max_blocks_ = 0;
  for (int64_t i = 0; i < step.n; ++i) {
    if (rule_.progressive && rule_.stop == StopRule::VETO && !step.sequences[i]->spec.with_mean)
      fail(RIFFLE_BAD_ARGUMENT,
           "session %lld of the step has digests without the mean key, which stop mode veto needs",
           static_cast<long long>(i));
    max_blocks_ = std::max(max_blocks_, residency_.describe(*step.sequences[i]).max_blocks);
  }
}

// Copies n elements to row i of a device buffer, by way of a pinned one of the same size.
template <class T>
const T* CudaBackend::upload_row(Buffer& to, Buffer& pinned, int64_t i, int64_t row, const T* from,
                                 int64_t n) {
  T *const host = pinned.as<T>() + i * row, *const device = to.as<T>() + i * row;
  std::copy_n(from, n, host);
  check(cudaMemcpyAsync(device, host, n * sizeof(T), cudaMemcpyHostToDevice, compute_),
        "a step's inputs");
  return device;
}

// The inputs, to where a recorded step finds them. The embedding's rows stay in pinned memory until
// embed_step. Masks follow in find_masks.
void CudaBackend::upload_step() {
  auto* sequences = host_sequences_.as<StepSequence>();
  for (int64_t i = 0; i < step_.n; ++i) {
    sequences[i] = residency_.describe(*step_.sequences[i], step_.ahead_of(i));
    const bool more = i + 1 < step_.n && step_.ahead_of(i + 1) > 0;
    sequences[i].many_rows = more || step_.ahead_of(i) > 0;
  }
  check(cudaMemcpyAsync(sequences_.data(), sequences, step_.n * sizeof(StepSequence),
                        cudaMemcpyHostToDevice, compute_),
        "a step's inputs");
  if (samples_here_) {
    auto* params = host_params_.as<SampleParams>();
    for (int64_t i = 0; i < step_.n; ++i) {
      const SampleRequest& r = step_.samples[i];
      params[i] = {r.temperature, r.top_p, r.min_p, r.top_k, r.random};
      params[i].xtc_threshold = r.xtc_threshold;
      if (r.allowed) params[i].allowed = masks_.as<uint32_t>() + i * mask_words();
      if (r.n_changes == 0) continue;
      params[i].changes =
          upload_row(changes_, host_changes_, i, kMostChanges, r.changes, r.n_changes);
      params[i].n_changes = r.n_changes;
    }
    check(cudaMemcpyAsync(sample_params_.data(), params, step_.n * sizeof(SampleParams),
                          cudaMemcpyHostToDevice, compute_),
          "a step's inputs");
  }
  embedding_rows(model_.weights.embedding, step_.tokens, step_.n, host_rows_.as<float>());
}

// A launch that waits for its kernels would wait for the host's answers, which come after it.
static bool launches_block() {
  const char* const value = std::getenv("CUDA_LAUNCH_BLOCKING");
  return value && *value && std::strcmp(value, "0") != 0;
}

bool CudaBackend::replay_step() {
  if (program_ != step_.program || graph_growths_ != growths_) graphs_.clear();
  program_ = step_.program;
  graph_growths_ = growths_;
  mode_ = Mode::Eager;
  mark(Part::Other);
  if (residency_.streamed()) {
    streamed_counts_.assign(config_.n_layers * step_.n * config_.n_kv_heads, {});
    return false;
  }
  if (step_.orders || step_.coverage || profiling_) return false;
  if (options_.host_expert_layers > 0 && launches_block()) return false;
  Recorded& recorded = graphs_[graph_key()];
  if (recorded.graph) {
    mode_ = Mode::Replaying;
    calls_ = recorded.calls;
    recorded.graph.launch(compute_);
    return true;
  }
  // The first run loads kernels, which a capture must not. What could not be recorded once is not
  // tried again.
  if (recorded.runs++ == 0 || recorded.eager) return false;
  recorded.eager = true;  // until it is recorded
  check(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal), "recording a step");
  mode_ = Mode::Capturing;
  return false;
}

void CudaBackend::embed_step(const Tensor&, float* x) {
  if (!residency_.streamed()) residency_.age_pool();
  check(cudaMemcpyAsync(x, host_rows_.data(), step_.n * config_.dim * sizeof(float),
                        cudaMemcpyHostToDevice, compute_),
        "embedding");
  mark(Part::Other);
}

void CudaBackend::append_step(int layer, float* q, float* k, const float* v) {
  RopeAppendStep a;
  a.q = q;
  a.k = k;
  a.v = v;
  a.ldq = int64_t(config_.n_heads) * config_.head_dim;
  a.ldk = int64_t(config_.n_kv_heads) * config_.head_dim;
  a.n = static_cast<int>(step_.n);
  a.n_heads = config_.n_heads;
  a.n_kv_heads = config_.n_kv_heads;
  a.layer = layer;
  const int rope = config_.layers[layer].rope, query_rope = config_.query_rope(layer);
  a.cos_sin = cos_sin_[rope].as<float>();
  a.query_cos_sin = cos_sin_[query_rope].as<float>();
  a.pairs = rope_pairs(rope);
  a.sequences = sequences_.as<StepSequence>();
  a.layout = residency_.layout();
  a.overlap = overlap_;
  check(rope_append_step(a, compute_), "appending KV");
  if (step_.synthetic)
    check(synthetic_step(*step_.synthetic, layer, a.sequences, a.n, a.n_heads, a.n_kv_heads,
                         a.layout, q, a.ldq, compute_),
          "synthetic queries");
  mark(Part::Other);
}

void CudaBackend::attend_streamed(int layer, const float* q, float* out) {
  const int64_t heads = config_.n_kv_heads, width = int64_t(config_.n_heads) * config_.head_dim,
                rows = step_.n * heads;
  const bool orders = step_.orders || step_.working_set > 0;
  if (orders) host_orders_.resize(config_.n_layers * rows * max_blocks_);
  for (int64_t i = 0; i < step_.n; ++i) {
    DecodeStep s = decode_step(layer, q + i * width, out + i * width);
    s.n = 1;
    s.sequences += i;
    s.results += i * heads;
    if (s.lse) s.lse += i * config_.n_heads;
    streamed_attention_.attend(
        s, *step_.sequences[i], step_.position(i), step_.lookahead,
        streamed_counts_.data() + layer * rows + i * heads,
        orders ? host_orders_.data() + (layer * rows + i * heads) * max_blocks_ : nullptr,
        &event_waits_);
  }
  mark(Part::Attend);
}

void CudaBackend::attend_step(int layer, const float* q, float* out) {
  DecodeStep s = decode_step(layer, q, out);
  if (residency_.streamed()) {
    attend_streamed(layer, q, out);
  } else {
    for (int i = 0; profiling_ && i < 2; ++i) {
      marks_.emplace_back(std::make_unique<Event>(true), i == 0 ? Part::Score : Part::Rank);
      s.marks[i] = *marks_.back().first;
    }
    check(attend_decode(s, device_.limits, compute_), "attention of a step");
    s.marks[0] = s.marks[1] = nullptr;
    mark(Part::Attend);
  }
  if (!step_.coverage) return;
  // The whole, beside it, straight from the host store: it must not disturb the pool.
  s.ranked = {};
  s.ranked.everything = true;
  s.ranked.window = step_.window_of(layer);
  s.pool.n_slots = 0;
  s.out = dense_out_.as<float>();
  s.order = nullptr;
  s.stamp = false;
  s.lse = lse_.as<float>() + int64_t(2 * layer + 1) * step_.n * config_.n_heads;
  s.results = nullptr;
  check(attend_decode(s, device_.limits, compute_), "attention of a step");
}

void CudaBackend::fetch_results(float* logits) {
  if (step_.working_set > 0 && !residency_.streamed()) {
    WorkingSets w;
    w.n = static_cast<int>(step_.n);
    w.n_layers = config_.n_layers;
    w.n_kv_heads = config_.n_kv_heads;
    w.block_size = options_.layout.block_size;
    for (int i = 0; i < kWindows; ++i) w.windows[i] = window_steps(step_.working_set, i);
    w.sequences = sequences_.as<StepSequence>();
    w.results = results_.as<RowResult>() + 1;
    check(count_working_sets(w, compute_), "counting working sets");
  }
  check(cudaMemcpyAsync(host_logits_.data(), logits, step_.n * config_.vocab_size * sizeof(float),
                        cudaMemcpyDeviceToHost, compute_),
        "reading logits");
  check(cudaMemcpyAsync(host_results_.data(), results_.data(),
                        (1 + config_.n_layers * step_.n * config_.n_kv_heads) * sizeof(RowResult),
                        cudaMemcpyDeviceToHost, compute_),
        "reading counts");
  if (graph_draws()) draw_tokens(logits);
}

// The device is at work meanwhile.
void CudaBackend::find_masks() {
  for (int64_t i = 0; step_.samples && i < step_.n; ++i)
    if (step_.samples[i].allowed) step_.find_mask(i);
}

// Masks are copied last in the stream, after answer_calls: a driver call may block while another
// thread frees memory, and that thread waits for the device.
void CudaBackend::upload_masks() {
  for (int64_t i = 0; masked_ && i < step_.n; ++i)
    if (const uint32_t* const allowed = step_.samples[i].allowed)
      upload_row(masks_, host_masks_, i, mask_words(), allowed, mask_words());
}

void CudaBackend::draw_tokens(float* logits) {
  check(
      sample(logits, step_.n, config_.vocab_size, drawable_ids_, sample_params_.as<SampleParams>(),
             sampled_.as<int32_t>(), sample_scratch_.data(), compute_),
      "sampling");
  check(cudaMemcpyAsync(host_sampled_.data(), sampled_.data(), step_.n * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, compute_),
        "reading tokens");
}

void CudaBackend::end_step(float* logits, float* const* host, int32_t* tokens) {
  if (mode_ != Mode::Replaying) fetch_results(logits);
  if (mode_ == Mode::Capturing) {
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(compute_, &graph);
    mode_ = Mode::Eager;
    check(status, "recording a step");
    Recorded& recorded = graphs_[graph_key()];
    Graph owned(graph);
    recorded.calls = calls_;  // first: a graph without its calls would never be answered
    recorded.graph = std::move(owned);
    recorded.eager = false;
    recorded.graph.launch(compute_);
  }
  find_masks();
  answer_calls(true);
  upload_masks();
  if (masked_) draw_tokens(logits);
  compute_.wait("a decode step");
  if (*host_results_.as<uint32_t>() != 0) {
    // Cooperative launches, which no kernel of another stream can keep apart, from now on.
    overlap_ = false;
    graphs_.clear();
    fail(RIFFLE_INTERNAL,
         "attention waited for 2 s: kernels of another context or program hold a part of the GPU; "
         "the step can be tried again");
  }
  const int64_t vocab = config_.vocab_size;
  if (samples_here_) std::copy_n(host_sampled_.as<int32_t>(), step_.n, tokens);
  else if (step_.samples) std::fill_n(tokens, step_.n, kNotSampled);
  threads_->parallel_for(step_.n, [&](int64_t i, int) {
    std::copy_n(host_logits_.as<float>() + i * vocab, vocab, host[i]);
  });
  report_step();
  step_scope_.reset();
}

int64_t index_bytes(const SelectionRule& rule, const Config& config, const BlockLayout& layout,
                    int n_blocks, int64_t n_tokens) {
  const int d = config.head_dim, full = n_blocks - 1, block_size = layout.block_size;
  const int64_t code_bytes = int4_block_bytes(block_size, d), row_bytes = layout.row_bytes();
  if (rule.everything || n_tokens < rule.everything_below) return 0;
  if (rule.by_share || rule.rank_codes) {  // the tail has no codes: its keys themselves
    const int64_t stride = (full + kMeanBlocks - 1) / kMeanBlocks;
    const int64_t tail = (n_tokens - int64_t(full) * block_size) * row_bytes;
    return full * code_bytes + tail +
           (rule.by_share && full > 0 ? full / stride * d * int64_t(sizeof(uint16_t)) : 0);
  }
  if (rule.by_vote) {  // the candidates' keys
    const int64_t left = n_tokens - rule.init_tokens - rule.local_tokens;
    return left <= rule.select_tokens ? 0 : left * row_bytes;
  }
  const int sinks = std::min(rule.sink_blocks, full),
            recent = std::min(rule.recent_blocks, full - sinks);
  const int candidates = full - sinks - recent;
  int64_t codes = 0;
  if (rule.top_p > 0) {
    const double tokens = rule.budget <= 1 ? rule.budget * double(n_tokens) : rule.budget;
    const double blocks =
        rule.progressive ? n_blocks : std::min(std::ceil(tokens / block_size), double(n_blocks));
    codes = std::max(static_cast<int>(blocks) - 1, sinks + recent) * code_bytes;
    if (!rule.progressive && rule.budget == 1) return codes;
  }
  const bool mean_too = rule.progressive && rule.stop == StopRule::VETO;
  return codes + int64_t(candidates) * d *
                     ((rule.digest == BlockDigest::MEAN ? 2 : 4) + (mean_too ? 2 : 0));
}

void CudaBackend::report_step() {
  const int64_t heads = config_.n_kv_heads, rows = step_.n * heads, layers = config_.n_layers;
  const int64_t g = config_.n_heads / heads;
  if (step_.orders && !residency_.streamed()) {
    host_orders_.resize(layers * rows * max_blocks_);
    ++event_waits_;
    check(cudaMemcpy(host_orders_.data(), orders_.data(), host_orders_.size() * sizeof(int32_t),
                     cudaMemcpyDeviceToHost),
          "reading row reports");
  }
  if (step_.coverage) {
    host_lse_.resize(2 * layers * rows * g);
    ++event_waits_;
    check(cudaMemcpy(host_lse_.data(), lse_.data(), host_lse_.size() * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "reading row reports");
  }
  reports_.resize(rows);
  coverage_.resize(rows * g);
  ResidencyCounters& counters = residency_.counters;
  const auto* results = host_results_.as<RowResult>() + 1;
  for (int layer = 0; layer < layers; ++layer) {
    for (int64_t r = 0; r < rows; ++r) {
      RowResult from = results[layer * rows + r];
      if (residency_.streamed()) {
        from.lookups = streamed_counts_[layer * rows + r].lookups;
        from.misses = streamed_counts_[layer * rows + r].misses;
      }
      RowReport& to = reports_[r];
      to = RowReport();
      to.n_blocks = from.n_blocks, to.n_read = from.n_read;
      to.tokens_read = from.n_tokens;
      to.selected = from.cached == 0;
      if (to.selected)
        to.index_bytes =
            index_bytes(step_.is_dense(layer) ? dense_rule_ : rule_, config_, options_.layout,
                        from.n_blocks, host_sequences_.as<StepSequence>()[r / heads].n_tokens);
      to.lookups = from.lookups, to.misses = from.misses;
      counters.lookups += from.lookups;
      counters.hits += from.lookups - from.misses;
      counters.loaded_bytes += uint64_t(from.misses) * options_.layout.bytes();
      const bool counts_here = residency_.streamed() && step_.working_set > 0;
      const int32_t* order = nullptr;
      if (step_.orders || counts_here)
        order = host_orders_.data() + (layer * rows + r) * max_blocks_;
      if (step_.orders) to.blocks = order;
      std::copy_n(from.working_sets, kWindows, to.working_sets.begin());
      if (counts_here) {
        WorkingSet& set = *step_.sequences[r / heads]->working_set;
        const int64_t row = layer * heads + r % heads;
        set.add(row, order, from.n_read);
        to.working_sets = set.sizes(row);
      }
      if (!step_.coverage) continue;
      const float* some = host_lse_.data() + int64_t(2 * layer) * rows * g + r * g;
      const float* all = some + rows * g;
      for (int64_t h = 0; h < g; ++h)
        coverage_[r * g + h] = std::min(1.0f, std::exp(some[h] - all[h]));
      to.coverage = coverage_.data() + r * g;
    }
    if (step_.report) step_.report(layer, reports_.data());
  }
}

// ---- profile

void CudaBackend::mark(Part part) {
  if (!profiling_) return;
  marks_.emplace_back(std::make_unique<Event>(true), part);
  marks_.back().first->record(compute_);
}

bool CudaBackend::start_profile() {
  const DeviceScope on = enter();
  if (copy_bandwidth_ == 0) copy_bandwidth_ = copy_rate(false);
  if (link_bandwidth_ == 0) link_bandwidth_ = copy_rate(true);
  marks_.clear();
  profiling_ = true;
  return true;
}

void CudaBackend::finish_profile(StepTiming& t) {
  profiling_ = false;
  compute_.wait("a profiled step");
  t = {};
  for (size_t i = 1; i < marks_.size(); ++i) {
    float ms = 0;
    // An event that was never recorded (a step without ranking) has no time: what follows counts
    // from the one before.
    if (cudaEventElapsedTime(&ms, *marks_[i - 1].first, *marks_[i].first) != cudaSuccess) {
      cudaGetLastError();
      if (i + 1 < marks_.size()) std::swap(marks_[i - 1], marks_[i]);
      continue;
    }
    double& part = marks_[i].second == Part::Linear   ? t.linear
                   : marks_[i].second == Part::Score  ? t.attention_score
                   : marks_[i].second == Part::Rank   ? t.attention_rank
                   : marks_[i].second == Part::Attend ? t.attention_attend
                                                      : t.other;
    part += ms * 1e-3;
    t.total += ms * 1e-3;
  }
  marks_.clear();
  t.copy_bandwidth = copy_bandwidth_;
  t.link_bandwidth = link_bandwidth_;
}

// Bytes per second: a copy inside the device's memory (read and written), or from pinned host
// memory. 0 if there is no room. The memory is beside the context's budget and goes back at once.
double CudaBackend::copy_rate(bool from_host) {
  const size_t bytes = from_host ? size_t(64) << 20 : size_t(512) << 20;
  DeviceHeap heap(0);
  Buffer from, to;
  try {
    to = heap.take(bytes, "measuring bandwidth");
    from =
        from_host ? pinned(bytes, "measuring the link") : heap.take(bytes, "measuring bandwidth");
  } catch (const Error& e) {
    if (e.status() != RIFFLE_OUT_OF_MEMORY) throw;
    return 0;
  }
  const Event begin(true), end(true);
  float best = 0;
  for (int i = 0; i < 6; ++i) {
    begin.record(compute_);
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, compute_),
          "measuring bandwidth");
    end.record(compute_);
    compute_.wait("measuring bandwidth");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "measuring bandwidth");
    if (i > 0 && (best == 0 || ms < best)) best = ms;
  }
  return best > 0 ? (from_host ? 1.0 : 2.0) * static_cast<double>(bytes) / (best * 1e-3) : 0;
}

void CudaBackend::abandon_step() {
  if (mode_ == Mode::Capturing) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(compute_, &graph);
    if (graph) cudaGraphDestroy(graph);
    calls_.clear();
  }
  answer_calls(false);
  mode_ = Mode::Eager;
  // What a step leaves behind when it ends.
  if (arrivals_.size()) cudaMemsetAsync(arrivals_.data(), 0, arrivals_.size(), compute_);
  if (results_.size()) cudaMemsetAsync(results_.data(), 0, sizeof(RowResult), compute_);
  cudaStreamSynchronize(compute_);
  cudaGetLastError();
  step_scope_.reset();
}

}  // namespace riffle::cuda
