// Mistral 7B (Jiang et al., arXiv 2310.06825): a Llama whose layers may have a window. Its GGUF
// files say "llama".
#include "model/families/family.h"

namespace riffle {

extern const Family kMistral;
const Family kMistral = {
    .name = "llama",
    .model_type = "mistral",
    .class_name = "MistralForCausalLM",
    .multimodal_type = "mistral3",
    .multimodal_class = "Mistral3ForConditionalGeneration",
    .defaults = {131072, 0, 1e-6, 10000, 8},
    .rope_interleaved = true,
    .window = Family::ALWAYS,
    .window_default = 4096,
};

}  // namespace riffle
