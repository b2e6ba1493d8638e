// Models with more than 8 query heads per KV head, with made-up weights.
#pragma once
#include <iterator>
#include <memory>

#include "tests/engine/attending_weights.h"

namespace riffle::test {

inline constexpr bool kGroupWindowed[] = {true, false, false, true};

// Returns a model with all weights in memory, so an Engine can use it as it is. Layers with a
// window may have another number of KV heads.
inline std::unique_ptr<Model> group_model(int n_heads, int n_kv_heads, int windowed_kv_heads,
                                          int head_dim) {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "group";
  c.architecture = "llama";
  c.dim = 64;
  c.hidden_dim = 128;
  c.n_layers = static_cast<int>(std::size(kGroupWindowed));
  c.n_heads = n_heads;
  c.n_kv_heads = n_kv_heads;
  c.head_dim = head_dim;
  c.vocab_size = 512;
  c.n_ctx = 4096;
  c.norm_eps = 1e-5f;
  c.ropes.resize(1);
  c.ropes[0].theta = 100000;
  for (const bool windowed : kGroupWindowed) {
    LayerConfig& layer = c.layers.emplace_back();
    if (!windowed) continue;
    layer.window = 48;
    if (windowed_kv_heads != n_kv_heads) layer.n_kv_heads = windowed_kv_heads;
  }
  make_attending_weights(*model);
  return model;
}

// The attention of Nemotron 3 Nano: 16 query heads per KV head.
inline std::unique_ptr<Model> sixteen_model() { return group_model(32, 2, 2, 128); }
// 20 query heads for one KV head.
inline std::unique_ptr<Model> twenty_model() { return group_model(20, 1, 1, 64); }
// 24 query heads for one KV head, the most that kernels take.
inline std::unique_ptr<Model> twenty_four_model() { return group_model(24, 1, 1, 128); }
// 12 query heads per KV head; 4 in layers with a window.
inline std::unique_ptr<Model> twelve_model() { return group_model(12, 1, 3, 64); }

}  // namespace riffle::test
