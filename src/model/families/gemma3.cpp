// Gemma 3 (Gemma Team, arXiv 2503.19786), text part: five layers with a window to one without,
// another RoPE base for each kind, norms before and after attention and FFN, norms of q and k,
// GeGLU, embeddings times the square root of their width.
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLocalBase = {"rope.freq_base_swa", "rope_local_base_freq"},
                kQueryScalar = {nullptr, "query_pre_attn_scalar"},
                kBase = {"rope.freq_base", nullptr};
constexpr Field kFields[] = {kLocalBase, kQueryScalar, kBase};

// Returns the factor, for which GGUF has no key. Only the 27B model, which has 62 layers, scales by
// dim / heads.
double gguf_scalar(const Config& c) { return c.n_layers == 62 ? c.dim / c.n_heads : c.head_dim; }

void describe(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of five layers in six");
  require_in_gguf(f, kBase, "the base of RoPE in layers without a window");
  c->embedding_scale = std::sqrt(static_cast<float>(c->dim));
  set_local_rope(f, kLocalBase, 10000, c);
  c->set_score_scale(
      1 / std::sqrt(f.is_json() ? positive(f, kQueryScalar, 1e6, 256) : gguf_scalar(*c)));
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  Config usual = c;
  usual.set_score_scale(1 / std::sqrt(gguf_scalar(c)));
  if (std::fabs(usual.ropes[0].factor - c.ropes[0].factor) > 1e-5f)
    unsupported(where, kQueryScalar.json, "another scale of attention scores",
                format("%g, to write the model as GGUF", gguf_scalar(c)));
  return {{kLocalBase, c.ropes[1].theta}};
}

// transformers multiplies by 1 + weight; GGUF's converters add the 1.
constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFacePostNorms;
  names.norm_offset = 1;
  return names;
}();

}  // namespace

extern const Family kGemma3;
const Family kGemma3 = {
    .name = "gemma3",
    .model_type = "gemma3_text",
    .class_name = "Gemma3ForCausalLM",
    .multimodal_type = "gemma3",
    .multimodal_class = "Gemma3ForConditionalGeneration",
    .defaults = {131072, 262208, 1e-6, 1e6, 4, 256, true, 8},
    .post_norm = true,
    .qk_norm = QkNorm::HEAD,
    .window = Family::PERIOD,
    .window_period = 6,
    .window_default = 4096,
    .activation = Activation::GELU_TANH,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
