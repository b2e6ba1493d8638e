// Command R and R7B (Cohere, 2024): attention and FFN of a layer next to each other, norms that
// subtract the mean, RoPE of neighbouring dimensions, logits with a scale. In R7B three layers with
// a window and RoPE come before one without either. Mixtures (North Mini Code, Command A+, 2026)
// are as R7B, with experts in all layers but the first ones.
#include <algorithm>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLogits = {"logit_scale", "logit_scale"}, kEps = {nullptr, "layer_norm_eps"},
                kPattern = {nullptr, "sliding_window_pattern"},
                kWindow = {nullptr, "sliding_window"};
constexpr Field kFields[] = {kLogits, kEps, kPattern, kWindow};

void describe(const Fields& f, int, Config* c) {
  c->parallel_ffn = true;
  if (f.is_json()) c->norm_eps = c->post_norm_eps = positive(f, kEps, 1, 1e-5);
  require_in_gguf(f, kLogits, "the factor of the logits");
  c->logit_scale = positive(f, kLogits, 1e6, 0.0625);
}

void describe_windows(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of three layers in four");
  if (window == 0)
    bad_model(f.file(), f.name_of(kWindow), "null",
              "a number: the window in tokens of three layers in four");
  c->ropes.push_back({});  // theta 0: no RoPE
  for (LayerConfig& layer : c->layers)
    if (layer.window == 0) layer.rope = static_cast<int>(c->ropes.size()) - 1;
  describe(f, window, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  // llama.cpp reads no output matrix.
  if (!c.tied_output)
    unsupported(where, "tie_word_embeddings", "false", "true, to write the model as GGUF");
  return {{kLogits, c.logit_scale}};
}

std::vector<std::pair<Field, float>> windowed_values(const Config& c, const std::string& where) {
  if (std::ranges::none_of(c.layers, [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, "layer_types", "no \"sliding_attention\"",
                "at least one such layer, to write the model as GGUF");
  return values(c, where);
}

constexpr Field kRmsEps = {nullptr, "rms_norm_eps"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "intermediate_size"},
                kDenseWidth = {"feed_forward_length", "prefix_dense_intermediate_size"},
                kDensePattern = {nullptr, "prefix_dense_sliding_window_pattern"},
                kShared = {"expert_shared_count", "num_shared_experts"},
                kSharedWidth = {"expert_shared_feed_forward_length", nullptr},
                kCombined = {nullptr, "shared_expert_combination_strategy"},
                kGating = {"expert_gating_func", "expert_selection_fn"},
                kRenormalised = {"expert_weights_norm", "norm_topk_prob"},
                kScale = {"expert_weights_scale", nullptr},
                kDraft = {"nextn_predict_layers", "num_nextn_predict_layers"};
constexpr Field kMoeFields[] = {kLogits,          kEps,
                                kPattern,         kWindow,
                                kRmsEps,          kUsed,
                                kWidth,           kDenseWidth,
                                kDensePattern,    kShared,
                                kSharedWidth,     kCombined,
                                kGating,          kRenormalised,
                                kScale,           kDraft,
                                field::kExperts,  field::kExpertsNow,
                                field::kFfnTypes, field::kLeadingDense};
constexpr int kPeriod = 4;

std::string quoted(const std::string& word) { return "\"" + printable(word, 40) + "\""; }

// Tells whether experts are chosen by sigmoids.
bool read_gating(const Fields& f) {
  const std::string name = f.name_of(kGating);
  if (f.is_json()) {
    const std::string word = f.string(kGating).value_or("softmax");
    if (word != "softmax" && word != "sigmoid")
      unsupported(f.file(), name, quoted(word), "\"softmax\" or \"sigmoid\"");
    return word == "sigmoid";
  }
  constexpr uint64_t kSoftmax = 1, kSigmoid = 2;
  const uint64_t given = f.integer(kGating).value_or(0);  // 0: a sigmoid, as in llama.cpp
  if (given > kSigmoid)
    unsupported(f.file(), name, std::to_string(given), "1 (softmax) or 2 (sigmoid)");
  return given != kSoftmax;
}

// Reads the width of the shared experts, which are one, and how their output is added. GGUF has no
// key for the latter: llama.cpp takes the mean.
void read_shared(const Fields& f, ExpertsConfig* e) {
  constexpr uint64_t kMostShared = 64;
  const uint64_t shared = f.integer(kShared).value_or(0);
  if (shared > kMostShared)
    bad_model(f.file(), f.name_of(kShared), std::to_string(shared),
              "at most " + std::to_string(kMostShared));
  const std::string how = f.string(kCombined).value_or("average");
  if (how != "average" && how != "sum")
    unsupported(f.file(), f.name_of(kCombined), quoted(how), "\"average\" or \"sum\"");
  if (shared == 0) return;
  e->shared_dim = static_cast<int>(shared) * e->hidden_dim;
  if (f.integer(kSharedWidth).value_or(0) > 0)
    e->shared_dim = dimension(f, f.name_of(kSharedWidth), 1 << 24);
  if (how == "average") e->routing.scale = e->shared_scale = 0.5f;
}

void describe_experts(const Fields& f, Config* c) {
  read_experts(f, {experts_field(f), kUsed, kWidth}, {8, 2, 22528}, c);
  ExpertsConfig& e = c->experts;
  e.routing = {.sigmoid = read_gating(f)};
  // transformers ignores the field after a softmax.
  e.renormalised =
      (f.is_json() && !e.routing.sigmoid) || f.boolean(kRenormalised).value_or(f.is_json());
  read_shared(f, &e);
  if (!f.is_json()) e.routing.scale *= positive(f, kScale, 1e6, 1);
  read_ffn_types(f, f.integer(field::kLeadingDense).value_or(0), c);
}

// Gives layers their window if config.json does not name those that have it: the first layers,
// without experts, have a period of their own.
void read_periods(const Fields& f, int window, Config* c) {
  const uint64_t dense = f.integer(field::kLeadingDense).value_or(0),
                 of_dense = f.integer(kDensePattern).value_or(1),
                 period = f.integer(kPattern).value_or(kPeriod);
  if (of_dense == 0) bad_model(f.file(), f.name_of(kDensePattern), "0", "at least 1");
  for (uint64_t l = 0; l < c->layers.size(); ++l) {
    const bool full = l < dense ? (l + 1) % of_dense == 0 : (l - dense + 1) % period == 0;
    c->layers[l].window = full ? 0 : window;
  }
}

void describe_mixture(const Fields& f, int window, Config* c) {
  read_draft_layers(f, kDraft, c);
  if (f.is_json() && window > 0 && !f.has(field::kWindowed)) read_periods(f, window, c);
  describe_windows(f, window, c);
  describe_experts(f, c);
  const bool rms = f.has(f.is_json() ? kRmsEps : field::kNormEps);
  c->layer_norm = !rms;
  if (f.is_json() && rms) c->norm_eps = c->post_norm_eps = positive(f, kRmsEps, 1, 0);
  if (f.integer(kDensePattern).value_or(1) != 1) return;
  for (LayerConfig& layer : c->layers)  // such layers have RoPE without a window
    if (!layer.has_experts) layer.rope = 0;
}

std::vector<std::pair<Field, float>> mixture_values(const Config& c, const std::string& where) {
  if (std::ranges::none_of(c.layers, [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, "layer_types", "no \"sliding_attention\"",
                "at least one such layer, to write the model as GGUF");
  require_leading_dense(c, where, field::kFfnTypes.json);
  for (const LayerConfig& layer : c.layers)
    if (!layer.has_experts && c.ropes[layer.rope].theta == 0)
      unsupported(where, kDensePattern.json, "a layer without experts, window and RoPE",
                  "1, to write the model as GGUF");
  const ExpertsConfig& e = c.experts;
  if (e.shared_dim > 0 && e.shared_scale == 1)
    unsupported(where, kCombined.json, "\"sum\"", "\"average\", to write the model as GGUF");
  return {{kLogits, c.logit_scale}, {kScale, e.routing.scale / e.shared_scale}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.ffn_norm = nullptr;
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.ffn_norm = nullptr;
  return names;
}();
constexpr TensorNames kMoeNames = [] {
  TensorNames names = kNames;
  names.shared_w1 = "mlp.shared_experts.gate_proj.weight";
  names.shared_w3 = "mlp.shared_experts.up_proj.weight";
  names.shared_w2 = "mlp.shared_experts.down_proj.weight";
  names.drafts = names.layer;
  return names;
}();
constexpr TensorNames kMoeGguf = [] {
  TensorNames names = kGguf;
  names.drafts = names.layer;
  names.draft_mark = "nextn.";
  return names;
}();

}  // namespace

extern const Family kCohere, kCohere2, kCohere2Moe;
const Family kCohere = {
    .name = "command-r",
    .model_type = "cohere",
    .class_name = "CohereForCausalLM",
    .defaults = {8192, 256000, 1e-5, 500000, 0, 0, true, 64},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .layer_norm = true,
    .bias_fields = true,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

const Family kCohere2 = {
    .name = "cohere2",
    .model_type = "cohere2",
    .class_name = "Cohere2ForCausalLM",
    .defaults = {8192, 256000, 1e-5, 10000, 0, 0, true, 64},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .layer_norm = true,
    .bias_fields = true,
    .window = Family::PERIOD,
    .window_period = kPeriod,
    .window_default = 4096,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe_windows,
    .values = windowed_values,
};

const Family kCohere2Moe = {
    .name = "cohere2moe",
    .model_type = "cohere2_moe",
    .class_name = "Cohere2MoeForCausalLM",
    .defaults = {8192, 256000, 1e-5, 10000, 0, 128, true, 64},
    .hidden_dim = kDenseWidth,
    .old_hidden_dim = kWidth.json,
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .layer_norm = true,
    .bias_fields = true,
    .window = Family::PERIOD,
    .window_period = kPeriod,
    .window_default = 4096,
    .full_first = true,
    .hf_names = &kMoeNames,
    .gguf_names = &kMoeGguf,
    .fields = kMoeFields,
    .describe = describe_mixture,
    .values = mixture_values,
};

}  // namespace riffle
