// Command R and R7B (Cohere, 2024): attention and FFN of a layer next to each other, norms that
// subtract the mean, RoPE of neighbouring dimensions, logits with a scale. In R7B three layers with
// a window and RoPE come before one without either.
#include <algorithm>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLogits = {"logit_scale", "logit_scale"}, kEps = {nullptr, "layer_norm_eps"},
                kPattern = {nullptr, "sliding_window_pattern"},
                kWindow = {nullptr, "sliding_window"};
constexpr Field kFields[] = {kLogits, kEps, kPattern, kWindow};

void describe(const Fields& f, int, Config* c) {
  c->parallel_ffn = true;
  if (f.is_json()) c->norm_eps = c->post_norm_eps = positive(f, kEps, 1, 1e-5);
  require_in_gguf(f, kLogits, "the factor of the logits");
  c->logit_scale = positive(f, kLogits, 1e6, 0.0625);
}

void describe_windows(const Fields& f, int window, Config* c) {
  require_window_in_gguf(f, window, "the window of three layers in four");
  if (window == 0)
    bad_model(f.file(), f.name_of(kWindow), "null",
              "a number of tokens, the window of three layers in four");
  c->ropes.push_back({});  // theta 0: no RoPE
  for (LayerConfig& layer : c->layers)
    if (layer.window == 0) layer.rope = static_cast<int>(c->ropes.size()) - 1;
  describe(f, window, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  // llama.cpp reads no output matrix.
  if (!c.tied_output)
    unsupported(where, "tie_word_embeddings", "false", "true, to write the model as GGUF");
  return {{kLogits, c.logit_scale}};
}

std::vector<std::pair<Field, float>> windowed_values(const Config& c, const std::string& where) {
  if (std::ranges::none_of(c.layers, [](const LayerConfig& layer) { return layer.window > 0; }))
    unsupported(where, "layer_types", "no \"sliding_attention\"",
                "at least one such layer, to write the model as GGUF");
  return values(c, where);
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.ffn_norm = nullptr;
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.ffn_norm = nullptr;
  return names;
}();

}  // namespace

extern const Family kCohere, kCohere2;
const Family kCohere = {
    .name = "command-r",
    .model_type = "cohere",
    .class_name = "CohereForCausalLM",
    .defaults = {8192, 256000, 1e-5, 500000, 0, 0, true, 64},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .layer_norm = true,
    .bias_fields = true,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

const Family kCohere2 = {
    .name = "cohere2",
    .model_type = "cohere2",
    .class_name = "Cohere2ForCausalLM",
    .defaults = {8192, 256000, 1e-5, 10000, 0, 0, true, 64},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .layer_norm = true,
    .bias_fields = true,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 4096,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe_windows,
    .values = windowed_values,
};

}  // namespace riffle
