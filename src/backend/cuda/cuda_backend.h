// The CUDA backend: operations enqueue on one stream; a decode step that comes again is replayed as
// a graph, with one synchronisation a token.
#pragma once
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_experts.h"
#include "backend/cpu/cpu_products.h"
#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/papers/streamed_attention.h"
#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/residency.h"
#include "backend/cuda/weights.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/prefill/prefill.h"

namespace riffle::cuda {

// A selector's rule in the kernels' terms.
Ranked ranked_of(const SelectionRule& rule);

// Bytes that a step reads of one row's index, to choose what it attends to: digests of its
// candidates, INT4 keys of its full blocks (of those that a budget allows) with the mean values
// that stand for what is left out, keys that are only scored.
int64_t index_bytes(const SelectionRule& rule, const Config& config, const BlockLayout& layout,
                    int n_blocks, int64_t n_tokens);

class CudaBackend : public Backend {
 public:
  CudaBackend(const Model& model, const BackendOptions& options, ThreadPool* threads,
              const DeviceInfo& device);
  ~CudaBackend() override;

  const char* name() const override { return "cuda"; }
  const char* detail() const override { return device_.name.c_str(); }
  std::string arithmetic() const override;
  const char* notice() const override { return residency_.notice().c_str(); }
  Buffer allocate(size_t bytes) override {
    const DeviceScope on = enter();
    return heap_.take(bytes, "activations");
  }
  void check_selector(const Selector& selector, const Selection& settings) const override;
  int64_t reuse_unit() const override { return options_.options.prefill_chunk; }
  bool sequences_take_device_memory() const override { return true; }
  void prepare(const Selector& selector, SequenceKv& sequence) override;
  void read(const float* src, int64_t n, float* host) override;
  void rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) override;
  void linear(const Linear& args) override;
  void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) override;
  void norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) override;
  void sigmoid_gate(float* x, const float* gate, int64_t count) override;
  void softcap(float* x, int64_t count, float cap) override;
  void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) override;
  void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope) override;
  void append(float* k, const float* v, int64_t n, int64_t pos0, const LayerKv& kv,
              int rope) override;
  void check_prompt(const Selector& selector, SequenceKv& sequence) override;
  void begin_prompt(int64_t n, int64_t n_total, int64_t chunk) override;
  void end_prompt() override;
  Buffer allocate_prompt(size_t bytes) override {
    return residency_.prompt_memory().take(bytes, "a prompt's activations");
  }
  float* prompt_rows(int64_t first, int64_t n, bool fresh, int64_t next) override {
    const DeviceScope on = enter();
    return prompt_rows_.rows(first, n, fresh, next);
  }
  void attend_prefill(const PrefillAttention& args) override;
  void begin_step(const Step& step) override;
  bool replay_step() override;
  void embed_step(const Tensor& table, float* x) override;
  void append_step(int layer, float* q, float* k, const float* v) override;
  void attend_step(int layer, const float* q, float* out) override;
  void end_step(float* logits, float* const* host, int32_t* tokens) override;
  void abandon_step() override;
  void fill_synthetic(const SyntheticSpec& spec, int layer, int64_t pos0, int64_t n,
                      const LayerKv& kv) override;
  bool start_profile() override;
  void finish_profile(StepTiming& timing) override;
  Residency& residency() override { return residency_; }
  void device_stats(Stats& stats) const override;

 private:
  enum class Mode : uint8_t { Eager, Capturing, Replaying };

  // Parts of a step, for the profile.
  enum class Part : uint8_t { Linear, Score, Rank, Attend, Other };

  // What was launched since the last mark belongs to this part.
  void mark(Part part);
  double copy_rate(bool from_host);
  // This thread works on this device for as long as what comes back lives.
  DeviceScope enter() const { return DeviceScope(device_.ordinal); }
  Buffer& grow(Buffer& buffer, size_t bytes, const char* what);
  void embedding_rows(const Tensor& table, const int32_t* tokens, int64_t n, float* out);
  void add_bias(const LinearOut& out, int64_t n);
  void prepare(const float* x, const float* norm, int64_t n, int64_t cols, WType type);
  void add_normed(const LinearOut& out, const Buffer& rows, int64_t n, const Tensor& norm);
  Gate gate() const;
  const float* sinks(int layer) const;
  // cuda_experts.cpp
  struct Experts {
    Buffer in, scores, routed;  // [rows][dim], [rows][experts.n], [rows][n_used] of Routed
    Buffer out;                 // [rows * n_used][dim]: what experts give
    Buffer places;              // steps: [rows * n_used] of Place
    Buffer sorted, orders;      // prompts: rows by expert, and where each one is
  };
  void experts_of_step(const LayerWeights& weights, float* x, int64_t n);
  void experts_of_prompt(const LayerWeights& weights, float* x, int64_t n);
  void experts_of_host(const LayerWeights& weights, float* x, int64_t n);
  void run_host_experts(const LayerWeights& weights, int64_t n);
  void answer_calls(bool compute);
  void route_rows(const LayerWeights& weights, const float* x, int64_t n, bool prompt,
                  Experts& experts);
  template <class F>
  void each_expert(const LayerWeights& weights, Tensor ExpertWeights::*which,
                   std::span<const int64_t> first, WType type, F&& f);
  void grow_experts(int64_t n);
  void take_experts(DeviceArena& memory, int64_t chunk, int64_t operand);
  RopePairs rope_pairs(int rope) const;
  void unpack_prefill(const PrefillAttention& args, FlashPrefill& flash);
  void gemv_rows(const Gemv& args, int64_t n);
  void multiply(const Matrix& weight, const void* a, WType type, int64_t n, void* c, int64_t ldc,
                WType c_type, bool add);
  DecodeStep decode_step(int layer, const float* q, float* out) const;
  void attend_streamed(int layer, const float* q, float* out);
  void settle_rules(const Step& step);
  void grow_step_memory();
  template <class T>
  const T* upload_row(Buffer& to, Buffer& pinned, int64_t i, int64_t row, const T* from, int64_t n);
  void upload_step();
  void require_device_residency(const Selector& selector) const;
  void fetch_results(float* logits);
  void find_masks();
  void upload_masks();
  void draw_tokens(float* logits);
  void report_step();

  const Model& model_;
  const Config& config_;
  const int64_t drawable_ids_ = drawable_ids(model_);
  int64_t mask_words() const { return (drawable_ids_ + 31) / 32; }  // SampleRequest::allowed
  BackendOptions options_;
  ThreadPool* threads_;
  const cpu::Kernels* host_kernels_;
  DeviceInfo device_;
  bool overlap_;     // kernels may begin before the one ahead ends
  DeviceHeap heap_;  // before everything that holds memory of it
  Stream compute_;
  Cublas cublas_;
  DeviceWeights weights_;
  PinnedSlabs* slabs_;  // the store's
  KvStore store_;
  CudaResidency residency_;
  StreamedAttention streamed_attention_;
  PromptRows prompt_rows_;

  std::vector<Buffer> cos_sin_;  // of each entry of Config::ropes
  int64_t rope_positions_ = 0;
  Buffer operand_, gate_, up_, unpacked_;  // prefill: 16-bit operands, FFN, dequantised weights
  // Products that wait for their norm: of a prompt, of a step.
  Buffer prompt_products_, products_;
  Experts prompt_experts_, experts_;            // of a prompt, of a step
  Buffer expert_staging_;                       // prompts: neighbours of those in host memory
  Buffer host_routed_, host_orders_by_expert_;  // pinned
  // Steps through experts in host memory: `in`, `routed`, `out`, `orders` are pinned.
  Experts expert_rows_;
  int64_t expert_rows_reserved_ = 0;
  CpuProducts cpu_products_;
  CpuExperts cpu_experts_;
  Buffer call_;  // pinned: numbers that are asked and answered (call_host), far apart
  std::vector<const LayerWeights*> calls_;  // of a recorded step that runs, not answered yet
  // KV in 8 bits: the layer's in f16, and which one it is, as far as it is unpacked.
  Buffer unpacked_kv_;
  int unpacked_layer_ = -1;
  int64_t unpacked_tokens_ = 0;
  Buffer hidden_;        // decode: [rows][hidden_dim]
  Buffer embedding_[2];  // pinned staging
  Event embedded_[2];
  int embedding_turn_ = 0;

  // The step under way.
  std::optional<DeviceScope> step_scope_;
  Step step_;
  Mode mode_ = Mode::Eager;
  SelectionRule rule_, dense_rule_;
  bool samples_here_ = false;  // tokens are drawn on the device
  bool masked_ = false;        // ... some of them with a mask, which is found during the step
  int64_t max_blocks_ = 0;
  Buffer sequences_, scratch_, arrivals_, results_, orders_, lse_, dense_out_;
  Buffer sample_params_, sample_scratch_, sampled_, masks_, changes_;
  Buffer host_sequences_, host_rows_, host_logits_, host_results_, host_params_, host_masks_,
      host_changes_, host_sampled_;                         // pinned
  std::vector<StreamedAttention::Counts> streamed_counts_;  // [n_layers][rows], streamed
  std::vector<int32_t> host_orders_;
  std::vector<float> host_lse_;
  std::vector<RowReport> reports_;
  std::vector<float> coverage_;

  // Graphs by what they do: a program, how many sequences of which capacity, whether they draw
  // tokens, and whether everything is read. Seen once: run eagerly; again: captured.
  struct Recorded {
    Graph graph;
    int runs = 0;
    bool eager = false;                      // it could not be recorded
    std::vector<const LayerWeights*> calls;  // whose experts the CPU computes with, in this order
  };
  using GraphKey = std::tuple<int64_t, int64_t, bool, bool>;
  bool graph_draws() const { return samples_here_ && !masked_; }
  GraphKey graph_key() const { return {step_.n, max_blocks_, graph_draws(), rule_.everything}; }
  std::map<GraphKey, Recorded> graphs_;
  uint64_t program_ = ~uint64_t(0), growths_ = 0, graph_growths_ = 0;
  uint64_t event_waits_ = 0;  // waits of the host, beside those that streams count

  bool profiling_ = false;
  std::vector<std::pair<std::unique_ptr<Event>, Part>> marks_;
  double copy_bandwidth_ = 0, link_bandwidth_ = 0;
};

}  // namespace riffle::cuda
