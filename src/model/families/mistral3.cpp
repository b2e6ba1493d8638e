// Ministral 3 (Mistral AI, 2025): YaRN, and queries that grow with the logarithm of their position.
#include "model/families/family.h"

namespace riffle {

namespace {

// config.json has it among the parameters of RoPE (llama_4_scaling_beta), where it is read.
constexpr Field kTemperature = {"attention.temperature_scale", nullptr};
constexpr Field kFields[] = {kTemperature};

void describe(const Fields& f, int, Config* c) {
  // If both are absent, transformers takes the scaling of the released models.
  if (f.is_json() && !f.has({nullptr, "rope_scaling"}) && !f.has({nullptr, "rope_parameters"}))
    bad_model(f.file(), "rope_parameters", "none", "the scaling of RoPE");
  Rope& rope = c->ropes[0];
  if (!f.is_json() && f.number(kTemperature).value_or(0) != 0) {
    rope.temperature = positive(f, kTemperature, 1e6, 0);
    rope.temperature_ctx = rope.scaling.original_ctx;
  }
  if (rope.temperature == 0) return;
  if (rope.temperature_ctx < 1)
    bad_model(f.file(), f.name_of({"rope.scaling.original_context_length", "rope_parameters"}),
              "none", "the length up to which queries are not scaled");
  Rope of_queries = rope;
  rope.temperature = 0;
  c->ropes.push_back(of_queries);
  for (LayerConfig& layer : c->layers) layer.query_rope = static_cast<int>(c->ropes.size()) - 1;
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string&) {
  const int rope = c.query_rope(0);
  return {{kTemperature, c.ropes[rope].temperature}};
}

}  // namespace

extern const Family kMistral3;
const Family kMistral3 = {
    .name = "mistral3",
    .model_type = "ministral3",
    .class_name = "Ministral3ForCausalLM",
    .multimodal_type = "mistral3",
    .multimodal_class = "Mistral3ForConditionalGeneration",
    .defaults = {262144, 131072, 1e-5, 1e6, 8, 128},
    .rope_interleaved = true,
    .window = Family::ALWAYS,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
