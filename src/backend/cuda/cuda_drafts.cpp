// The MTP layer on the device: its keys and values, and its passes. Products go through the model's
// own device, whose weights it shares. A repeated pass is replayed as a graph, like a step.
#include <algorithm>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/draft_memory.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/layer/layer.h"
#include "util/error.h"

namespace riffle::cuda {

class CudaDevice::CudaDrafts : public DraftStore {
 public:
  CudaDrafts(CudaDevice& device, const Model& head)
      : device_(device),
        head_(head),
        ring_(head.config, device.options_),
        n_ctx_(device.options_.options.n_ctx),
        memory_(&device.heap_, &device.compute_),
        logits_(&memory_, &device.compute_, head.config.vocab_size),
        sampling_(&memory_, &device.compute_, head.config.vocab_size, drawable_ids(device.model_)),
        graphs_(&device.compute_) {
    device.weights_.add_drafts(device.model_.weights, head.weights);
    fault_ = pinned(sizeof(uint32_t), "a guess");
  }
  ~CudaDrafts() override {
    cudaStreamSynchronize(device_.compute_);
    cudaGetLastError();
  }

  Device& device() override { return device_; }
  int64_t append_rows() const override { return kDraftAppendRows; }
  Phase append_phase(int64_t) const override { return Phase::Decode; }
  std::unique_ptr<DraftKv> create() override;
  void append(DraftKv& kv, float* k, const float* v, int64_t n) override;
  bool cut(DraftKv& kv, int64_t n_pairs) override;
  std::unique_ptr<Step> begin_step(const DraftPass& pass) override;
  void commit(DraftKv& kv) override {
    ++kv.n_pairs;
    of(kv).written = std::max(of(kv).written, kv.n_pairs);
  }
  float* logits_memory(int64_t n) override {
    const DeviceScope on = device_.enter();
    return logits_.reserve(n);
  }
  const float* logits(int64_t i) override {
    const int64_t size = head_.config.vocab_size;
    host_logits_.resize(size);
    device_.read(logits_.rows() + i * size, size, host_logits_.data());
    return host_logits_.data();
  }

 private:
  struct Kv : DraftKv {
    Buffer blocks, table;  // the ring; [heads][max_blocks]: addresses of its blocks
    int64_t written = 0;   // end of the places that were ever written
  };
  class Pass;

  static Kv& of(DraftKv& kv) { return static_cast<Kv&>(kv); }
  StepSequence describe(const Kv& kv, int64_t place) const;
  void grow(int64_t n);
  void upload(int64_t n);
  void append_at(float* q, float* k, const float* v, int64_t n);
  void attend(const float* q, float* out);
  void run(const std::function<void()>& operations, int32_t* tokens);
  void abandon();

  CudaDevice& device_;
  const Model& head_;
  const DraftRing ring_;
  const int64_t n_ctx_;
  StepMemory memory_;
  StepLogits logits_;
  StepSampling sampling_;
  StepGraphs graphs_;
  Buffer sequences_, scratch_;
  Buffer counters_;                                  // DraftPassBytes::counters
  Buffer host_sequences_, host_embeddings_, fault_;  // pinned
  Event uploaded_;                                   // host_sequences_ may be written again
  std::vector<float> host_logits_;
  // The current pass.
  StepRequest request_;
  uint64_t program_ = 0;
};

// While it lives, this thread works on the device.
class CudaDevice::CudaDrafts::Pass : public Step {
 public:
  explicit Pass(CudaDrafts& drafts) : drafts_(drafts), on_(drafts.device_.enter()) {}
  ~Pass() override {
    if (!over_) drafts_.abandon();
  }
  void run(const std::function<void()>& operations, int32_t* tokens) override {
    drafts_.run(operations, tokens);
    over_ = true;
  }
  void embed(const Tensor& table, float* x) override {
    check(cudaMemcpyAsync(x, drafts_.host_embeddings_.data(),
                          drafts_.request_.n * table.cols * sizeof(float), cudaMemcpyHostToDevice,
                          drafts_.device_.compute_),
          "embedding");
  }
  void append(int, float* q, float* k, const float* v) override {
    drafts_.append_at(q, k, v, drafts_.request_.n);
  }
  void attend(int, const float* q, float* out) override { drafts_.attend(q, out); }

