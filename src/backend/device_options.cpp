#include "backend/device_options.h"

#include <algorithm>

namespace riffle {

KvShape kv_shape(const Config& config, const BackendOptions& o) {
  const auto whole = std::find_if(config.layers.begin(), config.layers.end(),
                                  [](const LayerConfig& l) { return l.window == 0; });
  const auto like_whole = [&](int i) {
    if (whole == config.layers.end()) return true;
    const int first = static_cast<int>(whole - config.layers.begin());
    return config.kv_heads(i) == config.kv_heads(first) &&
           config.head_size(i) == config.head_size(first);
  };
  std::vector<LayerShape> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    const int window = config.layers[i].window;
    LayerShape layer{LayerKeeps::KV, config.kv_heads(i), config.head_size(i)};
    if (window > 0 && (o.options.n_ctx > window || !like_whole(i))) {
      layer.keeps = LayerKeeps::WINDOW_KV;
      layer.window = window;
    }
    layers.push_back(layer);
  }
  return {o.layout.block_size, o.layout.type, std::move(layers)};
}

StateShape state_shape(const Config& config, const BackendOptions& o) {
  const KvShape kv = kv_shape(config, o);
  const int layer = kv.index_layer();  // if no layer selects, the state is never used
  StateShape shape;
  shape.n_layers = config.n_layers;
  shape.n_kv_heads = kv.rows(layer);
  shape.g = config.n_heads / kv.rows(layer);
  shape.layout = kv.layout(layer);
  shape.n_ctx = o.options.n_ctx;
  shape.kernels = o.kernels;
  return shape;
}

}  // namespace riffle
