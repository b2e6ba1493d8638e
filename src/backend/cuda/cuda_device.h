// The CUDA device: operations enqueue on one stream; a repeated decode step is replayed as a graph,
// with one synchronisation a token.
#pragma once
#include <memory>
#include <vector>

#include "backend/cpu/cpu_experts.h"
#include "backend/cpu/cpu_products.h"
#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_kv.h"
#include "backend/cuda/device.h"
#include "backend/cuda/host_driven.h"
#include "backend/cuda/prompt_buffers.h"
#include "backend/cuda/prompt_memory.h"
#include "backend/cuda/step_buffers.h"
#include "backend/cuda/step_graphs.h"
#include "backend/cuda/step_logits.h"
#include "backend/cuda/step_memory.h"
#include "backend/cuda/step_profile.h"
#include "backend/cuda/step_sampling.h"
#include "backend/cuda/step_selection.h"
#include "backend/cuda/weights.h"
#include "backend/device.h"
#include "backend/recurrent_shape.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemv/gemv.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/prefill/prefill.h"
#include "kernels/cuda/recurrent/recurrent.h"

namespace riffle::cuda {

class CudaDevice : public Device {
 public:
  CudaDevice(const Model& model, const BackendOptions& options, ThreadPool* threads,
             const DeviceInfo& device);
  ~CudaDevice() override;

