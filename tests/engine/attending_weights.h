// Synthetic weights for models whose layers all attend and have a gated FFN.
#pragma once
#include <cmath>

#include "tests/model/made_model.h"

namespace riffle::test {

// Requires: the model's configuration is complete. After: all weights are in memory, so an Engine
// can use the model as it is.
inline void make_attending_weights(Model& model) {
  const Config& c = model.config;
  model.format = "made up";
  ModelMaker maker(model);
  uint64_t seed = 0;
  // gain: the approximate size of the outputs if the inputs have size 1.
  const auto matrix = [&](int64_t rows, int64_t cols, float gain) {
    return maker.matrix(rows, cols, ++seed, gain * std::sqrt(3 / static_cast<float>(cols)));
  };
  Weights& w = model.weights;
  w.embedding = matrix(c.vocab_size, c.dim, 8);  // embeddings have values of size 1
  w.layers.resize(c.n_layers);
  for (int i = 0; i < c.n_layers; ++i) {
    LayerWeights& l = w.layers[i];
    l.attn_norm = maker.norm();
    l.wq = matrix(c.q_width(i), c.dim, 1.7f);  // so that attention prefers a few tokens
    l.wk = matrix(c.kv_width(i), c.dim, 1.7f);
    l.wv = matrix(c.kv_width(i), c.dim, 1);
    l.wo = matrix(c.dim, c.q_width(i), 1);
    l.ffn_norm = maker.norm();
    l.w1 = matrix(c.hidden_dim, c.dim, 1);
    l.w3 = matrix(c.hidden_dim, c.dim, 1);
    l.w2 = matrix(c.dim, c.hidden_dim, 1);
  }
  w.final_norm = maker.norm();
  w.output = matrix(c.vocab_size, c.dim, 1);
  materialize(model);
}

}  // namespace riffle::test
