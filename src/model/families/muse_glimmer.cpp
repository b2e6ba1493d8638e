// Muse Glimmer (Meta, 2026), its text part: three layers with a window and RoPE to one without
// either, embeddings that are normalised, norms of q and k without weights, a gate on attention's
// output, norms before and after attention and FFN, logits with a scale and a soft cap.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLocalBase = {"rope.freq_base_swa", nullptr},
                kLogits = {"logit_scale", "output_multiplier"},
                kSoftcap = {"final_logit_softcapping", "final_logit_softcapping"},
                kQueries = {nullptr, "qk_scale_factor"}, kPostEps = {nullptr, "post_norm_eps"},
                kThetas = {nullptr, "layer_rope_theta"}, kTypes = {nullptr, "layer_types"},
                kWindow = {nullptr, "sliding_window"}, kActivation = {nullptr, "hidden_activation"},
                kScaling = {"rope.scaling.type", nullptr};
constexpr Field kFields[] = {kLocalBase, kLogits, kSoftcap,    kQueries, kPostEps,
                             kThetas,    kTypes,  kActivation, kScaling};
constexpr double kMost = 1e6;
constexpr float kGgufPostEps = 1e-8f;  // GGUF has no key for it

// config.json's default: every fourth layer, counted from the last one, has no window. GGUF counts
// from the first; both are the same if n_layers is a multiple of 4.
bool is_fourth(const Config& c, int layer) { return (c.n_layers - 1 - layer) % 4 == 0; }

// Sets which layers have a window and which have RoPE, as config.json says.
void describe_layers(const Fields& f, int window, Config* c) {
  if (!f.has(kTypes)) {
    if (window == 0)
      bad_model(f.file(), f.name_of(kWindow), "null", "the window of three layers in four");
    for (int l = 0; l < c->n_layers; ++l) c->layers[l].window = is_fourth(*c, l) ? 0 : window;
  }
  const std::vector<double> thetas = f.numbers(kThetas);
  if (f.has(kThetas)) require_one_per_layer(f, kThetas, thetas.size(), *c);
  for (int l = 0; l < c->n_layers; ++l) {
    const double theta = thetas.empty() ? (is_fourth(*c, l) ? 0 : c->ropes[0].theta) : thetas[l];
    // transformers asks only whether it is 0, and rotates by rope_theta.
    if (theta != 0 && static_cast<float>(theta) != c->ropes[0].theta)
      unsupported(f.file(), f.name_of(kThetas), format("%g in layer %d", theta, l),
                  format("0 or rope_theta = %g", c->ropes[0].theta));
    c->layers[l].rope = theta == 0 ? 1 : 0;
  }
}

// Does the same for a GGUF file, in which layers with a window have RoPE.
void describe_gguf_layers(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of three layers in four");
  if (c->tied_output)
    bad_model(f.file(), "tensor output.weight", "none",
              format("shape [%d][%d]", c->vocab_size, c->dim));
  if (c->ropes[0].scaling.type != RopeScaling::NONE)
    unsupported(f.file(), f.name_of(kScaling), "\"" + f.string(kScaling).value_or("none") + "\"",
                "\"none\" and no factors: programs disagree about the layers that they apply to");
  c->ropes[0].theta = positive(f, kLocalBase, 1e15, c->ropes[0].theta);
  for (LayerConfig& layer : c->layers) layer.rope = layer.window > 0 ? 0 : 1;
}

void describe(const Fields& f, int window, Config* c) {
  if (c->ropes.size() > 1)
    unsupported(f.file(), "rope_parameters.sliding_attention", "a second RoPE",
                "one set of rope_parameters for all layers that have RoPE");
  c->ropes.push_back({});  // theta 0: no RoPE
  if (f.is_json()) describe_layers(f, window, c);
  else describe_gguf_layers(f, window, c);
  if (const std::string act = f.string(kActivation).value_or("silu"); act != "silu")
    unsupported(f.file(), f.name_of(kActivation), "\"" + act + "\"", "\"silu\"");
  c->embedding_norm = c->attention_gate = true;
  c->post_norm_eps = f.is_json() ? positive(f, kPostEps, 1, kGgufPostEps) : kGgufPostEps;
  if (f.is_json()) c->q_norm_weight = positive(f, kQueries, kMost, 3.87);
  require_in_gguf(f, kLogits, "the factor of the logits");
  c->logit_scale = positive(f, kLogits, kMost, 0.19611613513818404);
  if (f.is_json() || f.number(kSoftcap).value_or(0) != 0)
    c->logit_softcap = positive(f, kSoftcap, kMost, 20);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  const std::string to_write = ", to write the model as GGUF";
  for (int l = 0; l < c.n_layers; ++l)
    if ((c.layers[l].window > 0) != (c.layers[l].rope == 0))
      unsupported(where, kThetas.json,
                  std::string(c.layers[l].rope == 0 ? "RoPE" : "no RoPE") + " in layer " +
                      std::to_string(l) + ", which has " +
                      (c.layers[l].window > 0 ? "a window" : "no window"),
                  "RoPE in exactly the layers that have a window" + to_write);
  if (std::none_of(c.layers.begin(), c.layers.end(),
                   [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, kTypes.json, "no \"sliding_attention\"",
                "at least one such layer" + to_write);
  if (c.post_norm_eps != kGgufPostEps)
    unsupported(where, kPostEps.json, format("%g", c.post_norm_eps),
                format("%g", kGgufPostEps) + to_write);
  if (c.ropes[0].scaling.type != RopeScaling::NONE)
    unsupported(where, "rope_parameters.rope_type", "a scaling of RoPE", "\"default\"" + to_write);
  if (c.tied_output) unsupported(where, "tie_word_embeddings", "true", "false" + to_write);
  return {{kLogits, c.logit_scale}, {kSoftcap, c.logit_softcap}};
}

// transformers multiplies by 1 + weight, except in the final norm; GGUF's converters add the 1.
constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFacePostNorms;
  names.q_norm = names.k_norm = nullptr;
  names.norm_offset = 1;
  names.final_norm_offset = false;
  return names;
}();

}  // namespace

extern const Family kMuseGlimmer;
const Family kMuseGlimmer = {
    .name = "muse-glimmer",
    .model_type = "muse_glimmer_text",
    .multimodal_type = "muse_glimmer",
    .multimodal_class = "MuseGlimmerForConditionalGeneration",
    .multimodal_tied = false,
    .defaults = {131072, 202048, 1e-5, 10000, 2, 128, false, 32},
    .rope_interleaved = true,
    .post_norm = true,
    .qk_norm = QkNorm::HEAD,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 2048,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
