// Models with made-up weights, for tests that need a shape and no trained model. Their weights are
// functions of their index (TensorSource), so they have no bytes before materialize(). No device
// makes them.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "kernels/common/splitmix64.h"
#include "model/model.h"

namespace riffle::test {

// Uniform in (-scale, scale), in f32.
class MadeWeights : public TensorSource {
 public:
  void row(const Tensor& t, int64_t row, std::byte* out) const override {
    values(t, row, 1, reinterpret_cast<float*>(out));
  }
  void values(const Tensor& t, int64_t first, int64_t n, float* out) const override {
    for (int64_t i = 0; i < n * t.cols; ++i) {
      const uint64_t hash = splitmix64_at(t.seed, static_cast<uint64_t>(first * t.cols + i));
      const int bits = static_cast<int>(hash >> 41);  // 23 bits
      out[i] = static_cast<float>(2 * (bits - (1 << 22)) + 1) * 0x1p-23f * t.scale;
    }
  }
  const cuda::DeviceTensorSource* on_device() const override { return nullptr; }
};

// Makes the tensors of a model and counts them.
class ModelMaker {
 public:
  explicit ModelMaker(Model& model) : model_(model), dim_(model.config.dim) {
    model.owned.push_back(std::make_unique<std::vector<float>>(std::max(dim_, 1024), 1.0f));
    ones_ = model.owned.back()->data();
  }
  Tensor matrix(int64_t rows, int64_t cols, uint64_t seed, float scale) {
    static const MadeWeights weights;
    return count({DType::F32, rows, cols, nullptr, seed, scale, &weights});
  }
  Tensor norm() { return norm(dim_); }
  // width: at most that of the residual stream, or 1,024 if that is more.
  Tensor norm(int width) { return count({DType::F32, 1, width, ones_, 0, 0, nullptr}); }

 private:
  Tensor count(const Tensor& t) {
    model_.n_params += static_cast<uint64_t>(t.rows * t.cols);
    model_.weight_bytes += static_cast<uint64_t>(t.bytes());
    return t;
  }

  Model& model_;
  int dim_;
  const float* ones_;
};

// 256 wide, two layers, 1,024 tokens, trained with 131,072; without a tokenizer.
inline std::unique_ptr<Model> wide_model() {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "wide";
  c.architecture = "llama";
  c.dim = 256;
  c.hidden_dim = 512;
  c.head_dim = 32;
  c.n_layers = 2;
  c.n_heads = 8;
  c.n_kv_heads = 2;
  c.vocab_size = 1024;
  c.n_ctx = 131072;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  c.ropes[0].theta = 500000;
  c.layers.resize(c.n_layers);
  model->format = "made up";

  ModelMaker maker(*model);
  std::mt19937_64 seeds(1);
  const auto matrix = [&](int64_t rows, int64_t cols) {
    return maker.matrix(rows, cols, seeds(), 1 / std::sqrt(static_cast<float>(cols)));
  };
  Weights& w = model->weights;
  w.embedding = matrix(c.vocab_size, c.dim);
  w.layers.resize(c.n_layers);
  for (LayerWeights& l : w.layers) {
    l.attn_norm = maker.norm();
    l.wq = matrix(c.dim, c.dim);
    l.wk = matrix(64, c.dim);
    l.wv = matrix(64, c.dim);
    l.wo = matrix(c.dim, c.dim);
    l.ffn_norm = maker.norm();
    l.w1 = matrix(c.hidden_dim, c.dim);
    l.w3 = matrix(c.hidden_dim, c.dim);
    l.w2 = matrix(c.dim, c.hidden_dim);
  }
  w.final_norm = maker.norm();
  w.output = matrix(c.vocab_size, c.dim);
  return model;
}

// Gives a model a key bias. It is large (size) in three dimensions of each head, and different in
// all layers and heads. RoPE turns these dimensions slowly; the mean of fast ones would be about 0.
inline std::unique_ptr<Model> with_key_bias(std::unique_ptr<Model> model, float size) {
  const Config& c = model->config;
  const int d = c.head_dim;
  float times = 1;
  for (LayerWeights& l : model->weights.layers) {
    auto bias = std::make_unique<std::vector<float>>(c.n_kv_heads * d, 0.1f);
    for (int h = 0; h < c.n_kv_heads; ++h) {
      float* head = bias->data() + h * d;
      head[d / 2 - 2] = times * size;
      head[d / 2 - 1] = -0.6f * times * size;
      head[d - 1] = 0.8f * times * size;
      times *= -0.7f;
      if (std::fabs(times) < 0.5f) times *= 2.1f;
    }
    l.bk = {DType::F32, 1, c.n_kv_heads * d, bias->data(), 0, 0, nullptr};
    model->owned.push_back(std::move(bias));
  }
  model->config.qkv_bias = true;
  return model;
}

// Returns wide_model() with such a bias and 1,024 trained tokens.
inline std::unique_ptr<Model> biased_model(float size) {
  auto model = with_key_bias(wide_model(), size);
  model->config.n_ctx = 1024;
  return model;
}

}  // namespace riffle::test
