// Mellum 2 (JetBrains, 2026): a Qwen3 mixture whose layers may have a window. Layers with one take
// RoPE as first trained, the others take it with YaRN.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kRenormalised = {nullptr, "norm_topk_prob"},
                kLocalBase = {"rope.freq_base_swa", nullptr},
                kDraft = {nullptr, "num_nextn_predict_layers"};
constexpr Field kFields[] = {field::kExperts, field::kExpertsNow, field::kFfnTypes, kUsed,
                             kWidth,          kRenormalised,      kLocalBase,       kDraft};

void describe(const Fields& f, int, Config* c) {
  if (f.is_json() && !f.has(field::kWindowed))
    for (LayerConfig& layer : c->layers) layer.window = 0;
  require_local_rope(f, *c);
  set_local_rope(f, kLocalBase, f.is_json() ? 10000 : c->ropes[0].theta, c);
  // Old GGUF files lack the width. It then follows from the dense one, as in llama.cpp.
  read_experts(f, {experts_field(f), kUsed, kWidth, true}, {64, 8, 896}, c);
  c->experts.renormalised = f.boolean(kRenormalised).value_or(true);
  read_ffn_types(f, 0, c);
  read_draft_layers(f, kDraft, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  // llama.cpp reads no key for either.
  if (!c.experts.renormalised)
    unsupported(where, kRenormalised.json, "false", "true, to write the model as GGUF");
  if (!std::ranges::all_of(c.layers, &LayerConfig::has_experts))
    unsupported(where, field::kFfnTypes.json, "\"dense\"",
                "\"sparse\" in all layers, to write the model as GGUF");
  return {{kLocalBase, c.ropes[1].theta}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.drafts = "mtp.";
  return names;
}();

}  // namespace

extern const Family kMellum;
const Family kMellum = {
    .name = "mellum",
    .model_type = "mellum",
    .class_name = "MellumForCausalLM",
    .defaults = {131072, 98304, 1e-6, 500000, 4, 128, false, 32},
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 1024,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
