// Gemma 4 (Google DeepMind, 2026), text part of the dense models without per-layer embeddings: five
// layers with a window to one without, each kind with its own size and number of heads. Gemma 4
// differs from Gemma 3: each head of v is normalised without weights, scores are not scaled, and
// each layer's output is multiplied by a factor. Layers without a window may make values with the
// matrix of the keys, and rotate only the first pairs of a head ("proportional" RoPE).
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLocalBase = {"rope.freq_base_swa", nullptr},
                kLocalDim = {"attention.key_length_swa", nullptr},
                kLocalValueDim = {"attention.value_length_swa", nullptr},
                kLocalRotated = {"rope.dimension_count_swa", nullptr},
                kFullHeads = {nullptr, "num_global_key_value_heads"},
                kFullDim = {nullptr, "global_head_dim"},
                kLayerConfig = {nullptr, "per_layer_config"},
                kKeysAreValues = {nullptr, "attention_k_eq_v"},
                kSoftcap = {"final_logit_softcapping", "final_logit_softcapping"},
                kBothWays = {nullptr, "use_bidirectional_attention"},
                kSharedLayers = {"attention.shared_kv_layers", "num_kv_shared_layers"},
                kPerLayer = {"embedding_length_per_layer_input", "hidden_size_per_layer_input"},
                kExperts = {"expert_count", "num_experts"}, kRope = {nullptr, "rope_parameters"},
                kMixtures = {nullptr, "enable_moe_block"};
constexpr Field kFields[] = {kLocalBase,    kLocalDim,    kLocalValueDim, kLocalRotated, kFullHeads,
                             kFullDim,      kLayerConfig, kKeysAreValues, kSoftcap,      kBothWays,
                             kSharedLayers, kPerLayer,    kExperts,       kMixtures};

constexpr const char* kDenseOnly =
    ": riffle runs dense Gemma 4 models (such as 31B), not E2B, E4B and 26B-A4B";

// fallback: transformers' value if config.json has none.
void refuse_above_zero(const Fields& f, const Field& field, uint64_t fallback) {
  const auto given = f.integer(field);
  if (const uint64_t n = given.value_or(f.is_json() ? fallback : 0); n > 0)
    unsupported(f.file(), f.name_of(field),
                given ? std::to_string(n) : "none, which means " + std::to_string(n),
                std::string("0") + kDenseOnly);
}

// per_layer: transformers' value of hidden_size_per_layer_input.
void refuse(const Fields& f, uint64_t per_layer) {
  refuse_above_zero(f, kSharedLayers, 0);
  refuse_above_zero(f, kPerLayer, per_layer);
  if (!f.is_json()) refuse_above_zero(f, kExperts, 0);
  else if (f.boolean(kMixtures).value_or(false))
    unsupported(f.file(), kMixtures.json, "true", std::string("false") + kDenseOnly);
}

// Layers without a window have proportional RoPE, and the others are not scaled: GGUF has no fields
// for anything else. transformers makes the last layer one without a window.
void check_ropes(const Fields& f, Config* c) {
  RopeScaling& scaling = c->ropes[0].scaling;
  if (scaling.type == RopeScaling::NONE && !f.has(kRope)) {
    scaling.type = RopeScaling::FACTORS;
    scaling.factors = proportional_factors(c->head_dim, 0.25);
  }
  if (scaling.type != RopeScaling::FACTORS)
    unsupported(f.file(), "rope_parameters.full_attention.rope_type", "another type",
                "\"proportional\", and no rope_scaling");
  if (c->ropes[1].scaling.type != RopeScaling::NONE)
    unsupported(f.file(), "rope_parameters.sliding_attention.rope_type", "another type",
                "\"default\"");
  if (c->layers.back().window > 0)
    unsupported(f.file(), field::kWindowed.json, "a window in the last layer", "none there");
}

void read_kv_heads(const Fields& f, Config* c) {
  if (!f.is_json()) return;  // config_from_gguf has read those of GGUF files
  const bool listed = f.has(kLayerConfig);
  if (!listed && !f.boolean(kKeysAreValues).value_or(false)) return;
  const auto given = f.integer(kFullHeads);
  if (!given) return;
  check_kv_heads(f, kFullHeads, static_cast<int64_t>(*given), std::to_string(*given), *c);
  for (LayerConfig& layer : c->layers)
    if (layer.window == 0) layer.n_kv_heads = static_cast<int>(*given);
}

