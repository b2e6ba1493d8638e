// Granite 3 and Granite 4 (IBM): a Llama with four scales: of embeddings, of the outputs that
// layers add to the residual stream, of attention scores, of logits. Hybrid Granite 4 has Mamba-2
// layers, and may have experts and no RoPE. Folders of Granite 4.0 are of its kind
// (granitemoehybrid). A folder without Mamba-2 and experts is a Granite with other names of fields
// and tensors. Granite Swash is a Granite with attention sinks and three layers with a window to
// one without; each layer has a base of RoPE, or no RoPE.
#include <algorithm>
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kEmbedding = {"embedding_scale", "embedding_multiplier"},
                kResidual = {"residual_scale", "residual_multiplier"},
                kAttention = {"attention.scale", "attention_multiplier"},
                kLogits = {"logit_scale", "logits_scaling"};
constexpr Field kFields[] = {
    kEmbedding,
    kResidual,
    kAttention,
    kLogits,
    field::kRotated,
    // Converters copy them from the config.json of dense Granite 4, whose kind may have state space
    // layers and experts. A model with such layers or experts has their tensors, which are refused.
    {"expert_shared_feed_forward_length", nullptr},
    {"ssm.conv_kernel", nullptr},
    {"ssm.state_size", nullptr},
    {"ssm.group_count", nullptr},
    {"ssm.inner_size", nullptr},
    {"ssm.time_step_rank", nullptr},
};

void drop_rope(Config* c) {
  c->ropes[0].theta = 0;
  c->ropes[0].scaling = {};
}

void describe(const Fields& f, int, Config* c) {
  constexpr double kMost = 1e6;
  if (!f.boolean(field::kRotated).value_or(true)) drop_rope(c);
  c->embedding_scale = positive(f, kEmbedding, kMost, 1);
  c->residual_scale = positive(f, kResidual, kMost, 1);
  require_in_gguf(f, kLogits, "the divisor of the logits");
  c->logit_scale = 1 / positive(f, kLogits, kMost, 1);
  // transformers' default is 1; GGUF's readers take the default of all other families.
  const double usual = 1 / std::sqrt(static_cast<double>(c->head_dim));
  c->set_score_scale(positive(f, kAttention, kMost, f.is_json() ? 1 : usual));
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string&) {
  const float factor = c.ropes[0].factor;
  return {{kEmbedding, c.embedding_scale},
          {kResidual, c.residual_scale},
          {kAttention, factor * factor / std::sqrt(static_cast<float>(c.head_dim))},
          {kLogits, 1 / c.logit_scale}};
}

