// EXAONE 4 (LG AI Research, arXiv 2507.11407): norms after attention and FFN alone, and of each
// head of q and k. Models with windows have three layers with one to one without, which has no
// RoPE.
#include "model/families/family.h"

namespace riffle {

namespace {

// Which layers have a window. Read with the windows: a period, or letters ("LLLG") with L for a
// layer with one.
constexpr Field kPattern = {nullptr, "sliding_window_pattern"};
constexpr Field kFields[] = {kPattern};

// The released model of 64 layers has windows; that of 30 has none.
void describe(const FamilyFields& f, Config* c) {
  const auto windowed = [](const LayerConfig& layer) { return layer.window > 0; };
  if (std::none_of(c->layers.begin(), c->layers.end(), windowed)) {
    if (!f.is_json() && c->n_layers == 64)
      bad_model(f.file(), "exaone4.attention.sliding_window", "none", "the window's tokens");
    return;
  }
  c->ropes.push_back({});  // theta 0: none
  for (LayerConfig& layer : c->layers)
    if (!windowed(layer)) layer.rope = static_cast<int>(c->ropes.size()) - 1;
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
};

}  // namespace riffle
