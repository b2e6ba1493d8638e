#include "backend/device_options.h"

#include <algorithm>

#include "model/recurrence.h"

namespace riffle {

KvShape kv_shape(const Config& config, const BackendOptions& o) {
  const auto whole = std::find_if(
      config.layers.begin(), config.layers.end(),
      [](const LayerConfig& l) { return l.window == 0 && l.mixer == Mixer::ATTENTION; });
  const auto like_whole = [&](int i) {
    if (whole == config.layers.end()) return true;
    const int first = static_cast<int>(whole - config.layers.begin());
    return config.kv_heads(i) == config.kv_heads(first) &&
           config.head_size(i) == config.head_size(first) && config.heads(i) == config.heads(first);
  };
  std::vector<LayerShape> layers;
  for (int i = 0; i < config.n_layers; ++i) {
    if (!config.attends(i)) {
      LayerShape& state = layers.emplace_back(LayerShape{LayerKeeps::STATE});
      if (config.recurs(i))
        state.state_bytes = (recurrent_state(config) * int64_t{sizeof(float)} + 63) / 64 * 64;
      continue;
    }
    const int window = config.layers[i].window;
    LayerShape layer{config.latent ? LayerKeeps::KEYS : LayerKeeps::KV, config.kv_heads(i),
                     config.head_size(i)};
    if (window > 0 && (o.options.n_ctx > window || !like_whole(i))) {
      layer.keeps = LayerKeeps::WINDOW_KV;
      layer.window = window;
    }
    if (const int source = config.layers[i].kv_source; source >= 0) {
      layer.keeps = LayerKeeps::EARLIER_KV;
      layer.source = source;
    }
    layers.push_back(layer);
  }
  KvShape shape(o.layout.block_size, o.layout.type, std::move(layers));
  if (shape.state_bytes() > 0) {
    shape.set_states(0, 0);
    const uint64_t eighth = shape.most_bytes(o.options.n_ctx) / 8 / shape.state_bytes();
    // A device with memory of its own has the states of a step's rows there.
    const int sessions = std::max(1, o.options.n_sessions),
              ahead = o.device_memory ? 0 : (o.rows_ahead + sessions - 1) / sessions;
    shape.set_states(
        static_cast<int>(std::clamp<uint64_t>(eighth, Checkpoints::kFewest, Checkpoints::kMost)),
        1 + ahead);
  }
  return shape;
}

StateShape state_shape(const Config& config, const BackendOptions& o) {
  const KvShape kv = kv_shape(config, o);
  const int layer = kv.index_layer();  // if no layer selects, the state is never used
  StateShape shape;
  shape.n_layers = config.n_layers;
  for (int i = 0; i < kv.n_layers(); ++i) shape.n_borrowing += kv.selects(i) && !kv.indexed(i);
  shape.n_kv_heads = kv.rows(layer);
  shape.g = config.heads(layer) / kv.rows(layer);
  shape.layout = kv.layout(layer);
  shape.n_ctx = o.options.n_ctx;
  shape.kernels = o.kernels;
  return shape;
}

}  // namespace riffle
