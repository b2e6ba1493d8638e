// The second half of a layer: its FFN, a mixture of experts, or both, and its per-layer embedding.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_device.h"

namespace riffle {

// Returns an FFN's activated values.
const float* CpuDevice::ffn_in(const ExpertWeights& w, const Tensor& xielu, const float* in,
                               int64_t n, Phase phase) {
  const int64_t hidden = w.w3.rows;
  if (config_.gated_ffn()) gate_.reserve(n * hidden * sizeof(float));
  up_.reserve(n * hidden * sizeof(float));
  const LinearOut all[2] = {{&w.w1, gate_.as<float>(), hidden, &w.b1},
                            {&w.w3, up_.as<float>(), hidden, &w.b3}};
  const auto outs = std::span(all).subspan(config_.gated_ffn() ? 0 : 1);
  products_.multiply(outs, in, n, phase);
  for (const LinearOut& out : outs) products_.add_bias(out, n);
  if (config_.activation == Activation::XIELU) {
    products_.xielu(up_.as<float>(), n * hidden, static_cast<const float*>(xielu.data));
    return up_.as<float>();
  }
  return products_.activate(config_.activation, gate_.as<float>(), up_.as<float>(), n * hidden);
}

void CpuDevice::ffn(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  if (config_.experts.next_to_ffn && !w.experts.empty()) return ffn_next_to_experts(w, x, n, phase);
  if (!w.experts.empty()) return experts_ffn(w, x, n, phase);
  const ExpertWeights ffn = {w.w1, w.w3, w.w2, w.b1, w.b3, w.b2};
  Linear down;
  down.x = ffn_in(ffn, w.xielu, normed(&w.ffn_norm, x, n), n, phase);
  down.n = n;
  down.outs[0] = {&w.w2, x, w.w2.rows, &w.b2};
  down.post_norm = &w.post_ffn_norm;
  down.add = true;
  down.phase = phase;
  linear(down);
}

// Fills in routed_.
void CpuDevice::route(const LayerWeights& w, const float* in, int64_t n, Phase phase) {
  const int experts = config_.experts.n, used = config_.experts.n_used;
  router_.reserve(n * experts * sizeof(float));
  float* scores = router_.as<float>();
  const LinearOut out = {&w.router, scores, experts, &w.router_bias};
  products_.multiply({&out, 1}, in, n, phase);
  products_.add_bias(out, n);
  routed_.resize(n * used);
  const auto* const scales = static_cast<const float*>(w.expert_scales.data);
  threads_->parallel_for(n, [&](int64_t i, int) {
    const ExpertsConfig& c = config_.experts;
    for (int e = 0; c.score_scale != 1 && e < experts; ++e)
      scores[i * experts + e] *= c.score_scale;
    Routed* const routed = routed_.data() + i * used;
    const auto* const bias = static_cast<const float*>(w.choice_bias.data);
    if (c.routing.sigmoid)
      route_by_sigmoid(scores + i * experts, bias, experts, used, c.renormalised, c.routing,
                       routed);
    else if (bias)
      route_by_biased_softmax(scores + i * experts, bias, experts, used, c.renormalised, c.routing,
                              routed);
    else route_row(scores + i * experts, experts, used, c.renormalised, routed);
    for (int k = 0; scales && k < used; ++k) routed[k].weight *= scales[routed[k].expert];
    if (!c.routing.sigmoid && c.routing.scale != 1)
      for (int k = 0; k < used; ++k) routed[k].weight *= c.routing.scale;
  });
}

void CpuDevice::experts_ffn(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  const float* in = normed(&w.ffn_norm, x, n);
  route(w, in, n, phase);
  add_experts(w, in, n, phase, x);
  if (w.shared.w2.rows > 0) shared_ffn(w, in, x, n, phase);
}

// Adds the results of the experts in routed_. A row's results are added in order of falling weight,
// so its bits do not depend on other rows.
void CpuDevice::add_experts(const LayerWeights& w, const float* in, int64_t n, Phase phase,
                            float* x) {
  const int64_t dim = config_.dim, used = config_.experts.n_used;
  expert_out_.reserve(n * used * dim * sizeof(float));
  expert_at_.resize(n * used);
  const float* outs = expert_out_.as<float>();
  experts_.run(w.experts, routed_.data(), in, n, phase, expert_out_.as<float>(), expert_at_.data());
  threads_->parallel_for(n, [&](int64_t i, int) {
    for (int64_t k = i * used; k < (i + 1) * used; ++k) {
      const float* y = outs + expert_at_[k] * dim;
      for (int64_t c = 0; c < dim; ++c) x[i * dim + c] += routed_[k].weight * y[c];
    }
  });
}

void CpuDevice::ffn_next_to_experts(const LayerWeights& w, float* x, int64_t n, Phase phase) {
  const int64_t count = n * config_.dim;
  ffn_and_experts_.reserve(2 * count * sizeof(float));
  float *const dense = ffn_and_experts_.as<float>(), *const chosen = dense + count;
  const float* const values =
      ffn_in({w.w1, w.w3, w.w2, w.b1, w.b3, w.b2}, w.xielu, normed(&w.ffn_norm, x, n), n, phase);
  const LinearOut down = {&w.w2, dense, config_.dim, &w.b2};
  products_.multiply({&down, 1}, values, n, phase);
  products_.add_bias(down, n);
  rmsnorm(dense, w.ffn_out_norm, n, config_.post_norm_eps, dense);
  route(w, normed(&w.router_norm, x, n), n, phase);
  std::fill_n(chosen, count, 0.f);
  add_experts(w, normed(&w.expert_norm, x, n), n, phase, chosen);
  rmsnorm(chosen, w.expert_out_norm, n, config_.post_norm_eps, chosen);
  add(dense, chosen, count);
  rmsnorm(dense, w.post_ffn_norm, n, config_.post_norm_eps, dense);
  add(x, dense, count);
}

void CpuDevice::add_layer_embedding(int layer, const int32_t* tokens, int64_t n, float* x,
                                    Phase phase) {
  const Weights& all = model_.weights;
  const LayerWeights& w = all.layers[layer];
  const int64_t dim = config_.dim, width = config_.layer_embedding_dim;
  // A row has its token's embedding first, then the token's part of the layer's embedding.
  const int64_t row = std::max(dim, width);
  tokens_row_.reserve(n * row * sizeof(float));
  token_part_.reserve(n * width * sizeof(float));
  layer_part_.reserve(n * width * sizeof(float));
  auto *const rows = tokens_row_.as<float>(), *const part = token_part_.as<float>(),
              *const gate = layer_part_.as<float>();
  threads_->parallel_for(n, [&](int64_t i, int) {
    kernels_->linear.dequant_row(all.embedding.type, all.embedding.data, dim, tokens[i],
                                 rows + i * dim);
  });
  const LinearOut projected = {&w.layer_projection, part, width},
                  gated = {&w.embedding_gate, gate, width};
  products_.multiply({&projected, 1}, rows, n, phase);
  norm_heads(part, n, 1, all.layer_projection_norm);
  const float root = std::sqrt(static_cast<float>(width)), half = std::sqrt(0.5f);
  threads_->parallel_for(n, [&](int64_t i, int) {
    float *const own = rows + i * row, *const sum = part + i * width;
    kernels_->linear.dequant_row(all.layer_embedding.type, all.layer_embedding.data, width,
                                 tokens[i] * int64_t(config_.n_layers) + layer, own);
    for (int64_t j = 0; j < width; ++j) sum[j] = (sum[j] + own[j] * root) * half;
  });
  products_.multiply({&gated, 1}, x, n, phase);
  Linear out;
  out.x = products_.activate(config_.activation, gate, part, n * width);
  out.n = n;
  out.outs[0] = {&w.embedding_out, x, dim};
  out.post_norm = &w.embedding_norm;
  out.add = true;
  out.phase = phase;
  linear(out);
}

// Adds the output of the shared expert. in: the normalised rows.
void CpuDevice::shared_ffn(const LayerWeights& w, const float* in, float* x, int64_t n,
                           Phase phase) {
  const int64_t dim = config_.dim;
  const float* const values = ffn_in(w.shared, w.xielu, in, n, phase);
  const float *gate = static_cast<const float*>(w.shared_gate.data), *out = expert_out_.as<float>();
  const LinearOut back = {&w.shared.w2, expert_out_.as<float>(), dim};
  const float scale = config_.experts.shared_scale;
  shares_.assign(n, scale);
  threads_->parallel_for(gate ? n : 0, [&](int64_t i, int) {  // before `in` may be overwritten
    double sum = 0;
    for (int64_t c = 0; c < dim; ++c) sum += static_cast<double>(in[i * dim + c]) * gate[c];
    shares_[i] = static_cast<float>(scale / (1 + std::exp(-sum)));
  });
  products_.multiply({&back, 1}, values, n, phase);
  threads_->parallel_for(n, [&](int64_t i, int) {
    for (int64_t c = 0; c < dim; ++c) x[i * dim + c] += shares_[i] * out[i * dim + c];
  });
}

}  // namespace riffle
