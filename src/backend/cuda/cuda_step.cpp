// A decode step on the device: inputs go to fixed places, the operations are launched one by one
// or, from the second time on, replayed as one graph; tokens and counts come back with one
// synchronisation, logits when a caller asks for them.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/attention_source.h"
#include "backend/cuda/cuda_device.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/sample/sample.h"
#include "select/registry.h"
#include "util/error.h"
#include "util/thread_pool.h"

namespace riffle::cuda {

DecodeStep CudaDevice::decode_step(int layer, const float* q, float* out) const {
  const KvShape& shape = kv_.shape();
  const int64_t first_result = step_.n * shape.first_row(layer);
  DecodeStep s;
  s.n = static_cast<int>(step_.n);
  s.layer = layer;
  s.n_heads = config_.heads(layer);
  s.n_kv_heads = shape.rows(layer);
  s.first_head = shape.first_head(layer);
  s.first_index = shape.index_row(layer);
  s.first_row = shape.first_row(layer);
  s.tail_offset = kv_.tail_offset(layer);
  s.choice = shape.choice(layer);
  s.max_blocks = max_blocks_;
  s.sequences = buffers_.sequences.as<StepSequence>();
  s.q = q;
  s.out = out;
  s.sinks = sinks(layer);
  s.layout = kv_.layout(layer);
  s.overlap = overlap_;
  s.rule = selection_of(layer).rows();
  s.rule.window = step_.window_of(layer);
  s.pool = kv_.pool();
  s.scratch = buffers_.scratch.data();
  s.arrivals = buffers_.arrivals.as<uint32_t>();
  // The first entry tells whether something went wrong.
  s.results = buffers_.results.as<RowResult>() + 1 + first_result;
  s.fault = buffers_.results.as<uint32_t>();
  s.stamp = step_.working_set > 0 && !kv_.streamed();
  if (step_.orders) s.order = buffers_.orders.as<int32_t>() + first_result * max_blocks_;
  if (step_.coverage)
    s.lse = buffers_.lse.as<float>() + int64_t(2 * layer) * step_.n * config_.most_heads();
  return s;
}

void CudaDevice::grow(const std::vector<StepBuffer>& list) {
  for (const StepBuffer& b : list) {
    Buffer& buffer = b.of(buffers_);
    if (buffer.size() >= b.bytes) continue;
    grow(buffer, b.bytes, b.what);
    if (b.cleared) check(cudaMemsetAsync(buffer.data(), 0, buffer.size(), compute_), b.what);
  }
}

void CudaDevice::reserve_rows(int64_t n) {
  if (n <= rows_reserved_) return;
  rows_reserved_ = 0;  // a buffer that cannot grow is empty
  grow(row_buffers(config_, n));
  rows_reserved_ = std::max(n, kFewRows);
}

// Allocates everything before the operations, which must not allocate while a graph is captured.
void CudaDevice::grow_step_memory() {
  const int64_t n = step_.n;
  logits_.grow_kept(n);
  reserve_rows(n);
  reserve_host_experts(n);
  StepSizes sizes{n, max_blocks_};
  // Sized for the selector even where the first layers are dense.
  for (const int layer : layer_kinds_)
    sizes.scratch = std::max<uint64_t>(
        sizes.scratch, selection_->scratch_bytes(decode_step(layer, nullptr, nullptr)));
  sizes.orders = step_.orders;
  sizes.coverage = step_.coverage;
  grow(step_buffers(config_, kv_.shape(), sizes));
  const auto pin = [&](Buffer& buffer, size_t bytes) {
    step_memory_.pin(buffer, bytes, "a step's staging");
  };
  pin(host_sequences_, n * sizeof(StepSequence));
  pin(host_rows_, n * config_.dim * sizeof(float));
  if (config_.layer_embedding_dim > 0) {
    pin(host_layer_rows_, n * model_.weights.layer_embedding.cols * sizeof(float));
    pin(host_tokens_, n * sizeof(int32_t));
  }
  pin(host_results_, (1 + n * kv_.shape().rows()) * sizeof(RowResult));
  sampling_.grow();
}

// Returns the name of a selection that runs without residency decided by the GPU, between these
// texts. Empty: there is none.
static std::string way_without_codes(const char* before, const char* after) {
  const std::string way = selectors().advice().digests;
  return way.empty() ? "" : before + way + after;
}

void CudaDevice::check_selector(const Selector& selector, const Selection&) const {
  if (const char* const why = selector.host_only())
    fail(RIFFLE_UNSUPPORTED, "`selection.selector` %s %s: it needs device cpu or emu",
         selector.name(), why);
  const auto selection = step_selections().make(*selector.rule());
  if (const std::string beyond =
          beyond_limits(config_, selection->most_group(), selection->most_dim());
      !beyond.empty())
    fail(RIFFLE_UNSUPPORTED,
         "`selection.selector` is %s, but the model has %s: on a GPU use dense, share or auto, or "
         "use "
         "device cpu or emu",
         selector.name(), beyond.c_str());
  const char* found = why_host_residency(options_.options);
  if (!selection->needs_device() || !found) return;
  fail(RIFFLE_UNSUPPORTED,
       "`selection.selector` %s needs the GPU to decide residency, but %s: change that%s",
       selector.described().c_str(), found,
       way_without_codes(", or use ", ", which may lose answers").c_str());
}

void CudaDevice::add_index(const Selector& selector, SequenceKv& sequence) {
  const auto selection = step_selections().make(*selector.rule());
  kv_.require_codes(sequence, selection->codes());
  kv_.require_kept(sequence, *selection);
}

// Throws if the host decides residency, even if only because the system refuses to pin memory, and
// the selector needs the device to.
void CudaDevice::require_device_residency(const Selector& selector) const {
  if (!kv_.streamed() || !step_selections().make(*selector.rule())->needs_device()) return;
  fail(RIFFLE_UNSUPPORTED, "`selection.selector` %s needs the GPU to decide residency: %s%s",
       selector.name(), kv_.notice().empty() ? "`residency` is host" : kv_.notice().c_str(),
       way_without_codes("; ", " works without it, but may lose answers").c_str());
}

// While it lives, this thread works on the device.
class CudaDevice::CudaStep : public Step {
 public:
  explicit CudaStep(CudaDevice& device) : device_(device), on_(device.enter()) {}
  ~CudaStep() override {
    if (!over_) device_.abandon_step();
  }
  void run(const std::function<void()>& operations, int32_t* tokens) override {
    if (!device_.replay_step()) operations();
    device_.end_step(tokens);
    over_ = true;
  }
  void embed(const Tensor&, float* x) override { device_.embed_step(x); }
  void add_layer_embedding(int layer, float* x) override {
    device_.add_layer_embedding_of_step(layer, x);
  }
  void append(int layer, float* q, float* k, const float* v) override {
    device_.append_step(layer, q, k, v);
  }
  void attend(int layer, const float* q, float* out) override {
    device_.attend_step(layer, q, out);
  }
  void recur(int layer, float* in, float* out) override { device_.recur_step(layer, in, out); }

