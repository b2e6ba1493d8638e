// Models with heads of more than 256 values, with made-up weights.
#pragma once
#include <iterator>
#include <memory>

#include "tests/engine/attending_weights.h"

namespace riffle::test {

// Returns a model with the heads of Gemma 4: 256 in layers with a window, 512 in the others. All
// weights are in memory, so an Engine can use it as it is. shared: two more layers use the keys and
// values of layers 2 and 3.
inline std::unique_ptr<Model> two_sizes_model(int n_heads, int n_kv_heads, bool shared = false) {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "heads of 512";
  c.architecture = "llama";
  c.dim = 64;
  c.hidden_dim = 128;
  c.n_heads = n_heads;
  c.n_kv_heads = n_kv_heads;
  c.head_dim = 512;
  c.vocab_size = 512;
  c.n_ctx = 4096;
  c.norm_eps = 1e-5f;
  c.ropes.resize(2);
  c.ropes[0].theta = 100000;
  c.ropes[0].rotated = 128;
  c.ropes[1].theta = 10000;
  c.ropes[1].head_dim = 256;
  for (const bool windowed : {true, false, true, false}) {
    LayerConfig& layer = c.layers.emplace_back();
    if (windowed) layer.window = 48, layer.rope = 1, layer.head_dim = 256, layer.n_kv_heads = 4;
  }
  if (shared)
    for (const int source : {2, 3})
      c.layers.emplace_back(LayerConfig(c.layers[source])).kv_source = source;
  c.n_layers = static_cast<int>(c.layers.size());
  make_attending_weights(*model);
  return model;
}
inline std::unique_ptr<Model> heads_of_512() { return two_sizes_model(8, 2); }
// 16 query heads for each KV head, as the 12B model has.
inline std::unique_ptr<Model> sixteen_of_512() { return two_sizes_model(16, 1); }
// The last layers have no KV of their own, as in E2B and E4B.
inline std::unique_ptr<Model> shared_of_512() { return two_sizes_model(8, 2, true); }

// Returns a model with the latent attention of GLM-4.7-Flash: rows of 576 values for 20 heads.
// q_rank: width of the queries' latent; 0: there is none, as in DeepSeek-V2-Lite.
inline std::unique_ptr<Model> latents(int n_heads, int q_rank) {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "latent";
  c.architecture = "deepseek2";
  c.dim = 64;
  c.hidden_dim = 128;
  c.n_heads = n_heads;
  c.n_kv_heads = 1;
  c.head_dim = 576;
  c.vocab_size = 512;
  c.n_ctx = 4096;
  c.norm_eps = 1e-5f;
  c.rope_interleaved = true;
  LatentConfig& l = c.latent;
  l.kv_rank = 512, l.q_rank = q_rank, l.nope_dim = 32, l.rope_dim = 64, l.value_dim = 32;
  l.query_scale = std::sqrt(static_cast<float>(c.head_dim) / static_cast<float>(l.query_dim()));
  c.ropes.resize(1);
  c.ropes[0].theta = 100000;
  c.ropes[0].head_dim = l.rope_dim;
  c.ropes[0].skipped = l.kv_rank;
  c.layers.resize(3);
  c.n_layers = static_cast<int>(c.layers.size());
  make_attending_weights(*model);
  return model;
}
inline std::unique_ptr<Model> latent_model() { return latents(20, 48); }
inline std::unique_ptr<Model> latent_model_of_v2() { return latents(16, 0); }

}  // namespace riffle::test
