// ERNIE 4.5 (Baidu, 2025), mixtures of experts: as the dense models, with experts that a softmax
// and a bias choose, and shared experts, in all layers but the first ones.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kBias = {nullptr, "use_bias"}, kExperts = {"expert_count", "moe_num_experts"},
                kUsed = {"expert_used_count", "moe_k"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kShared = {"expert_shared_count", "moe_num_shared_experts"},
                kSharedWidth = {"expert_shared_feed_forward_length", nullptr},
                kFirst = {"leading_dense_block_count", "moe_layer_start_index"},
                kLast = {nullptr, "moe_layer_end_index"},
                kInterval = {"interleave_moe_layer_step", "moe_layer_interval"},
                kLeastSum = {nullptr, "moe_norm_min"}, kGating = {"expert_gating_func", nullptr},
                kDraft = {nullptr, "num_nextn_predict_layers"};
constexpr Field kFields[] = {kBias,  kExperts, kUsed,     kWidth,    kShared, kSharedWidth,
                             kFirst, kLast,    kInterval, kLeastSum, kGating, kDraft};
constexpr double kUsualLeastSum = 1e-12;

// -1 means the model's last layer.
int last_with_experts(const Fields& f, const Config& c) {
  const double given = f.number(kLast).value_or(-1);
  return given >= 0 && given < c.n_layers ? static_cast<int>(given) : c.n_layers - 1;
}

void read_layers(const Fields& f, Config* c) {
  const uint64_t first = f.integer(kFirst).value_or(f.is_json() ? 1 : 0),
                 interval = f.integer(kInterval).value_or(f.is_json() ? 1 : 0);
  if (interval == 0)
    bad_model(f.file(), f.name_of(kInterval), f.has(kInterval) ? "0" : "none", "at least 1");
  const int last = last_with_experts(f, *c);
  for (int l = 0; l < c->n_layers; ++l) {
    const auto at = static_cast<uint64_t>(l);
    c->layers[l].has_experts = at >= first && l <= last && (at + 1) % interval == 0;
  }
}

void describe(const Fields& f, int, Config* c) {
  if (f.boolean(kBias).value_or(false)) unsupported(f.file(), f.name_of(kBias), "true", "false");
  constexpr uint64_t kSoftmax = 1;
  if (const uint64_t gating = f.integer(kGating).value_or(0); gating != 0 && gating != kSoftmax)
    unsupported(f.file(), f.name_of(kGating), std::to_string(gating), "1 (softmax)");
  read_experts(f, {kExperts, kUsed, kWidth}, {64, 6, 1536}, c);
  constexpr uint64_t kMostShared = 64;
  const uint64_t shared = f.integer(kShared).value_or(f.is_json() ? 2 : 0);
  if (shared > kMostShared)
    bad_model(f.file(), f.name_of(kShared), std::to_string(shared),
              "at most " + std::to_string(kMostShared));
  if (f.is_json()) c->experts.shared_dim = static_cast<int>(shared) * c->experts.hidden_dim;
  else if (f.integer(kSharedWidth).value_or(0) > 0)
    c->experts.shared_dim = dimension(f, f.name_of(kSharedWidth), 1 << 24);
  c->experts.routing.choice_bias = true;
  c->experts.routing.least_sum = positive(f, kLeastSum, 1, kUsualLeastSum);
  read_layers(f, c);
  read_draft_layers(f, kDraft, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  if (c.experts.routing.least_sum != static_cast<float>(kUsualLeastSum))
    unsupported(where, kLeastSum.json, format("%g", c.experts.routing.least_sum),
                format("%g, to write the model as GGUF", kUsualLeastSum));
  require_leading_dense(c, where, kLast.json);
  return {};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  names.shared_w1 = "mlp.shared_experts.gate_proj.weight";
  names.shared_w3 = "mlp.shared_experts.up_proj.weight";
  names.shared_w2 = "mlp.shared_experts.down_proj.weight";
  names.drafts = "model.mtp_";
  return names;
}();

}  // namespace

extern const Family kErnie45Moe;
const Family kErnie45Moe = {
    .name = "ernie4_5-moe",
    .model_type = "ernie4_5_moe",
    .class_name = "Ernie4_5_MoeForCausalLM",
    .defaults = {131072, 103424, 1e-5, 500000, 4, 0, true, 20},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
