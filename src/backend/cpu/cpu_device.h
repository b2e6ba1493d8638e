// The CPU device, in two guises: "cpu" attends to the host store in place; "emu" puts a real slot
// pool with real copies in front of it, so that everything about residency is tested without a GPU.
// The arithmetic is the same code.
#pragma once
#include <vector>

#include "backend/cpu/cpu_experts.h"
#include "backend/cpu/cpu_products.h"
#include "backend/device.h"
#include "kernels/common/agreed.h"
#include "kernels/common/routing.h"
#include "kv/cpu_kv.h"

namespace riffle {

class CpuDevice : public Device {
 public:
  CpuDevice(const Model& model, const BackendOptions& options, ThreadPool* threads);

  int64_t reuse_unit() const override { return chooses_tiles_ ? kQueryTile : 1; }
  // Returns the bytes of a thread's scratch for prompts of up to n_tokens that choose key tiles.
  static size_t tile_scratch(const cpu::Kernels& kernels, int d, int block_size, int64_t n_tokens);
  const char* name() const override { return kv_->in_place() ? "cpu" : "emu"; }
  const char* detail() const override { return kernels_->name; }
  std::string arithmetic() const override { return arithmetic_; }
  Buffer allocate(size_t bytes) override { return Buffer(bytes); }

