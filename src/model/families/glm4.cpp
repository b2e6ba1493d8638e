// GLM-4 of April 2025 (Z.ai): norms before and after attention and FFN, biases of q, k and v, half
// of each head rotated, in pairs of neighbouring dimensions, in folders too.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kBias = {nullptr, "attention_bias"};
constexpr Field kFields[] = {kBias};

void describe(const Fields& f, int, Config* c) {
  if (f.is_json()) c->qkv_bias = f.boolean(kBias).value_or(true);
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.post_attn_norm = "post_self_attn_layernorm.weight";
  names.post_ffn_norm = "post_mlp_layernorm.weight";
  return names;
}();

}  // namespace

extern const Family kGlm4;
const Family kGlm4 = {
    .name = "glm4",
    .model_type = "glm4",
    .class_name = "Glm4ForCausalLM",
    .defaults = {131072, 151552, 1.5625e-7, 10000, 2, 128, false, 32},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .post_norm = true,
    .partial_rope = true,
    .partial_default = 0.5,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
