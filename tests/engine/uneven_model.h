// A model whose layers differ in their KV. Layers with a window have 4 KV heads of 64, layers
// without a window have 2 KV heads of 128, and each kind has a RoPE of its own. The weights are
// synthetic.
#pragma once
#include <iterator>
#include <memory>

#include "tests/engine/attending_weights.h"

namespace riffle::test {

inline constexpr bool kUnevenWindowed[] = {true, true, false, true, true, false};
inline constexpr int kUnevenWindow = 48, kUnevenVocab = 512;

// Returns the model with all weights in memory, so an Engine can use it as it is.
inline std::unique_ptr<Model> uneven_model() {
  auto model = std::make_unique<Model>();
  Config& c = model->config;
  c.name = "uneven";
  c.architecture = "llama";
  c.dim = 64;
  c.hidden_dim = 128;
  c.n_layers = static_cast<int>(std::size(kUnevenWindowed));
  c.n_heads = 8;
  c.n_kv_heads = 4;  // in layers with a window; LayerConfig has the others
  c.head_dim = 64;
  c.vocab_size = kUnevenVocab;
  c.n_ctx = 4096;
  c.norm_eps = 1e-5f;
  c.ropes.resize(2);
  c.ropes[0].theta = 10000;
  c.ropes[1].theta = 1000000;
  c.ropes[1].head_dim = 128;
  for (const bool windowed : kUnevenWindowed) {
    LayerConfig& layer = c.layers.emplace_back();
    if (windowed) layer.window = kUnevenWindow;
    else layer.rope = 1, layer.n_kv_heads = 2, layer.head_dim = 128;
  }
  make_attending_weights(*model);
  return model;
}

}  // namespace riffle::test