void describe(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of five layers in six");
  // "vision" lets the tokens of an image see each other; riffle reads text.
  if (f.is_json() && f.has(kBothWays) && f.string(kBothWays).value_or("") != "vision")
    unsupported(f.file(), kBothWays.json, "\"" + f.string(kBothWays).value_or("") + "\"",
                "null or \"vision\"");
  read_kv_heads(f, c);
  c->embedding_scale = std::sqrt(static_cast<float>(c->dim));
  c->value_norm = true;
  if (f.number(kSoftcap).value_or(0) != 0) c->logit_softcap = positive(f, kSoftcap, 1e6, 0);
  set_local_rope(f, kLocalBase, 10000, c);
  Rope& local = c->ropes[1];
  const bool values_too = f.boolean(kKeysAreValues).value_or(false);
  for (int l = 0; l < c->n_layers; ++l) {
    LayerConfig& layer = c->layers[l];
    const bool full = layer.window == 0;
    if (!full) local.head_dim = layer.head_dim;
    if (f.is_json()) layer.value_is_key = full && values_too;
    else if (layer.value_is_key && !full)
      bad_model(f.file(), "tensor blk." + std::to_string(l) + ".attn_v.weight", "none",
                "one, since layer " + std::to_string(l) + " has a window");
  }
  if (!f.is_json()) {
    for (const Field& field : {kLocalValueDim, kLocalRotated})
      if (const int n = dimension(f, f.name_of(field), kMaxHeadDim, local.head_dim);
          local.head_dim > 0 && n != local.head_dim)
        unsupported(f.file(), f.name_of(field), std::to_string(n),
                    std::to_string(local.head_dim) + ", as " + f.name_of(kLocalDim));
    if (c->ropes[0].scaling.type != RopeScaling::FACTORS)
      bad_model(f.file(), "tensor rope_freqs.weight", "none",
                "the factor of each frequency of layers without a window");
  } else {
    check_ropes(f, c);
  }
  c->set_score_scale(1);
}

constexpr TensorNames kFolderNames = [] {
  TensorNames names = kHuggingFacePostNorms;
  names.output_scale = "layer_scalar";
  return names;
}();
constexpr TensorNames kFileNames = [] {
  TensorNames names = kGgufNames;
  names.output_scale = "layer_output_scale.weight";
  names.fused_in_gguf = false;
  return names;
}();

std::vector<std::pair<Field, float>> values(const Config& c, const std::string&) {
  std::vector<std::pair<Field, float>> all = {{kLocalBase, c.ropes[1].theta}};
  if (c.logit_softcap > 0) all.push_back({kSoftcap, c.logit_softcap});
  return all;
}

}  // namespace

// Describes a family of Gemma 4.
static constexpr Family family(const char* model_type, const char* class_name,
                               const char* multimodal_type, const char* multimodal_class) {
  return {
      .name = "gemma4",
      .model_type = model_type,
      .class_name = class_name,
      .multimodal_type = multimodal_type,
      .multimodal_class = multimodal_class,
      .defaults = {131072, 262144, 1e-6, 1e6, 4, 256, true, 8},
      .full_head_dim = "global_head_dim",
      .full_head_dim_default = 512,
      .uneven_kv_heads = true,
      .value_may_be_key = true,
      .proportional_rope = true,
      .post_norm = true,
      .qk_norm = QkNorm::HEAD,
      .window = Family::PERIOD,
      .window_period = 6,
      .window_default = 512,
      .activation = Activation::GELU_TANH,
      .hf_names = &kFolderNames,
      .gguf_names = &kFileNames,
      .fields = kFields,
      .refuse = [](const Fields& f) { refuse(f, 256); },
      .describe = describe,
      .values = values,
  };
}

extern const Family kGemma4, kGemma4Unified;
const Family kGemma4 =
    family("gemma4_text", "Gemma4ForCausalLM", "gemma4", "Gemma4ForConditionalGeneration");
// The 12B model, whose image and sound parts differ. Its GGUF files are those of gemma4.
const Family kGemma4Unified = [] {
  Family unified = family("gemma4_unified_text", "Gemma4UnifiedForCausalLM", "gemma4_unified",
                          "Gemma4UnifiedForConditionalGeneration");
  unified.defaults.n_ctx = 262144;
  unified.window_default = 1024;
  unified.refuse = [](const Fields& f) { refuse(f, 0); };
  return unified;
}();

}  // namespace riffle
