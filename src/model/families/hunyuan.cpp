// Hunyuan (Tencent, 2025), dense: norms of each head of q and k, which follow RoPE. Folders stretch
// the base of RoPE by a power of `alpha`; GGUF files have the stretched base.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kFields[] = {field::kExperts, field::kExpertsNow};

void describe(const Fields& f, int, Config* c) {
  // Released dense models say that they have one expert.
  const Field experts = experts_field(f);
  if (const uint64_t n = f.integer(experts).value_or(0); n > 1)
    unsupported(f.file(), f.name_of(experts), std::to_string(n), "0 or 1");
  c->norm_after_rope = true;
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.q_norm = "self_attn.query_layernorm.weight";
  names.k_norm = "self_attn.key_layernorm.weight";
  return names;
}();

}  // namespace

extern const Family kHunyuan;
const Family kHunyuan = {
    .name = "hunyuan-dense",
    .model_type = "hunyuan_v1_dense",
    .class_name = "HunYuanDenseV1ForCausalLM",
    .defaults = {2048, 290943, 1e-5, 10000, 0, 0, false, 32},
    .rope_alpha = true,
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