constexpr Field kTypes = {nullptr, "layer_types"},
                kPositions = {nullptr, "position_embedding_type"},
                kExperts = {"expert_count", "num_local_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "intermediate_size"},
                kShared = {"expert_shared_feed_forward_length", "shared_intermediate_size"},
                kTaps = {"ssm.conv_kernel", "mamba_d_conv"},
                kGroups = {"ssm.group_count", "mamba_n_groups"},
                kHeads = {"ssm.time_step_rank", "mamba_n_heads"},
                kStateDim = {"ssm.state_size", "mamba_d_state"},
                kHeadDim = {nullptr, "mamba_d_head"}, kInner = {"ssm.inner_size", nullptr},
                kConvBias = {nullptr, "mamba_conv_bias"}, kProjBias = {nullptr, "mamba_proj_bias"};
constexpr Field kHybridFields[] = {kEmbedding, kResidual, kAttention, kLogits,   field::kRotated,
                                   kPositions, kExperts,  kUsed,      kWidth,    kShared,
                                   kTaps,      kGroups,   kHeads,     kStateDim, kHeadDim,
                                   kInner,     kConvBias, kProjBias};

// Absent fields mean transformers' defaults.
void describe_hybrid(const Fields& f, int window, Config* c) {
  if (f.is_json() && !f.has(kTypes))
    bad_model(f.file(), kTypes.json, "none, which means Mamba-2 in all layers",
              "at least one layer that attends");
  require_attention(f, *c);
  describe(f, window, c);
  if (const auto type = f.string(kPositions); f.is_json() && type != "rope") {
    if (type && *type != "nope")
      unsupported(f.file(), kPositions.json, "\"" + *type + "\"", "\"rope\", \"nope\" or null");
    drop_rope(c);
  }
  const uint64_t routed = f.integer(kExperts).value_or(f.is_json() ? 8 : 0);
  if (routed > 0) {
    read_experts(f, {kExperts, kUsed, f.has(kWidth) ? kWidth : field::kHiddenDim}, {8, 2, 11008},
                 c);
    c->experts.shared_dim = dimension(f, f.name_of(kShared), 1 << 24, f.is_json() ? 1024 : 0);
    c->hidden_dim = c->experts.hidden_dim;
    for (LayerConfig& layer : c->layers) layer.has_experts = true;
  }
  const bool recurrent = std::ranges::count(c->layers, Mixer::RECURRENT, &LayerConfig::mixer) > 0;
  if (!recurrent) c->recurrence.kind = Recurrence::NONE;
  if (recurrent || routed > 0) c->architecture = "granitehybrid";
  if (!recurrent) return;
  for (const auto& [field, expected] : {std::pair{kConvBias, true}, {kProjBias, false}})
    if (f.boolean(field).value_or(expected) != expected)
      unsupported(f.file(), f.name_of(field), expected ? "false" : "true",
                  expected ? "true" : "false");
  read_mamba2(f, {kTaps, kGroups, kHeads, kStateDim, kHeadDim, kInner},
              {Recurrence::MAMBA2, 4, 1, 128, 256}, c);
}

constexpr Field kRopePattern = {"attention.rope_pattern", nullptr},
                kThetas = {nullptr, "layer_rope_theta"};
constexpr Field kSwaFields[] = {kEmbedding, kResidual, kAttention, kLogits, kRopePattern, kThetas};

void check_entries(const Fields& f, const Field& field, size_t n, const Config& c) {
  if (f.has(field)) require_one_per_layer(f, field, n, c);
}

// Gives each layer the RoPE of its base; base 0: none.
void read_bases(const std::vector<double>& bases, Config* c) {
  const auto first = std::ranges::find_if(bases, [](double base) { return base > 0; });
  if (first != bases.end()) c->ropes[0].theta = static_cast<float>(*first);
  for (int l = 0; l < c->n_layers; ++l) {
    const auto theta = static_cast<float>(bases[l]);
    const auto same =
        std::ranges::find_if(c->ropes, [&](const Rope& rope) { return rope.theta == theta; });
    c->layers[l].rope = static_cast<int>(same - c->ropes.begin());
    if (same != c->ropes.end()) continue;
    c->ropes.push_back(theta > 0 ? c->ropes[0] : Rope());
    c->ropes.back().theta = theta;
  }
}

void describe_swa(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of three layers in four");
  std::vector<double> bases = f.numbers(kThetas);
  check_entries(f, kThetas, bases.size(), *c);
  const std::vector<bool> rotated = f.booleans(kRopePattern);
  check_entries(f, kRopePattern, rotated.size(), *c);
  for (const bool layer : rotated) bases.push_back(layer ? c->ropes[0].theta : 0);
  for (const double base : bases)
    if (!(base == 0 || base > 1) || !(base <= 1e15))
      bad_model(f.file(), f.name_of(kThetas), format("%g", base), "0, or above 1 up to 1e15");
  if (!bases.empty()) read_bases(bases, c);
  c->sinks = true;
  describe(f, window, c);
}

std::vector<std::pair<Field, float>> swa_values(const Config& c, const std::string& where) {
  const double base = c.ropes[0].theta;
  for (const LayerConfig& layer : c.layers)
    if (const double other = c.ropes[layer.rope].theta; other > 0 && other != base)
      unsupported(where, kThetas.json, format("%g and %g", base, other),
                  "one value besides 0, to write the model as GGUF");
  if (std::ranges::none_of(c.layers, [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, "layer_types", "no \"sliding_attention\"",
                "at least one such layer, to write the model as GGUF");
  return values(c, where);
}

constexpr TensorNames kHybridNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.w13 = names.shared_w13 = "shared_mlp.input_linear.weight";
  names.w2 = names.shared_w2 = "shared_mlp.output_linear.weight";
  names.fused_in_gguf = false;
  names.router = "block_sparse_moe.router.layer.weight";
  names.expert_w13 = "block_sparse_moe.input_linear.weight";
  names.stacked_w2 = "block_sparse_moe.output_linear.weight";
  names.mix = [](const RecurrenceConfig&) {
    return std::vector<const char*>{"mamba.in_proj.weight", "mamba.conv1d.weight",
                                    "mamba.conv1d.bias",    "mamba.A_log",
                                    "mamba.dt_bias",        "mamba.D",
                                    "mamba.norm.weight"};
  };
  names.mix_out = "mamba.out_proj.weight";
  names.log_decay = true;
  return names;
}();
constexpr TensorNames kHybridGguf = [] {
  TensorNames names = kGgufNames;
  names.mix = mamba2_gguf_mix;
  names.mix_out = "ssm_out.weight";
  return names;
}();

}  // namespace

extern const Family kGranite;
const Family kGranite = {
    .name = "granite",
    .model_type = "granite",
    .class_name = "GraniteForCausalLM",
    .defaults = {2048, 32000, 1e-6, 10000},
    .rope_interleaved = true,
    .bias_fields = true,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

extern const Family kGraniteSwa;
const Family kGraniteSwa = {
    .name = "granite_swa",
    .model_type = "granite_swa",
    .class_name = "GraniteSWAForCausalLM",
    .defaults = {8192, 100352, 1e-5, 10000, 4, 0, true, 20},
    .rope_interleaved = true,
    .bias_fields = true,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 128,
    .full_first = true,
    .fields = kSwaFields,
    .describe = describe_swa,
    .values = swa_values,
};

extern const Family kGraniteMoeHybrid, kGraniteHybrid;
const Family kGraniteMoeHybrid = {
    .name = "granite",
    .model_type = "granitemoehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .defaults = {2048, 32000, 1e-6, 10000},
    .hidden_dim = {"feed_forward_length", "shared_intermediate_size"},
    .rope_interleaved = true,
    .bias_fields = true,
    .recurrence = Recurrence::MAMBA2,
    .recurrent_word = "mamba",
    .recurrent_word_too = "linear_attention",
    .hf_names = &kHybridNames,
    .fields = kHybridFields,
    .describe = describe_hybrid,
    .values = values,
};

const Family kGraniteHybrid = {
    .name = "granitehybrid",
    .model_type = "granitemoehybrid",
    .defaults = {2048, 32000, 1e-6, 10000},
    .rope_interleaved = true,
    .bias_fields = true,
    .recurrence = Recurrence::MAMBA2,
    .gguf_names = &kHybridGguf,
    .fields = kHybridFields,
    .describe = describe_hybrid,
    .values = values,
};

}  // namespace riffle
