// Models without recurrent layers whose FFNs are those of hybrid models. The weights are synthetic.
#pragma once
#include <cmath>
#include <memory>

#include "tests/model/made_model.h"

namespace riffle::test {

inline constexpr int kFfnVocab = 512;

// squares: layers of one part, as Nemotron-H has them: attention, or an FFN without a gate, alone
// or as experts that a sigmoid chooses, with a shared expert. Otherwise as in Qwen3-Next: queries
// with gates, and experts with a gate, the shared expert with a share too. All weights are in
// memory.
inline std::unique_ptr<Model> ffn_model(bool squares) {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "ffn";
  c.architecture = "llama";
  c.dim = 96;  // a multiple of 32, but not of 64
  c.hidden_dim = 160;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 64;
  c.vocab_size = kFfnVocab;
  c.n_ctx = 4096;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  if (!squares) c.ropes[0].theta = 10000, c.ropes[0].rotated = 16;
  if (squares) {
    c.activation = Activation::RELU_SQUARED;
    c.experts = {
        .n = 12,
        .n_used = 3,
        .hidden_dim = 40,
        .routing = {.sigmoid = true, .choice_bias = true, .sum_eps = 1e-20f, .scale = 2.5f},
        .shared_dim = 288};
    for (const char kind : {'A', 'E', 'F', 'A', 'E', 'A'}) {
      LayerConfig& layer = c.layers.emplace_back();
      layer.mixer = kind == 'A' ? Mixer::ATTENTION : Mixer::NONE;
      layer.has_ffn = kind != 'A';
      layer.has_experts = kind == 'E';
    }
  } else {
    c.query_gate = true;
    c.qk_norm = QkNorm::HEAD;
    c.experts = {.n = 16, .n_used = 4, .hidden_dim = 48, .shared_dim = 32, .shared_gate = true};
    c.layers.resize(4);
    for (int i = 1; i < 4; ++i) c.layers[i].has_experts = true;
  }
  c.n_layers = static_cast<int>(c.layers.size());
  model->format = "made up";

  ModelMaker maker(*model);
  uint64_t seed = 0;
  const auto matrix = [&](int64_t rows, int64_t cols, float gain = 1) {
    return maker.matrix(rows, cols, ++seed, gain * std::sqrt(3 / static_cast<float>(cols)));
  };
  const auto vector = [&](int64_t cols, float middle, float spread) {
    model->owned.push_back(std::make_unique<std::vector<float>>(cols));
    std::vector<float>& values = *model->owned.back();
    for (int64_t i = 0; i < cols; ++i)
      values[i] = middle + spread * std::sin(static_cast<float>(i + 7 * ++seed));
    return Tensor{DType::F32, 1, cols, values.data(), 0, 0, nullptr};
  };
  const auto ffn = [&](int64_t hidden, Tensor* w1, Tensor* w3, Tensor* w2) {
    if (c.gated_ffn()) *w1 = matrix(hidden, c.dim);
    *w3 = matrix(hidden, c.dim);
    *w2 = matrix(c.dim, hidden);
  };
  Weights& w = model->weights;
  w.embedding = matrix(c.vocab_size, c.dim, 8);  // embeddings have values of size 1
  w.layers.resize(c.n_layers);
  for (int i = 0; i < c.n_layers; ++i) {
    LayerWeights& l = w.layers[i];
    if (c.attends(i)) {
      l.attn_norm = maker.norm();
      l.wq = matrix(c.query_gate ? 2 * c.q_width(i) : c.q_width(i), c.dim, 1.7f);
      l.wk = matrix(c.kv_width(i), c.dim, 1.7f);
      l.wv = matrix(c.kv_width(i), c.dim);
      l.wo = matrix(c.dim, c.q_width(i));
      if (c.qk_norm == QkNorm::HEAD)
        l.q_norm = vector(c.head_dim, 1, 0.2f), l.k_norm = vector(c.head_dim, 1, 0.2f);
    }
    if (!c.layers[i].has_ffn) continue;
    l.ffn_norm = vector(c.dim, 1, 0.2f);
    if (!c.layers[i].has_experts) {
      ffn(c.hidden_dim, &l.w1, &l.w3, &l.w2);
      continue;
    }
    l.router = matrix(c.experts.n, c.dim);
    if (c.experts.routing.choice_bias) l.choice_bias = vector(c.experts.n, 0, 0.1f);
    l.experts.resize(c.experts.n);
    for (ExpertWeights& e : l.experts) ffn(c.experts.hidden_dim, &e.w1, &e.w3, &e.w2);
    ffn(c.experts.shared_dim, &l.shared.w1, &l.shared.w3, &l.shared.w2);
    if (c.experts.shared_gate) l.shared_gate = vector(c.dim, 0, 0.3f);
  }
  w.final_norm = maker.norm();
  w.output = matrix(c.vocab_size, c.dim);
  materialize(*model);
  return model;
}
inline std::unique_ptr<Model> squares_model() { return ffn_model(true); }
inline std::unique_ptr<Model> gates_model() { return ffn_model(false); }

}  // namespace riffle::test
