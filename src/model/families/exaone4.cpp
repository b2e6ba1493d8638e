// EXAONE 4 (LG AI Research, arXiv 2507.11407): norms only after attention and FFN, and of each head
// of q and k. Models with a window have three layers with it to one without, and the latter has no
// RoPE.
#include "model/families/family.h"

namespace riffle {

namespace {

// Layers that have a window. Read together with the windows: a period, or letters ("LLLG") with L
// for a layer that has one.
constexpr Field kPattern = {nullptr, "sliding_window_pattern"};
constexpr Field kFields[] = {kPattern};

// The released model with 64 layers has a window; the one with 30 layers has none.
void describe(const Fields& f, int window, Config* c) {
  if (c->n_layers == 64) require_window_in_gguf(f, window, "the window's tokens");
  if (window == 0) return;
  c->ropes.push_back({});  // theta 0: no RoPE
  for (LayerConfig& layer : c->layers)
    if (layer.window == 0) layer.rope = static_cast<int>(c->ropes.size()) - 1;
}

// GGUF readers cannot tell a model whose layers have no window from the model without windows.
std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  const bool window = std::any_of(c.layers.begin(), c.layers.end(),
                                  [](const LayerConfig& layer) { return layer.window > 0; });
  if (!window && c.ropes[c.layers[0].rope].theta == 0)
    unsupported(where, "layer_types", "a sliding_window but no layer of type \"sliding_attention\"",
                "a layer with the window, to write the model as GGUF");
  return {};
}

}  // namespace

extern const Family kExaone4;
const Family kExaone4 = {
    .name = "exaone4",
    .model_type = "exaone4",
    .class_name = "Exaone4ForCausalLM",
    .defaults = {2048, 102400, 1e-5, 10000, 32},
    .pre_norm = false,
    .post_norm = true,
    .qk_norm = QkNorm::HEAD,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 4096,
    .hf_names = &kHuggingFacePostNorms,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