  const char* name() const override { return "cuda"; }
  const char* detail() const override { return device_.name.c_str(); }
  std::string arithmetic() const override;
  const char* notice() const override { return kv_.notice().c_str(); }
  void check_selector(const Selector& selector, const Selection& settings) const override;
  void add_index(const Selector& selector, SequenceKv& sequence) override;
  int64_t reuse_unit() const override { return options_.options.prefill_chunk; }
  KvStore& kv() override { return kv_; }
  std::unique_ptr<Prompt> begin_prompt(const PromptRequest& request) override;
  std::unique_ptr<Step> begin_step(const StepRequest& request) override;
  std::unique_ptr<DraftStore> make_drafts(const Model& head) override;
  Buffer allocate(size_t bytes) override {
    const DeviceScope on = enter();
    return heap_.take(bytes, "activations");
  }
  void read(const float* src, int64_t n, float* host) override;
  void copy(const float* src, int64_t n, float* to) override;
  float* logits_memory(int64_t n) override {
    const DeviceScope on = enter();
    return logits_.reserve(n);
  }
  const float* logits(int64_t i) override {
    const DeviceScope on = enter();
    return logits_.fetch(i);
  }
  void rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) override;
  void set_key_centres(std::vector<std::vector<float>> centres) override;
  void linear(const Linear& args) override;
  void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) override;
  void multiply_heads(const HeadProducts& args) override;
  double product_rate() override;
  void norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) override;
  void split_heads(const float* both, int64_t n, int n_heads, int d, float* q,
                   float* gate) override;
  void norm_rows(const float* x, int64_t n, const Tensor& weight, float* out, int64_t ldo) override;
  void sigmoid_gate(float* x, const float* gate, int64_t count) override;
  void softplus_gate(float* x, const float* gate, int64_t n, int64_t width) override;
  void softcap(float* x, int64_t count, float cap) override;
  void scale(float* x, int64_t count, float factor) override;
  void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) override;
  void add_layer_embedding(int layer, const int32_t* tokens, int64_t n, float* x,
                           Phase phase) override;
  void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope,
            const Tensor* norm) override;
  bool start_profile() override;
  void finish_profile(StepTiming& timing) override;
  void add_stats(Stats& stats) const override;

 private:
  class CudaDrafts;
  class CudaPrompt;
  class CudaStep;
  using Part = StepProfile::Part;

  // This thread works on this device while the returned object lives.
  DeviceScope enter() const { return DeviceScope(device_.ordinal); }
  Buffer& grow(Buffer& buffer, size_t bytes, const char* what) {
    return step_memory_.grow(buffer, bytes, what);
  }
  void grow(const std::vector<StepBuffer>& list);
  // Makes room for n rows that gemv multiplies.
  void reserve_rows(int64_t n);
  void table_rows(const Tensor& table, const int32_t* tokens, int64_t n, int part, int parts,
                  float factor, float* out);
  void embedding_rows(const Tensor& table, const int32_t* tokens, int64_t n, float* out);
  std::byte* begin_staging(size_t bytes);
  void end_staging();
  void add_bias(const LinearOut& out, int64_t n);
  void set_rows(Gemv& gemv, const float* x, const float* norm, int64_t n);
  void normalise(const float* x, const float* norm, int64_t n, int64_t cols, void* out, WType type);
  void make_operand(const float* x, const float* norm, int64_t n, int64_t cols, WType type);
  void add_normed(const LinearOut& out, const Buffer& rows, int64_t n, const Tensor& norm);
  // An FFN: of a layer, or the shared expert. Its matrices, the biases of the first two, and the
  // layer's LayerWeights::xielu.
  struct Ffn {
    const Tensor &w1, &w3, &w2, &b1, &b3, &xielu;
  };
  // cuda_ffn.cpp
  Gate gate() const;
  void activate(void* values, const void* up, int64_t count, WType type, WType out_type,
                const float* b1, const float* b3, int64_t width, const Tensor* xielu = nullptr);
  void ffn_in_of_step(const Ffn& weights, const float* x, const float* norm, int64_t n);
  void ffn_out_of_step(const Tensor& w2, int64_t n, float* y, Then then);
  WType ffn_in_of_prompt(const Ffn& weights, const float* x, const float* norm, int64_t n);
  void ffn_next_to_experts(const LayerWeights& weights, float* x, int64_t n, bool few);
  // cuda_layer_embedding.cpp
  void project_tokens(const LayerEmbeddingBuffers& buffers, const Matrix& projection, int64_t n,
                      int n_layers, float* out);
  void upload_layer_embeddings();
  void embed_layers_of_step();
  void add_gated_embedding(const LayerWeights& weights, const float* values, int64_t n, float* x);
  void add_layer_embedding_of_step(int layer, float* x);
  const float* sinks(int layer) const;
  const float* key_centre(int layer) const;
  // cuda_experts.cpp
  using Experts = ExpertBuffers;
  void experts_of_step(const LayerWeights& weights, const float* x, int64_t n, float* to);
  void experts_of_prompt(const LayerWeights& weights, const float* x, int64_t n, float* to);
  void experts_of_host(const LayerWeights& weights, const float* x, int64_t n, float* to);
  SharedOutput shared_expert(const LayerWeights& weights, const float* x, int64_t n, bool prompt);
  void run_host_experts(const LayerWeights& weights, int64_t n);
  void answer_calls(bool compute);
  void route_rows(const LayerWeights& weights, const float* x, int64_t n, bool prompt,
                  const Experts& experts, float* scores);
  struct ExpertRows;
  bool experts_together(const LayerWeights& weights);
  void multiply_experts(const LayerWeights& weights, Tensor ExpertWeights::*which,
                        const ExpertRows& rows, bool together, const float* bias, const void* a,
                        WType type, void* out, WType out_type);
  void reserve_host_experts(int64_t n);
  // cuda_latent.cpp
  void restore_values(int layer, float* out, int64_t n);
  RopePairs rope_pairs(int rope) const;
  // Returns the norm of q or of k if it follows RoPE, else none.
  HeadNorm rotated_norm(const Tensor& norm) const {
    return {config_.norm_after_rope ? weights_.bias(norm) : nullptr, config_.norm_eps};
  }
  void gemv_rows(const Gemv& args, int64_t n);
  void multiply(const Matrix& weight, const void* a, WType type, int64_t n, void* c, int64_t ldc,
                WType c_type, bool add);
  // cuda_recurrent.cpp
  RecurrentShape shape_of_recurrent(int layer) const;
  void recur(int layer, RecurStep args);
  void recur_step(int layer, float* in, float* out);
  void replay_states(const StepSequence& sequence);
  // cuda_step.cpp
  DecodeStep decode_step(int layer, const float* q, float* out) const;
  void attend_streamed(int layer, const float* q, float* out);
  void set_rules();
  void grow_step_memory();
  void upload_step();
  const StepSelection& selection_of(int layer) const {
    return step_.is_dense(layer) ? *dense_ : *selection_;
  }
  void require_device_residency(const Selector& selector) const;
  bool replay_step();
  void embed_step(float* x);
  void append_step(int layer, float* q, float* k, const float* v);
  void attend_step(int layer, const float* q, float* out);
  void fetch_results();
  void end_step(int32_t* tokens);
  void abandon_step();
  void report_step();

  const Model& model_;
  const Config& config_;
  BackendOptions options_;
  ThreadPool* threads_;
  const cpu::Kernels* host_kernels_;
  DeviceInfo device_;
  bool overlap_;     // kernels may begin before the one ahead ends
  DeviceHeap heap_;  // before all members that hold its memory
  Stream compute_;
  Cublas cublas_;
  DeviceWeights weights_;
  PinnedSlabs* slabs_;  // the store's
  HostKv store_;
  CudaKv kv_;
  std::unique_ptr<HostDrivenAttention> host_driven_;

  Buffer replayed_;                     // one StepSequence
  std::vector<Buffer> cos_sin_;         // for each entry of Config::ropes
  Buffer key_centres_;                  // centres of all layers, in their order
  std::vector<int64_t> key_centre_at_;  // [layer] offset in key_centres_; -1: none
  int64_t rope_positions_ = 0;
  // Pinned staging of rows that prompts read from tables in host memory.
  Buffer staging_[2];
  Event staged_[2];
  int staging_turn_ = 0;

  // The prompt that is being read.
  PromptRows prompt_rows_;
  PromptBuffers prompt_;
  Buffer host_routed_, host_orders_by_expert_;  // pinned

  // Steps.
  StepMemory step_memory_;
  StepLogits logits_;
  StepSampling sampling_;
  StepGraphs graphs_;
  StepProfile profile_;
  StepBuffers buffers_;
  const std::vector<int> layer_kinds_;
  int64_t rows_reserved_ = 0;  // rows that reserve_rows made room for
  // Steps through experts in host memory: `in`, `routed`, `out`, `orders` are pinned.
  Experts expert_rows_;
  int64_t expert_rows_reserved_ = 0;
  CpuProducts cpu_products_;
  CpuExperts cpu_experts_;
  Buffer call_;  // pinned: number of the last call, and of the last answer (call_host), far apart

  // The current step.
  StepRequest step_;
  std::vector<SequenceKv*> stepping_;                 // its sequences, each once
  std::unique_ptr<StepSelection> selection_, dense_;  // choices of its layers
  int64_t max_blocks_ = 0;
  Buffer host_sequences_, host_rows_, host_results_;          // pinned
  Buffer host_layer_rows_, host_tokens_;                      // pinned, for per-layer embeddings
  std::vector<HostDrivenAttention::Counts> streamed_counts_;  // [n_layers][rows], streamed
  std::vector<int32_t> host_orders_;
  std::vector<float> host_lse_;
  std::vector<RowReport> reports_;
  std::vector<float> coverage_;
  uint64_t event_waits_ = 0;  // waits of the host that no stream counts
};

}  // namespace riffle::cuda
