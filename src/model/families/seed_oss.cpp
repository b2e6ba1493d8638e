// Seed-OSS (ByteDance, 2025), trained with 524,288 tokens: biases of q, k and v, which config.json
// may switch off, and optionally of attention's output.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kBias = {nullptr, "attention_bias"}, kOutBias = {nullptr, "attention_out_bias"};
constexpr Field kFields[] = {kBias, kOutBias};

// GGUF shows its biases by their tensors.
void describe(const Fields& f, int, Config* c) {
  if (!f.is_json()) return;
  c->qkv_bias = f.boolean(kBias).value_or(true);
  c->o_bias = f.boolean(kOutBias).value_or(false);
}

constexpr TensorNames kNames = [] {
  TensorNames names = kGgufNames;
  names.ffn_norm = "post_attention_norm.weight";
  return names;
}();

}  // namespace

extern const Family kSeedOss;
const Family kSeedOss = {
    .name = "seed_oss",
    .model_type = "seed_oss",
    .class_name = "SeedOssForCausalLM",
    .defaults = {524288, 155136, 1e-6, 10000, 8, 128, false, 80},
    .gguf_names = &kNames,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
