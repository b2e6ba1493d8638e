// The CPU backend, in two guises: "cpu" attends to the host store in place; "emu" puts a real slot pool with real copies
// in front of it, so that everything about residency is tested without a GPU. The arithmetic is the same code.
#pragma once
#include <vector>

#include "backend/backend.h"

namespace riffle {

class CpuBackend : public Backend {
 public:
  CpuBackend(const Config& config, const CpuBackendOptions& options, ThreadPool* threads);

  const char* name() const override { return residency_->in_place() ? "cpu" : "emu"; }
  const char* detail() const override { return kernels_->name; }
  Buffer allocate(size_t bytes) override { return Buffer(bytes); }

  void embed(const Tensor& table, const int32_t* tokens, int64_t n, float* x) override;
  void rmsnorm(const float* x, const Tensor& weight, int64_t n, float eps, float* out) override;
  void linear(const LinearOut* outs, int n_outs, const float* x, int64_t n, Phase phase) override;
  void rope(float* x, int64_t n, int64_t ld, int n_heads, const int32_t* pos) override;
  void swiglu(float* gate, const float* up, int64_t count) override;
  void add(float* x, const float* y, int64_t count) override;
  void append(const float* k, const float* v, int64_t n, int64_t pos0, std::byte* const* blocks,
              int64_t n_blocks) override;
  void append_tails(const float* k, const float* v, SequenceKv* const* sequences, int64_t n, int layer) override;
  void attend_prefill(const PrefillAttention& args) override;
  void attend_decode(const DecodeAttention& args) override;
  void rope_table(int64_t n) override;
  KvStore& store() override { return store_; }
  Residency& residency() override { return *residency_; }

 private:
  // A row of a decode step on its way: cpu_attention.cpp.
  struct ActiveRow {
    SequenceKv* sequence = nullptr;
    int layer = 0, head = 0;
    Row row;
    RowPlan* plan = nullptr;
    cpu::AttendState* spans = nullptr;  // partial states, each of span_blocks positions of the plan
    int n_spans = 0, span_blocks = 0;
    float* l_blocks = nullptr;  // [microbatch + 1][g]: masses of the microbatch's blocks, and of all
    int at = 0;                 // positions attended
    int batch_begin = 0;        // where the microbatch under way began (at first: where the forced blocks end)
    int next_test = 0;          // and where it ends
    bool done = false;
    int lookups = 0, misses = 0;  // of the pool
    std::vector<Held> held;     // pooled: positions [held_from, held_from + held.size())
    int held_from = 0;
  };
  struct Work {
    ActiveRow* row;
    int begin, end;  // positions, of one span
  };

  void prepare_rows(const DecodeAttention& args);
  void plan_row(ActiveRow& r, const Selector& selector);
  void attend_in_place(int64_t n_rows, const Selector& selector);
  void attend_pooled(const DecodeAttention& args, int64_t n_rows);
  void hold(ActiveRow& r, int end);
  void grant(int64_t quota, int lookahead, int microbatch);
  void run_work(const Selector& selector);
  void run_row(ActiveRow& r, int end, const Selector& selector);
  void attend_positions(ActiveRow& r, int begin, int end, float* l_block, int l_stride);
  const std::byte* block_data(const ActiveRow& r, int position) const;
  void finish_row(ActiveRow& r, float* out);
  void measure_coverage(int64_t n_rows);

  Config config_;
  const cpu::Kernels* kernels_;
  ThreadPool* threads_;
  KvStore store_;
  std::unique_ptr<Residency> residency_;
  std::vector<float> cos_sin_;  // [positions][head_dim/2][2]
  int64_t rope_positions_ = 0;

  // Scratch that grows to what is needed and stays.
  Buffer acts_[kNumDTypes], packed_, q_scaled_, states_, l_blocks_, coverage_;
  std::vector<Buffer> thread_scratch_;
  std::vector<ActiveRow> rows_;
  std::vector<RowPlan> plans_;
  std::vector<cpu::AttendState> span_states_;
  std::vector<ActiveRow*> active_;
  std::vector<Work> work_;
};

}  // namespace riffle
