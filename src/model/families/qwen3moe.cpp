// Qwen3's mixtures of experts (Yang et al., arXiv 2505.09388): a Qwen3 whose FFN is a mixture, in
// all layers or in those that config.json does not make dense.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kRenormalised = {"expert_weights_norm", "norm_topk_prob"},
                kRenormalisedToo = {"norm_top_k_prob", nullptr},  // Ollama's converter
    kGating = {"expert_gating_func", nullptr}, kScale = {"expert_weights_scale", nullptr};
constexpr Field kFields[] = {
    field::kExperts, field::kExpertsNow, kUsed,   kWidth, field::kExpertStep, field::kDenseLayers,
    kRenormalised,   kRenormalisedToo,   kGating, kScale};

// Checks fields with which GGUF files of other families describe their routers. 0 is "not set".
void check_router(const Fields& f) {
  constexpr uint64_t kSoftmax = 1;
  const uint64_t gating = f.integer(kGating).value_or(0);
  if (gating != 0 && gating != kSoftmax)
    unsupported(f.file(), f.name_of(kGating), std::to_string(gating), "1 (softmax)");
  const double scale = f.number(kScale).value_or(0);
  if (scale != 0 && scale != 1) unsupported(f.file(), f.name_of(kScale), format("%g", scale), "1");
}

bool renormalised(const Fields& f) {
  const auto norm = f.boolean(kRenormalised), too = f.boolean(kRenormalisedToo);
  if (norm && too && *norm != *too)
    bad_model(f.file(), f.name_of(kRenormalisedToo), *too ? "true" : "false",
              f.name_of(kRenormalised) + " = " + (*norm ? "true" : "false"));
  // All released models of the family renormalise. GGUF files without the key follow them, as in
  // llama.cpp; config.json's default is transformers'.
  return norm ? *norm : too.value_or(!f.is_json());
}

void describe(const Fields& f, int, Config* c) {
  // Old GGUF files lack the width. It then follows from the dense one, as in llama.cpp.
  read_experts(f, {experts_field(f), kUsed, kWidth, true}, {128, 8, 768}, c);
  check_router(f);
  c->experts.renormalised = renormalised(f);
  read_dense_layers(f, c);
}

}  // namespace

extern const Family kQwen3Moe;
const Family kQwen3Moe = {
    .name = "qwen3moe",
    .model_type = "qwen3_moe",
    .class_name = "Qwen3MoeForCausalLM",
    .defaults = {32768, 0, 1e-6, 10000, 4},
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .window = Family::UNUSED,
    .fields = kFields,
    .describe = describe,
    .values = values_of_mixture,
};

}  // namespace riffle
