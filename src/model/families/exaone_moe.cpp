// K-EXAONE and other mixtures of EXAONE (LG AI Research, 2026): norms before attention and FFN, and
// of each head of q and k; three layers with a window to one without, which has no RoPE; experts
// that a sigmoid and a bias choose, and a shared expert, in all layers but the first ones.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kPattern = {nullptr, "sliding_window_pattern"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kShared = {"expert_shared_count", "num_shared_experts"},
                kSharedWidth = {"expert_shared_feed_forward_length", nullptr},
                kGroups = {"expert_group_count", "n_group"},
                kUsedGroups = {"expert_group_used_count", "topk_group"},
                kRenormalised = {"expert_weights_norm", "norm_topk_prob"},
                kScale = {"expert_weights_scale", "routed_scaling_factor"},
                kGating = {"expert_gating_func", "scoring_func"},
                kDraft = {"nextn_predict_layers", "num_nextn_predict_layers"};
constexpr Field kFields[] = {kPattern,    field::kExperts,  field::kExpertsNow,  kUsed,
                             kWidth,      kShared,          kSharedWidth,        kGroups,
                             kUsedGroups, kScale,           kRenormalised,       kGating,
                             kDraft,      field::kFfnTypes, field::kLeadingDense};

// GGUF files have the number of a sigmoid; folders may name it.
void check_gating(const Fields& f) {
  constexpr uint64_t kSigmoid = 2;
  const std::string name = f.name_of(kGating);
  if (!f.is_json() && f.integer(kGating).value_or(0) != kSigmoid)
    unsupported(f.file(), name, std::to_string(f.integer(kGating).value_or(0)), "2 (sigmoid)");
  if (const auto given = f.is_json() ? f.string(kGating) : std::nullopt;
      given && *given != "sigmoid")
    unsupported(f.file(), name, "\"" + printable(*given, 40) + "\"", "\"sigmoid\"");
}

void describe_experts(const Fields& f, Config* c) {
  read_experts(f, {experts_field(f), kUsed, kWidth}, {64, 8, 1024}, c);
  for (const Field& field : {kGroups, kUsedGroups})
    if (const uint64_t given = f.integer(field).value_or(1); given != 1)
      unsupported(f.file(), f.name_of(field), std::to_string(given), "1");
  check_gating(f);
  constexpr int kMostShared = 64, kMostWidth = 1 << 24;
  c->experts.shared_dim =
      f.is_json() ? c->experts.hidden_dim * dimension(f, f.name_of(kShared), kMostShared, 1)
                  : dimension(f, f.name_of(kSharedWidth), kMostWidth, c->experts.hidden_dim);
  c->experts.renormalised = f.boolean(kRenormalised).value_or(f.is_json());
  Routing& routing = c->experts.routing;
  routing.sigmoid = routing.choice_bias = true;
  routing.sum_eps = 1e-20f;
  routing.scale = positive(f, kScale, 1e6, f.is_json() ? 2.5 : 1);
  read_ffn_types(f, f.integer(field::kLeadingDense).value_or(f.is_json() ? 1 : 0), c);
}

void describe(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of three layers in four");
  read_draft_layers(f, kDraft, c);
  describe_experts(f, c);
  if (window == 0) return;
  c->ropes.push_back({});  // theta 0: no RoPE
  for (LayerConfig& layer : c->layers)
    if (layer.window == 0) layer.rope = static_cast<int>(c->ropes.size()) - 1;
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  require_leading_dense(c, where, field::kFfnTypes.json);
  if (std::ranges::none_of(c.layers, [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, "layer_types", "no \"sliding_attention\"",
                "at least one such layer, to write the model as GGUF");
  return {{kScale, c.experts.routing.scale}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.choice_bias = "mlp.e_score_correction_bias";
  names.shared_w1 = "mlp.shared_experts.gate_proj.weight";
  names.shared_w3 = "mlp.shared_experts.up_proj.weight";
  names.shared_w2 = "mlp.shared_experts.down_proj.weight";
  names.drafts = "mtp.";
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.drafts = names.layer;
  names.draft_mark = "nextn.";
  return names;
}();

}  // namespace

extern const Family kExaoneMoe;
const Family kExaoneMoe = {
    .name = "exaone-moe",
    .model_type = "exaone_moe",
    .class_name = "ExaoneMoeForCausalLM",
    .defaults = {2048, 102400, 1e-5, 10000, 32, 0, false, 32},
    .qk_norm = QkNorm::HEAD,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 4096,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
