#include "backend/cpu/cpu_experts.h"

#include <algorithm>
#include <cstring>

namespace riffle {

// Calls f(expert, its first entry, number of entries) for the experts that have entries.
template <class F>
void CpuExperts::for_chosen(F&& f) {
  for (int e = 0; e < config_.experts.n; ++e)
    if (const int64_t m = first_[e + 1] - first_[e]; m > 0) f(e, first_[e], m);
}

void CpuExperts::reserve(const std::vector<ExpertWeights>& experts, int64_t n) {
  const int64_t entries = n * config_.experts.n_used, hidden = config_.experts.hidden_dim;
  row_.reserve(entries);
  prepared_.reserve(2 * entries);
  gate_.reserve(entries * hidden * sizeof(float));
  up_.reserve(entries * hidden * sizeof(float));
  for (const Tensor* t :
       {&experts[0].w1, &experts[0].w3, &experts[0].w2}) {  // all experts have these types
    const size_t bytes = entries * products_->gemv_of(t->type).act_bytes(t->type, t->cols);
    acts_[static_cast<int>(t->type)].reserve(bytes);
    sorted_[static_cast<int>(t->type)].reserve(bytes);
  }
}

void CpuExperts::run(const std::vector<ExpertWeights>& experts, const Routed* routed,
                     const float* in, int64_t n, Phase phase, float* out, int32_t* at) {
  const int used = config_.experts.n_used;
  row_.resize(n * used);
  group_by_expert(routed, n * used, used, first_, row_.data(), at);
  if (phase == Phase::Decode) run_step(experts, in, n, out);
  else run_prompt(experts, in, n, out);
}

// Multiplies all entries of a decode step by matrices of their experts. x: the n rows of the step
// or, if n is 0, a row for each entry in the order of experts.
void CpuExperts::multiply(const std::vector<ExpertWeights>& experts, std::span<const Half> halves,
                          const float* x, int64_t n) {
  const auto entries = static_cast<int64_t>(row_.size());
  const int64_t rows = n > 0 ? n : entries;
  const char* ready[kNumDTypes] = {};
  size_t bytes[kNumDTypes] = {};
  const auto encode = [&](DType type, int64_t cols) {
    const int t = static_cast<int>(type);
    const cpu::GemvKernels& gemv = products_->gemv_of(type);
    bytes[t] = gemv.act_bytes(type, cols);
    for_rows(threads_, rows, [&](int64_t i) {
      gemv.encode(type, x + i * cols, cols, acts_[t].as<char>() + i * bytes[t]);
    });
    ready[t] = acts_[t].as<char>();
    if (n == 0) return;
    if (n == 1) {  // an expert has at most one entry, which belongs to this row
      bytes[t] = 0;
      return;
    }
    for_rows(threads_, entries, [&](int64_t j) {
      std::memcpy(sorted_[t].as<char>() + j * bytes[t], ready[t] + row_[j] * bytes[t], bytes[t]);
    });
    ready[t] = sorted_[t].as<char>();
  };
  prepared_.clear();
  for (const Half& half : halves)
    for_chosen([&](int e, int64_t first, int64_t m) {
      const Tensor& w = experts[e].*half.weight;
      const int t = static_cast<int>(w.type);
      if (!ready[t]) encode(w.type, w.cols);
      prepared_.push_back({&w, ready[t] + first * bytes[t], m, half.out + first * w.rows, w.rows});
    });
  products_->multiply(prepared_);
  for (const Half& half : halves)
    for_chosen([&](int e, int64_t first, int64_t m) {
      const Tensor& w = experts[e].*half.weight;
      products_->add_bias({&w, half.out + first * w.rows, w.rows, &(experts[e].*half.bias)}, m);
    });
}

// All chosen experts go through a half of their FFNs together: one expert's weights are too few for
// many threads.
void CpuExperts::run_step(const std::vector<ExpertWeights>& experts, const float* in, int64_t n,
                          float* out) {
  reserve(experts, n);
  const auto entries = static_cast<int64_t>(row_.size());
  auto *gate = gate_.as<float>(), *up = up_.as<float>();
  const Half into[] = {{&ExpertWeights::w1, &ExpertWeights::b1, gate},
                       {&ExpertWeights::w3, &ExpertWeights::b3, up}};
  multiply(experts, std::span(into).subspan(config_.gated_ffn() ? 0 : 1), in, n);
  const float* const values =
      products_->activate(config_.activation, gate, up, entries * config_.experts.hidden_dim);
  const Half back[] = {{&ExpertWeights::w2, &ExpertWeights::b2, out}};
  multiply(experts, back, values, 0);
}

void CpuExperts::run_prompt(const std::vector<ExpertWeights>& experts, const float* in, int64_t n,
                            float* out) {
  const int64_t dim = config_.dim, hidden = config_.experts.hidden_dim;
  rows_.reserve(n * dim * sizeof(float));  // a row chooses an expert once: at most n rows
  gate_.reserve(n * hidden * sizeof(float));
  up_.reserve(n * hidden * sizeof(float));
  auto *rows = rows_.as<float>(), *gate = gate_.as<float>(), *up = up_.as<float>();
  for_chosen([&](int e, int64_t first, int64_t m) {
    for (int64_t j = 0; j < m; ++j) std::copy_n(in + row_[first + j] * dim, dim, rows + j * dim);
    const ExpertWeights& expert = experts[e];
    const LinearOut all[2] = {{&expert.w1, gate, hidden, &expert.b1},
                              {&expert.w3, up, hidden, &expert.b3}};
    const auto into = std::span(all).subspan(config_.gated_ffn() ? 0 : 1);
    products_->multiply(into, rows, m, Phase::Prefill);
    for (const LinearOut& half : into) products_->add_bias(half, m);
    const float* const values = products_->activate(config_.activation, gate, up, m * hidden);
    const LinearOut back = {&expert.w2, out + first * dim, dim, &expert.b2};
    products_->multiply({&back, 1}, values, m, Phase::Prefill);
    products_->add_bias(back, m);
  });
}

}  // namespace riffle
