// OLMo 3 (Olmo Team, 2025): OLMo 2 with three layers with a window to one without. Layers with a
// window take RoPE as first trained, the others take it with YaRN. Its GGUF files say "olmo2".
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kLocalBase = {"rope.freq_base_swa", nullptr};
constexpr Field kFields[] = {kLocalBase};

void describe(const Fields& f, int, Config* c) {
  set_local_rope(f, kLocalBase, c->ropes[0].theta, c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string&) {
  if (c.ropes.size() == 1) return {};  // an OLMo 2
  return {{kLocalBase, c.ropes[1].theta}};
}

}  // namespace

extern const Family kOlmo3;
const Family kOlmo3 = {
    .name = "olmo2",
    .model_type = "olmo3",
    .class_name = "Olmo3ForCausalLM",
    .defaults = {2048, 50304, 1e-5, 500000},
    .pre_norm = false,
    .post_norm = true,
    .qk_norm = QkNorm::WHOLE,
    .whole_attn_factor = true,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 4096,
    .hf_names = &kHuggingFacePostNorms,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
