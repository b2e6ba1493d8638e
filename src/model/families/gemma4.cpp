// Gemma 4 (Google DeepMind, 2026), text part: four or five layers with a window to one without,
// each kind with its own size and number of heads. Gemma 4 differs from Gemma 3: each head of v is
// normalised without weights, scores are not scaled, and each layer's output is multiplied by a
// factor. Layers without a window may make values with the matrix of the keys, and rotate only the
// first pairs of a head ("proportional" RoPE). In E2B and E4B every layer adds an embedding of its
// own, and the last layers attend to the keys and values of the last earlier layer of their kind.
// In 26B-A4B experts run next to each layer's FFN.
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr int kMostWidth = 1 << 20;
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
                kPerLayerVocab = {nullptr, "vocab_size_per_layer_input"},
                kDoubleWidth = {nullptr, "use_double_wide_mlp"},
                kExperts = {"expert_count", "num_experts"},
                kUsedExperts = {"expert_used_count", "top_k_experts"},
                kExpertDim = {"expert_feed_forward_length", "moe_intermediate_size"},
                kRope = {nullptr, "rope_parameters"}, kMixtures = {nullptr, "enable_moe_block"};
constexpr Field kFields[] = {kLocalBase, kLocalDim,    kLocalValueDim, kLocalRotated,
                             kFullHeads, kFullDim,     kLayerConfig,   kKeysAreValues,
                             kSoftcap,   kBothWays,    kSharedLayers,  kPerLayer,
                             kExperts,   kUsedExperts, kExpertDim,     kMixtures};

// Sets the layers that attend to an earlier layer's keys and values: the last ones.
void read_shared_layers(const Fields& f, Config* c) {
  const uint64_t shared = f.integer(kSharedLayers).value_or(0);
  if (shared >= static_cast<uint64_t>(c->n_layers))
    bad_model(f.file(), f.name_of(kSharedLayers), std::to_string(shared),
              "fewer than " + f.name_of(field::kLayers) + " = " + std::to_string(c->n_layers));
  const int first = c->n_layers - static_cast<int>(shared);
  for (int l = first; l < c->n_layers; ++l) {
    LayerConfig& layer = c->layers[l];
    int source = first - 1;
    while (source >= 0 && (c->layers[source].window > 0) != (layer.window > 0)) --source;
    if (source < 0)
      bad_model(
          f.file(), f.name_of(kSharedLayers), std::to_string(shared),
          format("fewer, since %s layer before layer %d has a window, and layer %d has %s",
                 layer.window > 0 ? "no" : "each", first, l, layer.window > 0 ? "one" : "none"));
    layer.kv_source = source;
    layer.value_is_key = false;
    if (layer.n_kv_heads != c->layers[source].n_kv_heads)
      bad_model(f.file(), f.name_of(field::kKvHeads),
                std::to_string(layer.n_kv_heads) + " in layer " + std::to_string(l),
                std::to_string(c->layers[source].n_kv_heads) + ", as in layer " +
                    std::to_string(source) + ", whose keys it attends to");
  }
}

// fallback: transformers' value of hidden_size_per_layer_input.
void read_layer_embedding(const Fields& f, uint64_t fallback, Config* c) {
  const uint64_t width = f.integer(kPerLayer).value_or(f.is_json() ? fallback : 0);
  if (width > kMostWidth)
    bad_model(f.file(), f.name_of(kPerLayer), std::to_string(width),
              "0 to " + std::to_string(kMostWidth));
  c->layer_embedding_dim = static_cast<int>(width);
  if (width == 0) return;
  const auto rows = f.integer(kPerLayerVocab).value_or(f.is_json() ? 262144 : c->vocab_size);
  if (rows != static_cast<uint64_t>(c->vocab_size))
    unsupported(f.file(), f.name_of(kPerLayerVocab), std::to_string(rows),
                std::to_string(c->vocab_size) + ", as vocab_size");
}

void read_experts_next_to_ffn(const Fields& f, Config* c) {
  const bool there =
      f.is_json() ? f.boolean(kMixtures).value_or(false) : f.integer(kExperts).value_or(0) > 0;
  if (!there) return;
  read_experts(f, {kExperts, kUsedExperts, kExpertDim}, {}, c);
  c->experts.next_to_ffn = true;
  c->experts.score_scale = 1 / std::sqrt(static_cast<float>(c->dim));
  for (LayerConfig& layer : c->layers) layer.has_experts = true;
}

