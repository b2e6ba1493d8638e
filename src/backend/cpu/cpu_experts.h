// The FFNs of a mixture of experts on the CPU: each row goes through a few of a layer's experts,
// which a router chose. Rows are grouped by expert, so that a step, or a chunk of a prompt, reads
// the weights of an expert once. A row's bits do not depend on the other rows.
#pragma once
#include <vector>

#include "backend/cpu/cpu_products.h"
#include "kernels/common/routing.h"

namespace riffle {

class CpuExperts {
 public:
  CpuExperts(const Config& config, CpuProducts* products, ThreadPool* threads)
      : config_(config), products_(products), threads_(threads), first_(config.experts.n + 1) {}

  // Takes memory for steps of n rows, so that they do not allocate.
  void reserve(const std::vector<ExpertWeights>& experts, int64_t n);

  // Computes the experts' results for rows in [n][dim], in the order of experts: the result of
  // routed[i] lies at out[at[i]], i in [0, n * n_used). out [n * n_used][dim] and at [n * n_used]
  // are the caller's.
  void run(const std::vector<ExpertWeights>& experts, const Routed* routed, const float* in,
           int64_t n, Phase phase, float* out, int32_t* at);

 private:
  // One of an expert's matrices, its bias, and its result: [entries][rows of the matrix].
  struct Half {
    Tensor ExpertWeights::*weight;
    Tensor ExpertWeights::*bias;
    float* out;
  };
  void multiply(const std::vector<ExpertWeights>& experts, std::span<const Half> halves,
                const float* x, int64_t n);
  void run_step(const std::vector<ExpertWeights>& experts, const float* in, int64_t n, float* out);
  void run_prompt(const std::vector<ExpertWeights>& experts, const float* in, int64_t n,
                  float* out);
  template <class F>
  void for_chosen(F&& f);

  const Config& config_;
  CpuProducts* products_;
  ThreadPool* threads_;
  // Entries in the order of experts, as group_by_expert makes it.
  std::vector<int64_t> first_;
  std::vector<int32_t> row_;
  std::vector<CpuProducts::Prepared> prepared_;
  // Scratch that grows as needed and stays. rows_: a prompt's rows for one expert. sorted_: acts_
  // in the order of experts.
  Buffer rows_, gate_, up_, acts_[kNumDTypes], sorted_[kNumDTypes];
};

}  // namespace riffle