 private:
  CudaDevice& device_;
  const DeviceScope on_;
  bool over_ = false;
};

std::unique_ptr<Step> CudaDevice::begin_step(const StepRequest& step) {
  auto under_way = std::make_unique<CudaStep>(*this);
  step_ = step;
  stepping_.clear();
  for (int64_t i = 0; i < step.n; ++i)
    if (step.ahead_of(i) == 0) stepping_.push_back(step.sequences[i]);
  kv_.activate(stepping_.data(), stepping_.size());
  set_rules();
  grow_step_memory();
  for (int64_t i = 0; i < step.n; ++i) kv_.begin_working_set(*step.sequences[i], step.working_set);
  upload_step();
  return under_way;
}

// Sets the rules of the step, and throws if the step cannot run.
void CudaDevice::set_rules() {
  const StepRequest& step = step_;
  sampling_.begin(step);
  selection_ = step_selections().make(*step.selector->rule());
  dense_ = step_selections().make(*step.dense->rule());
  if (step.coverage && !kv_.pinned())
    fail(RIFFLE_UNSUPPORTED, "coverage cannot be measured: %s", kv_.why_not_pinned().c_str());
  require_device_residency(*step.selector);
  max_blocks_ = 0;
  for (int64_t i = 0; i < step.n; ++i) {
    if (selection_->mean_keys() && !step.sequences[i]->spec.with_mean)
      fail(RIFFLE_BAD_ARGUMENT,
           "session %lld of the step has digests without the mean key, which the selection needs",
           static_cast<long long>(i));
    max_blocks_ = std::max(max_blocks_, kv_.describe(*step.sequences[i]).max_blocks);
  }
}

// Copies the inputs to where a recorded step finds them. Rows of embeddings stay in pinned memory
// until embed_step. Masks follow in find_masks.
void CudaDevice::upload_step() {
  auto* sequences = host_sequences_.as<StepSequence>();
  for (int64_t i = 0; i < step_.n; ++i) {
    sequences[i] = kv_.describe(*step_.sequences[i], step_.ahead_of(i));
    const bool more = i + 1 < step_.n && step_.ahead_of(i + 1) > 0;
    sequences[i].many_rows = more || step_.ahead_of(i) > 0;
    if (step_.ahead_of(i) > 0) ++sequences[i - step_.ahead_of(i)].n_rows;
  }
  check(cudaMemcpyAsync(buffers_.sequences.data(), sequences, step_.n * sizeof(StepSequence),
                        cudaMemcpyHostToDevice, compute_),
        "a step's inputs");
  sampling_.upload();
  embedding_rows(model_.weights.embedding, step_.tokens, step_.n, host_rows_.as<float>());
  upload_layer_embeddings();
}

// Tells whether a launch waits for its kernels. These would wait for the host's answers, which come
// only after the launch.
static bool launches_block() {
  const char* const value = std::getenv("CUDA_LAUNCH_BLOCKING");
  return value && *value && std::strcmp(value, "0") != 0;
}

bool CudaDevice::replay_step() {
  profile_.mark(Part::Other);
  if (kv_.streamed()) streamed_counts_.assign(step_.n * kv_.shape().rows(), {});
  const bool may_replay = !kv_.streamed() && !step_.orders && !step_.coverage &&
                          !profile_.running() &&
                          (options_.host_expert_layers == 0 || !launches_block());
  const StepGraphs::Kind kind = {step_.n, max_blocks_, sampling_.draws_in_step(),
                                 sampling_.draws_in_step() && sampling_.changed(),
                                 selection_->rows().everything};
  return graphs_.begin(kind, step_.program, step_memory_.growths(), may_replay);
}

void CudaDevice::embed_step(float* x) {
  if (!kv_.streamed()) kv_.age_pool();
  check(cudaMemcpyAsync(x, host_rows_.data(), step_.n * config_.dim * sizeof(float),
                        cudaMemcpyHostToDevice, compute_),
        "embedding");
  embed_layers_of_step();
  profile_.mark(Part::Other);
}

void CudaDevice::append_step(int layer, float* q, float* k, const float* v) {
  RopeAppendStep a;
  a.q = q;
  a.k = k;
  a.v = kv_.shape().layout(layer).values_in_keys ? nullptr : v;
  a.ldq = config_.q_width(layer);
  a.ldk = config_.kv_width(layer);
  a.n = static_cast<int>(step_.n);
  a.n_heads = config_.heads(layer);
  a.n_kv_heads = kv_.shape().heads(layer);
  a.tail_offset = kv_.tail_offset(layer);
  a.key_centre = key_centre(layer);
  const int rope = config_.layers[layer].rope, query_rope = config_.query_rope(layer);
  a.cos_sin = cos_sin_[rope].as<float>();
  a.query_cos_sin = cos_sin_[query_rope].as<float>();
  a.pairs = rope_pairs(rope);
  a.q_norm = rotated_norm(model_.weights.layers[layer].q_norm);
  a.k_norm = rotated_norm(model_.weights.layers[layer].k_norm);
  a.sequences = buffers_.sequences.as<StepSequence>();
  a.layout = kv_.layout(layer);
  a.overlap = overlap_;
  check(rope_append_step(a, compute_), "appending KV");
  if (step_.attention)
    // With synthetic attention, a layer that attends to an earlier layer's KV gets that layer's
    // queries, and writes its keys and values again.
    check(step_.attention->on_device()->step(kv_.shape().source(layer), a.sequences, a.n, a.n_heads,
                                             kv_.shape().rows(layer), a.tail_offset, a.layout, q,
                                             a.ldq, compute_),
          "writing queries");
  profile_.mark(Part::Other);
}

void CudaDevice::attend_streamed(int layer, const float* q, float* out) {
  const int64_t heads = kv_.shape().rows(layer), width = config_.q_width(layer),
                first = step_.n * kv_.shape().first_row(layer);
  const bool orders = step_.orders || step_.working_set > 0;
  if (orders) host_orders_.resize(step_.n * kv_.shape().rows() * max_blocks_);
  for (int64_t i = 0; i < step_.n; ++i) {
    DecodeStep s = decode_step(layer, q + i * width, out + i * width);
    s.n = 1;
    s.sequences += i;
    s.results += i * heads;
    if (s.lse) s.lse += i * config_.heads(layer);
    host_driven_->attend(s, selection_of(layer), *step_.sequences[i], step_.position(i),
                         step_.lookahead, streamed_counts_.data() + first + i * heads,
                         orders ? host_orders_.data() + (first + i * heads) * max_blocks_ : nullptr,
                         &event_waits_);
  }
  profile_.mark(Part::Attend);
}

void CudaDevice::attend_step(int layer, const float* q, float* out) {
  DecodeStep s = decode_step(layer, q, out);
  if (kv_.streamed()) {
    attend_streamed(layer, q, out);
  } else {
    s.marks[0] = profile_.event(Part::Score);
    s.marks[1] = profile_.event(Part::Rank);
    const StepSelection& selection = selection_of(layer);
    float* const selected = s.lse;
    if (selection.samples()) s.lse = nullptr;
    check(selection.attend(s, device_.limits, compute_), "computing a step's attention");
    s.lse = selected;
    s.marks[0] = s.marks[1] = nullptr;
    restore_values(layer, out, step_.n);
    profile_.mark(Part::Attend);
  }
  if (!step_.coverage) return;
  // The rest reads straight from the host store, since this must not disturb the pool.
  s.pool.n_slots = 0;
  s.out = buffers_.dense_out.as<float>();
  s.order = nullptr;
  s.stamp = false;
  s.results = nullptr;
  if (!kv_.streamed() && selection_of(layer).samples())
    check(selection_of(layer).attend_selected(s, device_.limits, compute_),
          "computing a step's attention");
  s.rule = {};
  s.rule.everything = true;
  s.rule.window = step_.window_of(layer);
  s.lse = buffers_.lse.as<float>() + int64_t(2 * layer + 1) * step_.n * config_.most_heads();
  check(attend_everything(s, device_.limits, compute_), "computing a step's attention");
}

void CudaDevice::fetch_results() {
  if (step_.working_set > 0 && !kv_.streamed()) {
    WorkingSets w;
    w.n = static_cast<int>(step_.n);
    w.block_size = options_.layout.block_size;
    for (int i = 0; i < kWindows; ++i) w.windows[i] = window_steps(step_.working_set, i);
    w.sequences = buffers_.sequences.as<StepSequence>();
    const KvShape& shape = kv_.shape();
    for (int layer = 0; layer < shape.n_layers(); layer += w.n_layers) {
      w.n_layers = 1;
      w.n_kv_heads = shape.heads(layer);
      while (layer + w.n_layers < shape.n_layers() &&
             shape.heads(layer + w.n_layers) == w.n_kv_heads)
        ++w.n_layers;
      if (w.n_kv_heads == 0) continue;
      w.first_head = shape.first_head(layer);
      w.results = buffers_.results.as<RowResult>() + 1 + step_.n * shape.first_row(layer);
      check(count_working_sets(w, compute_), "counting working sets");
    }
  }
  check(cudaMemcpyAsync(host_results_.data(), buffers_.results.data(),
                        (1 + step_.n * kv_.shape().rows()) * sizeof(RowResult),
                        cudaMemcpyDeviceToHost, compute_),
        "reading counts");
  if (sampling_.draws_in_step()) sampling_.draw(logits_);
}

void CudaDevice::end_step(int32_t* tokens) {
  if (!graphs_.replaying()) fetch_results();
  graphs_.launch();
  sampling_.find_masks();
  answer_calls(true);
  sampling_.draw_masked(logits_);
  compute_.wait("running a decode step");
  if (*host_results_.as<uint32_t>() != 0) {
    // From now on launches are cooperative: no kernel of another stream can keep some CTAs from
    // starting.
    overlap_ = false;
    graphs_.clear();
    fail(RIFFLE_INTERNAL,
         "attention waited for 2 s: kernels of another context or program hold part of the GPU; "
         "try the step again");
  }
  sampling_.give(tokens);
  report_step();
  kv_.end_states(stepping_.data(), stepping_.size());
  logits_.keep(step_.n);
}

void CudaDevice::report_step() {
  const KvShape& shape = kv_.shape();
  const int64_t layers = config_.n_layers, n_queries = step_.n * config_.most_heads();
  if (step_.orders && !kv_.streamed()) {
    host_orders_.resize(step_.n * shape.rows() * max_blocks_);
    ++event_waits_;
    check(cudaMemcpy(host_orders_.data(), buffers_.orders.data(),
                     host_orders_.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
          "reading row reports");
  }
  if (step_.coverage) {
    host_lse_.resize(2 * layers * n_queries);
    ++event_waits_;
    check(cudaMemcpy(host_lse_.data(), buffers_.lse.data(), host_lse_.size() * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "reading row reports");
  }
  coverage_.resize(n_queries);
  PoolCounters& counters = kv_.counters;
  const auto* results = host_results_.as<RowResult>() + 1;
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t heads = shape.rows(layer), rows = step_.n * heads,
                  first = step_.n * shape.first_row(layer);
    if (heads == 0) continue;
    const int64_t g = config_.heads(layer) / heads;
    reports_.resize(rows);
    for (int64_t r = 0; r < rows; ++r) {
      RowResult from = results[first + r];
      if (kv_.streamed()) {
        from.lookups = streamed_counts_[first + r].lookups;
        from.misses = streamed_counts_[first + r].misses;
      }
      // Without a pool every block is a miss to the kernels, and none was loaded.
      if (kv_.in_place()) from.lookups = from.misses = 0;
      RowReport& to = reports_[r];
      to = RowReport();
      to.n_blocks = from.n_blocks, to.n_read = from.n_read;
      to.tokens_read = from.n_tokens;
      to.selected = from.cached == 0;
      if (to.selected)
        to.index_bytes =
            selection_of(layer).index_bytes(shape.layout(layer), from.n_blocks,
                                            host_sequences_.as<StepSequence>()[r / heads].n_tokens);
      to.lookups = from.lookups, to.misses = from.misses;
      counters.lookups += from.lookups;
      counters.hits += from.lookups - from.misses;
      counters.loaded_bytes += uint64_t(from.misses) * shape.block_bytes(layer);
      const bool counts_here = kv_.streamed() && step_.working_set > 0;
      const int32_t* order = nullptr;
      if (step_.orders || counts_here) order = host_orders_.data() + (first + r) * max_blocks_;
      if (step_.orders) to.blocks = order;
      std::copy_n(from.working_sets, kWindows, to.working_sets.begin());
      if (counts_here) {
        WorkingSet& set = *step_.sequences[r / heads]->working_set;
        const int64_t row = shape.first_row(layer) + r % heads;
        set.add(row, order, from.n_read);
        to.working_sets = set.sizes(row);
      }
      if (!step_.coverage) continue;
      const float* some = host_lse_.data() + int64_t(2 * layer) * n_queries + r * g;
      const float* all = some + n_queries;
      for (int64_t h = 0; h < g; ++h)
        coverage_[r * g + h] = std::min(1.0f, std::exp(some[h] - all[h]));
      to.coverage = coverage_.data() + r * g;
    }
    if (step_.report) step_.report(layer, reports_.data());
  }
}

void CudaDevice::abandon_step() {
  graphs_.abandon();
  answer_calls(false);
  // Restores the state that a completed step leaves.
  if (buffers_.arrivals.size())
    cudaMemsetAsync(buffers_.arrivals.data(), 0, buffers_.arrivals.size(), compute_);
  if (buffers_.results.size())
    cudaMemsetAsync(buffers_.results.data(), 0, sizeof(RowResult), compute_);
  cudaStreamSynchronize(compute_);
  cudaGetLastError();
}

}  // namespace riffle::cuda
