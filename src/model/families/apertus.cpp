// Apertus (Swiss AI, arXiv 2509.14233): FFNs without gates, whose activation xIELU has values of
// its own in each layer; norms of each head of q and k.
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kAlphaP = {".xielu.alpha_p", nullptr}, kAlphaN = {".xielu.alpha_n", nullptr},
                kBeta = {".xielu.beta", nullptr}, kEps = {".xielu.eps", nullptr};
constexpr Field kFields[] = {kAlphaP, kAlphaN, kBeta, kEps};

void describe(const Fields& f, int, Config* c) {
  // If both are absent, transformers takes the scaling of the released models.
  if (f.is_json() && !f.has({nullptr, "rope_scaling"}) && !f.has({nullptr, "rope_parameters"}))
    bad_model(f.file(), "rope_parameters", "none", "the scaling of RoPE");
  if (f.is_json()) return;  // folders have the values as tensors
  for (const auto& [field, member] : {std::pair{kAlphaP, &Xielu::alpha_p},
                                      {kAlphaN, &Xielu::alpha_n},
                                      {kBeta, &Xielu::beta},
                                      {kEps, &Xielu::eps}}) {
    const std::vector<double> all = f.numbers(field);
    require_one_per_layer(f, field, all.size(), *c);
    for (int l = 0; l < c->n_layers; ++l) {
      if (!std::isfinite(all[l]))
        bad_model(f.file(), f.name_of(field), format("%g in layer %d", all[l], l),
                  "a finite number");
      c->layers[l].xielu.*member = static_cast<float>(all[l]);
    }
  }
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.attn_norm = "attention_layernorm.weight";
  names.ffn_norm = "feedforward_layernorm.weight";
  names.xielu_alpha_p = "mlp.act_fn.alpha_p";
  names.xielu_alpha_n = "mlp.act_fn.alpha_n";
  names.xielu_beta = "mlp.act_fn.beta";
  names.xielu_eps = "mlp.act_fn.eps";
  return names;
}();

}  // namespace

extern const Family kApertus;
const Family kApertus = {
    .name = "apertus",
    .model_type = "apertus",
    .class_name = "ApertusForCausalLM",
    .defaults = {65536, 131072, 1e-5, 12000000, 0, 0, false, 32},
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .activation = Activation::XIELU,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
