// SmolLM3 (Hugging Face, 2025): a Llama without RoPE in every fourth layer.
#include "model/families/family.h"

namespace riffle {

extern const Family kSmolLm3;
const Family kSmolLm3 = {
    .name = "smollm3",
    .model_type = "smollm3",
    .class_name = "SmolLM3ForCausalLM",
    .defaults = {32768, 128256, 1e-6, 2e6, 4, 0, true},
    .rope_interleaved = true,
    .bias_fields = true,
    .window = Family::UNUSED,
    .no_rope_period = 4,
};

}  // namespace riffle
