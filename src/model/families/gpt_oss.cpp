// gpt-oss (OpenAI, arXiv 2508.10925): a mixture of experts in all layers, every second one with a
// window, the first among them; attention sinks; biases everywhere; SwiGLU with clamped arguments.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kExperts = {"expert_count", "num_local_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "intermediate_size"},
                kLimit = {nullptr, "swiglu_limit"}, kAlpha = {nullptr, "swiglu_alpha"},
                kBias = {nullptr, "attention_bias"}, kBase = {"rope.freq_base", nullptr},
                kScaling = {"rope.scaling.type", nullptr};
constexpr Field kFields[] = {kExperts, kUsed, kWidth, kLimit, kAlpha, kBias, kBase, kScaling};

void describe(const Fields& f, int window, Config* c) {
  read_experts(f, {kExperts, kUsed, kWidth}, {128, 4, 2880}, c);
  c->experts.bias = true;
  for (LayerConfig& layer : c->layers) layer.has_experts = true;
  c->sinks = true;
  // A GGUF file has these biases if it has their tensors.
  if (f.is_json()) c->qkv_bias = c->o_bias = f.boolean(kBias).value_or(true);
  for (const auto& [field, expected] : {std::pair{kLimit, 7.0}, {kAlpha, 1.702}})
    if (const double given = f.number(field).value_or(expected); given != expected)
      unsupported(f.file(), f.name_of(field), format("%g", given), format("%g", expected));
  require_window_in_gguf(f, window, "the window of every second layer");
  require_in_gguf(f, kBase, "the base of RoPE");
  require_in_gguf(f, kScaling, "the scaling of RoPE");
  // If both are absent, transformers takes the scaling of the released models.
  if (f.is_json() && !f.has({nullptr, "rope_scaling"}) && !f.has({nullptr, "rope_parameters"}))
    bad_model(f.file(), "rope_scaling", "none", "the scaling of RoPE");
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.router = "mlp.router.weight";
  names.router_bias = "mlp.router.bias";
  names.expert = nullptr;
  names.expert_w1 = names.expert_w3 = "mlp.experts.gate_up_proj";
  names.expert_w2 = "mlp.experts.down_proj";
  names.expert_b1 = names.expert_b3 = "mlp.experts.gate_up_proj_bias";
  names.expert_b2 = "mlp.experts.down_proj_bias";
  names.packed_experts = true;
  return names;
}();

// GGUF names the norm before the experts by its place in the layer.
constexpr TensorNames kNamesInGguf = [] {
  TensorNames names = kGgufNames;
  names.ffn_norm = "post_attention_norm.weight";
  return names;
}();

}  // namespace

extern const Family kGptOss;
const Family kGptOss = {
    .name = "gpt-oss",
    .model_type = "gpt_oss",
    .class_name = "GptOssForCausalLM",
    .defaults = {131072, 201088, 1e-5, 150000, 8, 64},
    .yarn_truncated = false,
    .window = Family::PERIOD,
    .window_period = 2,
    .window_default = 128,
    .activation = Activation::CLAMPED_SILU,
    .hf_names = &kNames,
    .gguf_names = &kNamesInGguf,
    .mxfp4 = true,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
