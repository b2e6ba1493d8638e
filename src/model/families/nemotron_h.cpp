// Nemotron-H, Nemotron 3 (NVIDIA, arXiv 2504.03624): a layer is a Mamba-2, or attends without RoPE,
// or is an FFN or a mixture of experts without gates.
#include <algorithm>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kPattern = {nullptr, "hybrid_override_pattern"},
                kKinds = {nullptr, "layers_block_type"},
                kEps = {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
                kTaps = {"ssm.conv_kernel", "conv_kernel"},
                kGroups = {"ssm.group_count", "n_groups"},
                kHeads = {"ssm.time_step_rank", "mamba_num_heads"},
                kStateDim = {"ssm.state_size", "ssm_state_size"},
                kHeadDim = {nullptr, "mamba_head_dim"}, kInner = {"ssm.inner_size", nullptr},
                kDraft = {"nextn_predict_layers", nullptr},
                kExperts = {"expert_count", "n_routed_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kSharedWidth = {"expert_shared_feed_forward_length",
                                "moe_shared_expert_intermediate_size"},
                kShared = {"expert_shared_count", "n_shared_experts"},
                kExpertGroups = {"expert_group_count", "n_group"},
                kUsedGroups = {"expert_group_used_count", "topk_group"},
                kRenormalised = {"expert_weights_norm", "norm_topk_prob"},
                kScale = {"expert_weights_scale", "routed_scaling_factor"},
                kLatent = {"moe_latent_size", "moe_latent_size"};
constexpr Field kFields[] = {
    field::kRotated, kEps,         kTaps,         kGroups,     kHeads,        kStateDim, kHeadDim,
    kInner,          kDraft,       kPattern,      kKinds,      kExperts,      kUsed,     kWidth,
    kShared,         kSharedWidth, kExpertGroups, kUsedGroups, kRenormalised, kScale,    kLatent};

void set_kind(LayerConfig* layer, Mixer mixer, bool has_ffn, bool has_experts) {
  layer->mixer = mixer;
  layer->has_ffn = has_ffn;
  layer->has_experts = has_experts;
}

// Reads what each layer is: a letter, or a word of transformers' older or newer versions.
void read_kinds(const Fields& f, Config* c) {
  std::vector<std::string> kinds = f.strings(kKinds);
  const Field& field = kinds.empty() ? kPattern : kKinds;
  if (kinds.empty())
    for (const char letter : f.string(kPattern).value_or("")) kinds.push_back({letter});
  if (kinds.size() != static_cast<size_t>(c->n_layers))
    bad_model(f.file(), f.name_of(field), std::to_string(kinds.size()) + " layers",
              std::to_string(c->n_layers) + ", as " + f.name_of(field::kLayers));
  for (size_t l = 0; l < kinds.size(); ++l) {
    const auto is = [&](std::initializer_list<const char*> words) {
      return std::ranges::find(words, kinds[l]) != words.end();
    };
    LayerConfig* const layer = &c->layers[l];
    if (is({"M", "mamba", "linear_attention"})) set_kind(layer, Mixer::RECURRENT, false, false);
    else if (is({"*", "attention", "full_attention"}))
      set_kind(layer, Mixer::ATTENTION, false, false);
    else if (is({"-", "mlp"})) set_kind(layer, Mixer::NONE, true, false);
    else if (is({"E", "moe"})) set_kind(layer, Mixer::NONE, true, true);
    else
      unsupported(f.file(), f.name_of(field),
                  "\"" + printable(kinds[l], 40) + "\" at " + std::to_string(l),
                  "M (mamba), * (attention), - (mlp) or E (moe)");
  }
}

// A layer with a width is an FFN; one with KV heads attends.
void read_widths(const Fields& f, bool experts, Config* c) {
  const std::string name = f.name_of(field::kHiddenDim);
  const std::vector<int64_t> widths = f.integers(name);
  for (int l = 0; l < c->n_layers; ++l) {
    LayerConfig& layer = c->layers[l];
    if (widths[l] > 0 && layer.mixer == Mixer::ATTENTION)
      bad_model(f.file(), name, std::to_string(widths[l]) + " in layer " + std::to_string(l),
                "0, since the layer has KV heads");
    if (widths[l] > 0) set_kind(&layer, Mixer::NONE, true, experts);
    else layer.has_ffn = false;
  }
}

void refuse_options(const Fields& f) {
  if (!f.is_json()) return;
  for (const auto& [name, expected] :
       {std::pair{"use_conv_bias", true}, {"mamba_proj_bias", false}, {"use_bias", false}})
    if (f.boolean(name).value_or(expected) != expected)
      unsupported(f.file(), name, expected ? "false" : "true", expected ? "true" : "false");
  for (const auto& [name, expected] :
       {std::pair{"mlp_hidden_act", "relu2"}, {"mamba_hidden_act", "silu"}})
    if (const auto given = f.string(name); given && *given != expected)
      unsupported(f.file(), name, "\"" + printable(*given, 40) + "\"",
                  "\"" + std::string(expected) + "\"");
}

void describe_experts(const Fields& f, Config* c) {
  read_experts(f, {kExperts, kUsed, kWidth, true}, {8, 2, 7688}, c);
  for (const auto& [field, expected] :
       {std::pair{kExpertGroups, 1}, {kUsedGroups, 1}, {kShared, 1}, {kLatent, 0}})
    if (const auto given = f.integer(field); given && *given != static_cast<uint64_t>(expected))
      unsupported(f.file(), f.name_of(field), std::to_string(*given), std::to_string(expected));
  c->experts.shared_dim = dimension(f, f.name_of(kSharedWidth), 1 << 24, f.is_json() ? 7688 : 0);
  c->experts.renormalised = f.boolean(kRenormalised).value_or(f.is_json());
  Routing& routing = c->experts.routing;
  routing.sigmoid = routing.choice_bias = true;
  routing.sum_eps = 1e-20f;
  routing.scale = positive(f, kScale, 1e6, 1);
  c->architecture = "nemotron_h_moe";
}

void describe(const Fields& f, int, Config* c) {
  refuse_options(f);
  if (f.is_json()) c->norm_eps = c->post_norm_eps = positive(f, kEps, 1, 1e-5);
  c->ropes[0] = {};
  read_draft_layers(f, kDraft, c);
  if (f.is_json()) read_kinds(f, c);
  else read_widths(f, c->architecture == "nemotron_h_moe", c);
  require_attention(f, *c, f.has(kKinds) ? kKinds.json : kPattern.json);
  if (std::ranges::any_of(c->layers, &LayerConfig::has_experts)) describe_experts(f, c);
  if (std::ranges::count(c->layers, Mixer::RECURRENT, &LayerConfig::mixer) == 0)
    c->recurrence.kind = Recurrence::NONE;
  else
    read_mamba2(f, {kTaps, kGroups, kHeads, kStateDim, kHeadDim, kInner},
                {Recurrence::MAMBA2, 4, 8, 128, 128, 64}, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  const auto has_ffn = [&](bool experts) {
    return std::ranges::any_of(c.layers, [&](const LayerConfig& layer) {
      return layer.has_ffn && layer.has_experts == experts;
    });
  };
  if (has_ffn(true) && has_ffn(false))
    unsupported(where, "layers", "FFNs and mixtures of experts",
                "one of them, to write the model as GGUF");
  if (!has_ffn(true)) return {};
  return {{kScale, c.experts.routing.scale}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.embedding = "backbone.embeddings.weight";
  names.final_norm = "backbone.norm_f.weight";
  names.layer = "backbone.layers.%d.";
  names.attn_norm = names.ffn_norm = "norm.weight";
  names.wq = "mixer.q_proj.weight";
  names.wk = "mixer.k_proj.weight";
  names.wv = "mixer.v_proj.weight";
  names.wo = "mixer.o_proj.weight";
  names.w3 = "mixer.up_proj.weight";
  names.w2 = "mixer.down_proj.weight";
  names.router = "mixer.gate.weight";
  names.choice_bias = "mixer.gate.e_score_correction_bias";
  names.expert = "mixer.experts.%d.";
  names.shared_w3 = "mixer.shared_experts.up_proj.weight";
  names.shared_w2 = "mixer.shared_experts.down_proj.weight";
  names.mix = [](const RecurrenceConfig&) {
    return std::vector<const char*>{"mixer.in_proj.weight", "mixer.conv1d.weight",
                                    "mixer.conv1d.bias",    "mixer.A_log",
                                    "mixer.dt_bias",        "mixer.D",
                                    "mixer.norm.weight"};
  };
  names.mix_out = "mixer.out_proj.weight";
  names.log_decay = true;
  names.drafts = "mtp.";
  return names;
}();
// Names that transformers has in memory.
constexpr TensorNames kNewNames = [] {
  TensorNames names = kNames;
  names.embedding = "model.embeddings.weight";
  names.final_norm = "model.norm_f.weight";
  names.layer = "model.layers.%d.";
  names.stacked_w3 = "mixer.experts.up_proj";
  names.stacked_w2 = "mixer.experts.down_proj";
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.drafts = names.layer;
  names.draft_mark = "nextn.";
  names.ffn_norm = names.attn_norm;
  names.mix = mamba2_gguf_mix;
  names.mix_out = "ssm_out.weight";
  return names;
}();

}  // namespace

extern const Family kNemotronH, kNemotronHMoe;
const Family kNemotronH = {
    .name = "nemotron_h",
    .model_type = "nemotron_h",
    .class_name = "NemotronHForCausalLM",
    .defaults = {4096, 131072, 1e-5, 10000, 8, 128},
    .partial_rope = true,  // GGUF files have a number, though nothing is rotated
    .activation = Activation::RELU_SQUARED,
    .recurrence = Recurrence::MAMBA2,
    .one_part = true,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .hf_names_too = &kNewNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

const Family kNemotronHMoe = {
    .name = "nemotron_h_moe",
    .model_type = "nemotron_h",
    .defaults = {4096, 131072, 1e-5, 10000, 8, 128},
    .partial_rope = true,
    .activation = Activation::RELU_SQUARED,
    .recurrence = Recurrence::MAMBA2,
    .one_part = true,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