  void add_index(const Selector& selector, SequenceKv& sequence) override;
  void read(const float* src, int64_t n, float* host) override { std::copy_n(src, n, host); }
  void copy(const float* src, int64_t n, float* to) override { std::copy_n(src, n, to); }
  void rope_table(int64_t n, std::span<const RopeFrequencies> frequencies) override;
  void set_key_centres(std::vector<std::vector<float>> centres) override {
    key_centres_ = std::move(centres);
  }
  void linear(const Linear& args) override;
  void multiply_heads(const HeadProducts& args) override { products_.multiply_heads(args); }
  void ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase) override;
  void add_layer_embedding(int layer, const int32_t* tokens, int64_t n, float* x,
                           Phase phase) override;
  void norm_heads(float* x, int64_t n, int n_heads, const Tensor& weight) override;
  void norm_rows(const float* x, int64_t n, const Tensor& weight, float* out, int64_t ldo) override;
  void split_heads(const float* both, int64_t n, int n_heads, int d, float* q,
                   float* gate) override;
  void sigmoid_gate(float* x, const float* gate, int64_t count) override;
  void softplus_gate(float* x, const float* gate, int64_t n, int64_t width) override;
  void softcap(float* x, int64_t count, float cap) override;
  void scale(float* x, int64_t count, float factor) override;
  void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) override;
  void rope(float* x, int64_t n, int64_t ld, int n_heads, int64_t pos0, int rope,
            const Tensor* norm) override;
  void change_positions(SequenceKv& sequence, bool unrotated) override;
  std::unique_ptr<Prompt> begin_prompt(const PromptRequest& request) override;
  std::unique_ptr<Step> begin_step(const StepRequest& request) override;
  double product_rate() override;
  float* logits_memory(int64_t n) override {
    next_logits_.reserve(n * config_.vocab_size * sizeof(float));
    return next_logits_.as<float>();
  }
  const float* logits(int64_t i) override { return logits_.as<float>() + i * config_.vocab_size; }
  KvStore& kv() override { return *kv_; }

 private:
  class CpuPrompt;
  class CpuStep;
  // The mean keys of the key tiles of a prompt's current layer, [n_kv_heads][most][head_dim].
  struct TileMeans {
    Buffer values;
    int64_t most = 0;  // number of key tiles that `values` has room for
    int64_t n = 0;     // number of key tiles whose means are computed
  };
  // Attention of a prompt, with the place of its KV.
  struct PrefillAttention : PromptAttention {
    SequenceKv* sequence = nullptr;
    int layer = 0;
    LayerKv kv;
    TileMeans* means = nullptr;
    TileCounts* counts = nullptr;
  };
  // State of a row during attention of a decode step: cpu_attention.cpp.
  struct ActiveRow {
    SequenceKv* sequence = nullptr;
    int layer = 0, head = 0;
    Row row;
    RowPlan* plan = nullptr;
    int n_parts = 0;                    // parts of its planning, which threads share
    cpu::AttendState* spans = nullptr;  // partial states, each of span_blocks positions of the plan
    int n_spans = 0, span_blocks = 0;
    float* l_blocks =
        nullptr;          // [microbatch + 1][g]: masses of the microbatch's blocks, and of all
    int at = 0;           // positions attended
    int batch_begin = 0;  // start of the current microbatch (at first: end of the forced blocks)
    int next_test = 0;    // end of the current microbatch
    bool done = false;
    int lookups = 0, misses = 0;  // look-ups in the pool; misses among them
    std::vector<Held> held;       // pooled: positions [held_from, held_from + held.size())
    int held_from = 0;
    // For sequences with unrotated keys: the query, and each position's first token in the list.
    float* list_q = nullptr;
    std::vector<int32_t> list_at;
  };
  struct Work {
    ActiveRow* row;
    int begin, end;  // positions of one span, or a part of the row's planning
  };

  void rmsnorm(const float* x, const Tensor& weight, int64_t n, float eps, float* out);
  void subtract_means(const float* x, int64_t n, int64_t dim, float* out);
  const float* normed(const Tensor* norm, const float* x, int64_t n);
  void add(float* x, const float* y, int64_t count);
  const float* ffn_in(const ExpertWeights& w, const Tensor& xielu, const float* in, int64_t n,
                      Phase phase);
  void shared_ffn(const LayerWeights& w, const float* in, float* x, int64_t n, Phase phase);
  void experts_ffn(const LayerWeights& weights, float* x, int64_t n, Phase phase);
  void add_experts(const LayerWeights& w, const float* in, int64_t n, Phase phase, float* to);
  void ffn_next_to_experts(const LayerWeights& w, float* x, int64_t n, Phase phase);
  void route(const LayerWeights& weights, const float* in, int64_t n, Phase phase);
  // Operations of a prompt.
  void append(float* k, const float* v, int64_t n, int64_t pos0, const LayerKv& kv, int layer);
  void attend_prefill(const PrefillAttention& args);
  void fill_from(const AttentionSource& source, int layer, int64_t pos0, int64_t n,
                 const LayerKv& kv);
  // Operations of a step.
  void append_step(int layer, float* q, float* k, const float* v);
  void attend_step(int layer, const float* q, float* out);
  void end_step(int32_t* tokens);
  // Layers with a recurrent state: cpu_recurrent.cpp.
  void recur_prompt(int layer, const SequenceKv& s, float* in, int64_t n, int64_t pos0, float* out);
  void recur_step(int layer, float* in, float* out);
  std::vector<float> shares_;         // factors of the shared expert's rows
  std::vector<float*> state_places_;  // places of states after rows of a prompt or step
  void store_prefill(int layer, const float* k, const float* v, int64_t n, int64_t pos0,
                     const LayerKv& kv);
  void rotate(float* x, int64_t n, int64_t ld, int n_heads, const int32_t* pos, int rope);
  void norm_rotated(float* x, int64_t n, int64_t ld, int n_heads, const Tensor* norm);
  // Returns the norm if it follows RoPE, else null.
  const Tensor* rotated_norm(const Tensor& norm) const {
    return config_.norm_after_rope ? &norm : nullptr;
  }
  // Returns the centres of a layer's KV heads. Empty if the layer has none.
  std::span<const float> key_centre(int layer) const {
    return key_centres_.empty() ? std::span<const float>() : key_centres_[layer];
  }
  // Adds sign * centre to each of n keys.
  static void shift_keys(float* k, int64_t n, std::span<const float> centre, float sign);
  // Transforms a token's heads of d values (BlockLayout::transforms_keys).
  static void transform(float* heads, int n_heads, int d);
  // Undoes the transform of n rows of attended values, if values are transformed keys.
  void restore_values(int layer, float* out, int64_t n, int64_t ldo);

  void prepare_rows(int layer, const float* q, const Selector& selector);
  void plan_parts(int64_t n_rows, const Selector& selector);
  void plan_row(ActiveRow& r, const Selector& selector);
  void attend_in_place(int64_t n_rows, const Selector& selector);
  void attend_pooled(int layer, int64_t n_rows, const Selector& selector);
  void hold(ActiveRow& r, int end);
  void grant(int64_t quota, int lookahead, int microbatch);
  void run_work(const Selector& selector);
  void load_held(const Work& work);
  void run_row(ActiveRow& r, int end, const Selector& selector, int thread);
  void attend_positions(ActiveRow& r, int begin, int end, float* l_block, int l_stride, int thread);
  uint64_t token_mask(const ActiveRow& r, int position) const;
  const std::byte* block_data(const ActiveRow& r, int position) const;
  void finish_row(ActiveRow& r, float* out);
  const float* sinks(int layer, int head) const;
  void measure_coverage(int64_t n_rows);

  // cpu_list_attention.cpp: sequences whose keys are held before RoPE.
  void prepare_list_rows(const float* q, float scale);
  void place_row(ActiveRow& r);
  int load_rotated(const std::byte* block, uint64_t mask, int32_t position, float* out) const;
  void attend_rotated(ActiveRow& r, int begin, int end, float* l_block, int l_stride, int thread);
  void rotate_heads(float* x, int n_heads, int64_t position) const;
  void attend_prefill_dense(const PrefillAttention& args);
  void attend_prefill_tiles(const PrefillAttention& args);
  void add_tile_means(const PrefillAttention& args);
  void attend_prefill_list(const PrefillAttention& args);
  void average_list_queries(const PrefillAttention& args);
  void place_list_queries(const PrefillAttention& args, int64_t position, int64_t column,
                          int n_heads);
  void make_list_rows(const PrefillAttention& args);
  void list_tokens(const Row& row, RowPlan& plan);
  void gather_list(const Row& row);
  void attend_to_list(const PrefillAttention& args, int head);
  void list_coverage(const ActiveRow& r, float* coverage, int thread);

  const Model& model_;
  const Config& config_;
  const cpu::Kernels* kernels_;
  std::string arithmetic_;
  ThreadPool* threads_;
  StateShape state_shape_;
  HostKv store_;
  std::unique_ptr<CpuKv> kv_;
  std::vector<SequenceKv*> stepping_;  // sequences of the current step, each once
  CpuProducts products_;
  CpuExperts experts_;
  StepRequest step_;                // the current step
  std::vector<int32_t> positions_;  // positions of the rows of a step, or of a prefill chunk
  std::vector<RowReport> reports_;
  std::vector<RowSets> counted_sets_;  // [KV head]: working-set sizes before this layer
  bool chooses_tiles_ = false;         // BackendOptions::chooses_tiles
  bool waits_ = false;                 // rows wait for blocks that others load
  std::vector<Row> layer_rows_;        // rows of one sequence
  // For each entry of Config::ropes: [positions][head_dim/2][2].
  std::vector<std::vector<float>> cos_sin_;
  std::vector<std::vector<float>> key_centres_;  // [layer]; empty without 8-bit KV
  int64_t rope_positions_ = 0;

  Buffer logits_, next_logits_;  // logits of the last step; of the current one
  // Scratch that grows as needed and stays.
  Buffer normed_, product_, gate_, up_, sourced_k_, sourced_v_, q_scaled_, states_, l_blocks_,
      coverage_;
  std::vector<Buffer> thread_scratch_;
  // Buffers of a mixture of experts: scores [rows][experts], and the experts' results.
  Buffer router_, expert_out_, ffn_and_experts_;
  Buffer tokens_row_, token_part_, layer_part_;  // buffers of per-layer embeddings
  std::vector<Routed> routed_;                   // [rows][experts.n_used], by falling weight
  std::vector<int32_t> expert_at_;               // place of each entry of routed_ in expert_out_
  std::vector<ActiveRow> rows_;
  std::vector<RowPlan> plans_;
  std::vector<cpu::AttendState> span_states_;
  std::vector<ActiveRow*> active_;
  std::vector<Work> work_;

  Buffer list_q_, list_scores_, list_kv_;
  std::vector<Buffer> list_blocks_;  // one rotated block for each thread
  std::vector<int32_t> list_ids_;
  std::vector<const void*> list_table_;
};

}  // namespace riffle
