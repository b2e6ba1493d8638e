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
    // Queries and keys are so large that attention prefers a few tokens.
    if (const LatentConfig& latent = c.latent) {
      if (latent.q_rank > 0) {
        l.wq_a = matrix(latent.q_rank, c.dim, 1.7f);
        l.q_a_norm = maker.norm(latent.q_rank);
      }
      l.wq = matrix(int64_t{c.n_heads} * latent.query_dim(),
                    latent.q_rank > 0 ? latent.q_rank : c.dim, 1.7f);
      l.wk = matrix(latent.rope_dim, c.dim, 1.7f);
      l.wv = matrix(latent.kv_rank, c.dim, 1);
      l.kv_a_norm = maker.norm(latent.kv_rank);
      for (int h = 0; h < c.n_heads; ++h) {
        l.k_b.push_back(matrix(latent.kv_rank, latent.nope_dim, 1));
        l.v_b.push_back(matrix(latent.value_dim, latent.kv_rank, 1));
      }
      l.wo = matrix(c.dim, int64_t{c.n_heads} * latent.value_dim, 1);
    } else {
      l.wq = matrix(c.q_width(i), c.dim, 1.7f);
      l.wk = matrix(c.kv_width(i), c.dim, 1.7f);
      l.wv = matrix(c.kv_width(i), c.dim, 1);
      l.wo = matrix(c.dim, c.q_width(i), 1);
    }
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
