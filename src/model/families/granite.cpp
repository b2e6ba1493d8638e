// Granite 3 and dense Granite 4 (IBM): a Llama with four scales: of embeddings, of the outputs that
// layers add to the residual stream, of attention scores, of logits. Folders of Granite 4.0 are of
// a kind that may have state space layers and experts (granitemoehybrid). A folder without them is
// a Granite with other names of fields and tensors.
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kEmbedding = {"embedding_scale", "embedding_multiplier"},
                kResidual = {"residual_scale", "residual_multiplier"},
                kAttention = {"attention.scale", "attention_multiplier"},
                kLogits = {"logit_scale", "logits_scaling"};
// GGUF's readers take false for a model without RoPE.
constexpr Field kRotated = {"rope.scaling.finetuned", nullptr};
constexpr Field kFields[] = {
    kEmbedding,
    kResidual,
    kAttention,
    kLogits,
    kRotated,
    // Converters copy them from the config.json of dense Granite 4, whose kind may have state space
    // layers and experts. A model with such layers or experts has their tensors, which are refused.
    {"expert_shared_feed_forward_length", nullptr},
    {"ssm.conv_kernel", nullptr},
    {"ssm.state_size", nullptr},
    {"ssm.group_count", nullptr},
    {"ssm.inner_size", nullptr},
    {"ssm.time_step_rank", nullptr},
};

void describe(const Fields& f, int, Config* c) {
  constexpr double kMost = 1e6;
  if (!f.boolean(kRotated).value_or(true))
    unsupported(f.file(), f.name_of(kRotated), "false, which means no RoPE", "true");
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

constexpr Field kRouted = {nullptr, "num_local_experts"}, kTypes = {nullptr, "layer_types"},
                kPositions = {nullptr, "position_embedding_type"};
constexpr Field kHybridFields[] = {kEmbedding, kResidual, kAttention, kLogits, kRouted};

// Absent fields mean transformers' defaults, which describe another model.
void describe_hybrid(const Fields& f, int window, Config* c) {
  if (!f.has(kTypes))
    unsupported(f.file(), kTypes.json, "none, which means state space layers",
                "\"attention\" for each layer");
  const auto routed = f.integer(kRouted);
  if (routed != 0)
    unsupported(f.file(), kRouted.json,
                routed ? std::to_string(*routed) : "none, which means 8 experts", "0");
  if (const auto type = f.string(kPositions); type != "rope")
    unsupported(f.file(), kPositions.json, type ? "\"" + *type + "\"" : "none, which means no RoPE",
                "\"rope\"");
  describe(f, window, c);
}

constexpr TensorNames kHybridNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.w13 = "shared_mlp.input_linear.weight";
  names.w2 = "shared_mlp.output_linear.weight";
  names.fused_in_gguf = false;
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

extern const Family kGraniteMoeHybrid;
const Family kGraniteMoeHybrid = {
    .name = "granite",
    .model_type = "granitemoehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .defaults = {2048, 32000, 1e-6, 10000},
    .hidden_dim = {"feed_forward_length", "shared_intermediate_size"},
    .rope_interleaved = true,
    .bias_fields = true,
    .hf_names = &kHybridNames,
    .fields = kHybridFields,
    .describe = describe_hybrid,
    .values = values,
};

}  // namespace riffle