 private:
  CudaDrafts& drafts_;
  const DeviceScope on_;
  bool over_ = false;
};

std::unique_ptr<DraftStore> CudaDevice::make_drafts(const Model& head) {
  const DeviceScope on = enter();
  return std::make_unique<CudaDrafts>(*this, head);
}

std::unique_ptr<DraftKv> CudaDevice::CudaDrafts::create() {
  const DeviceScope on = device_.enter();
  auto kv = std::make_unique<Kv>();
  kv->blocks = device_.heap_.take(ring_.bytes(), "the MTP layer's KV");
  kv->table = device_.heap_.take(ring_.table_bytes(), "the MTP layer's KV");
  // Attention loads whole blocks of KV in 8 bits, whose scales must be numbers.
  check(cudaMemsetAsync(kv->blocks.data(), 0, kv->blocks.size(), device_.compute_),
        "clearing the MTP layer's KV");
  std::vector<std::byte*> table(ring_.heads * ring_.max_blocks);
  for (int64_t head = 0; head < ring_.heads; ++head)
    for (int64_t block = 0; block < ring_.max_blocks; ++block)
      table[head * ring_.max_blocks + block] =
          kv->blocks.as<std::byte>() + ring_.at(block) + head * ring_.layout.block_bytes;
  check(cudaMemcpyAsync(kv->table.data(), table.data(), ring_.table_bytes(), cudaMemcpyHostToDevice,
                        device_.compute_),
        "clearing the MTP layer's KV");
  device_.compute_.wait("clearing the MTP layer's KV");
  return kv;
}

bool CudaDevice::CudaDrafts::cut(DraftKv& kv, int64_t n_pairs) {
  if (!ring_.holds(n_pairs, of(kv).written)) return false;
  kv.n_pairs = n_pairs;
  return true;
}

// The newest block of a place lies in the ring like the others. No pool is asked for them
// (Pool::n_slots is 0), so attention reads all where the table says.
StepSequence CudaDevice::CudaDrafts::describe(const Kv& kv, int64_t place) const {
  if (place >= n_ctx_) fail(RIFFLE_INTERNAL, "the MTP layer's KV is full");
  StepSequence s;
  s.n_tokens = static_cast<int32_t>(place + 1);
  s.max_blocks = ring_.max_blocks;
  s.host = kv.table.as<std::byte*>();
  s.tail = kv.blocks.as<std::byte>() + ring_.at(place / ring_.layout.block_size);
  return s;
}

// Makes room for a pass of n sequences, or for an append.
void CudaDevice::CudaDrafts::grow(int64_t n) {
  const DraftPassBytes bytes = draft_pass_bytes(head_.config, ring_, n);
  memory_.grow(sequences_, bytes.sequences, "guesses");
  memory_.grow(scratch_, bytes.scratch, "guesses");
  if (counters_.size() < bytes.counters) {
    memory_.grow(counters_, bytes.counters, "guesses");
    check(cudaMemsetAsync(counters_.data(), 0, counters_.size(), device_.compute_), "guesses");
  }
  memory_.pin(host_sequences_, bytes.sequences, "a guess");
  memory_.pin(host_embeddings_, n * head_.config.dim * sizeof(float), "a guess");
  // An append's copy may still read them.
  check(cudaEventSynchronize(uploaded_), "guessing");
}

void CudaDevice::CudaDrafts::upload(int64_t n) {
  check(cudaMemcpyAsync(sequences_.data(), host_sequences_.data(), n * sizeof(StepSequence),
                        cudaMemcpyHostToDevice, device_.compute_),
        "guessing");
  uploaded_.record(device_.compute_);
}

void CudaDevice::CudaDrafts::append(DraftKv& kv, float* k, const float* v, int64_t n) {
  const DeviceScope on = device_.enter();
  grow(1);
  for (int64_t i = 0; i < n; ++i)
    host_sequences_.as<StepSequence>()[i] = describe(of(kv), kv.n_pairs + i);
  upload(n);
  append_at(nullptr, k, v, n);
  kv.n_pairs += n;
  of(kv).written = std::max(of(kv).written, kv.n_pairs);
}

// Appends row i at the place of the i-th uploaded description. Rotates the queries too, if there
// are any.
void CudaDevice::CudaDrafts::append_at(float* q, float* k, const float* v, int64_t n) {
  const Config& c = head_.config;
  const int rope = c.layers[0].rope;
  RopeAppendStep a;
  a.q = q;
  a.k = k;
  a.v = v;
  a.ldq = c.q_width(0);
  a.ldk = c.kv_width(0);
  a.n = static_cast<int>(n);
  a.n_heads = q ? c.heads(0) : 0;
  a.n_kv_heads = ring_.heads;
  a.cos_sin = device_.cos_sin_[rope].as<float>();
  a.query_cos_sin = device_.cos_sin_[c.query_rope(0)].as<float>();
  a.pairs = device_.rope_pairs(rope);
  a.q_norm = device_.rotated_norm(head_.weights.layers[0].q_norm);
  a.k_norm = device_.rotated_norm(head_.weights.layers[0].k_norm);
  a.sequences = sequences_.as<StepSequence>();
  a.layout = ring_.layout;
  a.overlap = device_.overlap_;
  check(rope_append_step(a, device_.compute_), "appending KV");
}

void CudaDevice::CudaDrafts::attend(const float* q, float* out) {
  DecodeStep s;
  s.n = static_cast<int>(request_.n);
  s.n_heads = head_.config.heads(0);
  s.n_kv_heads = ring_.heads;
  s.max_blocks = 1;
  s.sequences = sequences_.as<StepSequence>();
  s.q = q;
  s.out = out;
  if (head_.config.sinks) s.sinks = device_.weights_.bias(head_.weights.layers[0].sinks);
  s.layout = ring_.layout;
  s.rule.everything = true;
  s.rule.window = ring_.window;
  s.scratch = scratch_.data();
  s.fault = counters_.as<uint32_t>();
  s.arrivals = counters_.as<uint32_t>() + kFaultCounters;
  s.overlap = device_.overlap_;
  check(attend_everything(s, device_.device_.limits, device_.compute_),
        "computing a guess's attention");
}

std::unique_ptr<Step> CudaDevice::CudaDrafts::begin_step(const DraftPass& pass) {
  auto under_way = std::make_unique<Pass>(*this);
  request_ = {};
  request_.n = pass.n;
  request_.tokens = pass.tokens;
  request_.samples = pass.samples;
  program_ = 2 * pass.program + device_.overlap_;
  sampling_.begin(request_);
  grow(pass.n);
  sampling_.grow();
  for (int64_t i = 0; i < pass.n; ++i) {
    const DraftKv& kv = *pass.sequences[i];
    host_sequences_.as<StepSequence>()[i] = describe(static_cast<const Kv&>(kv), kv.n_pairs);
  }
  upload(pass.n);
  sampling_.upload();
  device_.embedding_rows(device_.model_.weights.draft.embedding, pass.tokens, pass.n,
                         host_embeddings_.as<float>());
  return under_way;
}

// Waits once: for the drawn tokens, or for the logits.
void CudaDevice::CudaDrafts::run(const std::function<void()>& operations, int32_t* tokens) {
  const StepGraphs::Kind kind = {request_.n, ring_.max_blocks, sampling_.draws_in_step(), false,
                                 true};
  // Both numbers only grow, so their sum tells whether either did.
  const uint64_t growths = memory_.growths() + device_.step_memory_.growths();
  if (!graphs_.begin(kind, program_, growths, true)) {
    operations();
    if (sampling_.draws_in_step()) sampling_.draw(logits_);
    check(cudaMemcpyAsync(fault_.data(), counters_.data(), sizeof(uint32_t), cudaMemcpyDeviceToHost,
                          device_.compute_),
          "guessing");
  }
  graphs_.launch();
  device_.compute_.wait("guessing");
  if (*fault_.as<uint32_t>() != 0) {
    device_.overlap_ = false;  // as CudaDevice::end_step does
    device_.graphs_.clear();
    fail(RIFFLE_INTERNAL, "the attention of a guess waited for 2 s");
  }
  sampling_.give(tokens);
}

// Restores the state that a completed pass leaves.
void CudaDevice::CudaDrafts::abandon() {
  graphs_.abandon();
  if (counters_.size()) cudaMemsetAsync(counters_.data(), 0, counters_.size(), device_.compute_);
  cudaStreamSynchronize(device_.compute_);
  cudaGetLastError();
}

}  // namespace riffle::cuda
