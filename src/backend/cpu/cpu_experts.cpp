// A mixture of experts: each row goes through a few of a layer's FFNs, which a router chooses. Rows
// are grouped by expert, so that a step, or a chunk of a prompt, reads the weights of an expert
// once. A row's results are added by falling weight, so its bits do not depend on the other rows.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"

namespace riffle {

// Fills in routed_, and the order of its entries by expert.
void CpuBackend::route(const LayerWeights& w, const float* in, int64_t n, Phase phase) {
  const int experts = config_.experts.n, used = config_.experts.n_used;
  router_.reserve(n * experts * sizeof(float));
  float* scores = router_.as<float>();
  const LinearOut out = {&w.router, scores, experts, &w.router_bias};
  products(&out, 1, in, n, phase);
  add_bias(out, n);
  routed_.resize(n * used);
  threads_->parallel_for(n, [&](int64_t i, int) {
    route_row(scores + i * experts, experts, used, config_.experts.renormalised,
              routed_.data() + i * used);
  });
  expert_first_.assign(experts + 1, 0);
  for (const Routed& r : routed_) ++expert_first_[r.expert + 1];
  for (int e = 0; e < experts; ++e) expert_first_[e + 1] += expert_first_[e];
  expert_rows_.resize(routed_.size());
  std::vector<int64_t>& next = expert_next_;
  next.assign(expert_first_.begin(), expert_first_.end() - 1);
  for (size_t i = 0; i < routed_.size(); ++i)
    expert_rows_[next[routed_[i].expert]++] = static_cast<int64_t>(i);
}

void CpuBackend::experts_ffn(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  const int64_t dim = config_.dim, hidden = config_.experts.hidden_dim,
                used = config_.experts.n_used;
  const float* in = normed(&w.ffn_norm, x, n);
  route(w, in, n, phase);
  expert_in_.reserve(n * used * dim * sizeof(float));
  expert_out_.reserve(n * used * dim * sizeof(float));
  gate_.reserve(n * used * hidden * sizeof(float));
  up_.reserve(n * used * hidden * sizeof(float));
  auto *rows = expert_in_.as<float>(), *outs = expert_out_.as<float>(), *gate = gate_.as<float>(),
       *up = up_.as<float>();
  for (int e = 0; e < config_.experts.n; ++e) {
    const int64_t first = expert_first_[e], m = expert_first_[e + 1] - first;
    if (m == 0) continue;
    for (int64_t j = 0; j < m; ++j)
      std::copy_n(in + expert_rows_[first + j] / used * dim, dim, rows + j * dim);
    const ExpertWeights& expert = w.experts[e];
    const LinearOut into[2] = {{&expert.w1, gate, hidden, &expert.b1},
                               {&expert.w3, up, hidden, &expert.b3}};
    products(into, 2, rows, m, phase);
    for (const LinearOut& out : into) add_bias(out, m);
    activate(gate, up, m * hidden);
    const LinearOut back = {&expert.w2, outs + first * dim, dim, &expert.b2};
    products(&back, 1, gate, m, phase);
    add_bias(back, m);
  }
  // Where each entry of routed_ lies in the order of experts.
  expert_at_.resize(expert_rows_.size());
  for (size_t j = 0; j < expert_rows_.size(); ++j)
    expert_at_[expert_rows_[j]] = static_cast<int64_t>(j);
  threads_->parallel_for(n, [&](int64_t i, int) {
    for (int64_t k = i * used; k < (i + 1) * used; ++k) {
      const float* y = outs + expert_at_[k] * dim;
      for (int64_t c = 0; c < dim; ++c) x[i * dim + c] += routed_[k].weight * y[c];
    }
  });
}

}  // namespace riffle