// Layers without a window have proportional RoPE, and the others are not scaled: GGUF has no fields
// for anything else. transformers makes the last layer one without a window.
// Returns rope_type as config.json has it.
std::string type_text(const RopeScaling& scaling) {
  static constexpr const char* kNames[] = {"default", "linear",       "dynamic", "yarn",
                                           "llama3",  "proportional", "longrope"};
  return format("\"%s\"", kNames[scaling.type]);
}

void check_ropes(const Fields& f, Config* c) {
  RopeScaling& scaling = c->ropes[0].scaling;
  if (scaling.type == RopeScaling::NONE && !f.has(kRope)) {
    scaling.type = RopeScaling::FACTORS;
    scaling.factors = proportional_factors(c->head_dim, 0.25);
  }
  if (scaling.type != RopeScaling::FACTORS)
    unsupported(f.file(), "rope_parameters.full_attention.rope_type", type_text(scaling),
                "\"proportional\", and no rope_scaling");
  if (c->ropes[1].scaling.type != RopeScaling::NONE)
    unsupported(f.file(), "rope_parameters.sliding_attention.rope_type",
                type_text(c->ropes[1].scaling), "\"default\"");
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

// per_layer: transformers' value of hidden_size_per_layer_input.
void describe(const Fields& f, int window, uint64_t per_layer, Config* c) {
  require_window_in_gguf(f, window, "the window of five layers in six");
  // "vision" lets the tokens of an image see each other; riffle reads text.
  if (f.is_json() && f.has(kBothWays) && f.string(kBothWays).value_or("") != "vision")
    unsupported(f.file(), kBothWays.json, "\"" + f.string(kBothWays).value_or("") + "\"",
                "null or \"vision\"");
  read_kv_heads(f, c);
  read_shared_layers(f, c);
  if (f.boolean(kDoubleWidth).value_or(false))
    for (LayerConfig& layer : c->layers)
      if (layer.kv_source >= 0) layer.hidden_dim = 2 * c->hidden_dim;
  read_layer_embedding(f, per_layer, c);
  read_experts_next_to_ffn(f, c);
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
    if (f.is_json()) layer.value_is_key = full && values_too && layer.kv_source < 0;
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
  names.layer_embedding = "model.embed_tokens_per_layer.weight";
  names.layer_projection = "model.per_layer_model_projection.weight";
  names.layer_projection_norm = "model.per_layer_projection_norm.weight";
  names.embedding_gate = "per_layer_input_gate.weight";
  names.embedding_out = "per_layer_projection.weight";
  names.embedding_norm = "post_per_layer_input_norm.weight";
  names.router = "router.proj.weight";
  names.router_norm = "router.scale";
  names.expert_scales = "router.per_expert_scale";
  names.expert_norm = "pre_feedforward_layernorm_2.weight";
  names.ffn_out_norm = "post_feedforward_layernorm_1.weight";
  names.expert_out_norm = "post_feedforward_layernorm_2.weight";
  names.expert = nullptr;
  names.expert_w13 = "experts.gate_up_proj";
  names.stacked_w2 = "experts.down_proj";
  return names;
}();
constexpr TensorNames kFileNames = [] {
  TensorNames names = kGgufNames;
  names.output_scale = "layer_output_scale.weight";
  names.layer_embedding = "per_layer_token_embd.weight";
  names.layer_projection = "per_layer_model_proj.weight";
  names.layer_projection_norm = "per_layer_proj_norm.weight";
  names.embedding_gate = "inp_gate.weight";
  names.embedding_out = "proj.weight";
  names.embedding_norm = "post_norm.weight";
  names.router_norm = "ffn_gate_inp.scale";
  names.expert_scales = "ffn_down_exps.scale";
  names.expert_norm = "pre_ffw_norm_2.weight";
  names.ffn_out_norm = "post_ffw_norm_1.weight";
  names.expert_out_norm = "post_ffw_norm_2.weight";
  names.expert_w13 = "ffn_gate_up_exps.weight";
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
      .uneven_layers = true,
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
      .describe = [](const Fields& f, int window, Config* c) { describe(f, window, 256, c); },
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
  unified.describe = [](const Fields& f, int window, Config* c) { describe(f, window, 0, c); };
  return unified;
}();

}  // namespace riffle
