// Llama 1 to 3.2 (Touvron et al., arXiv 2302.13971) and models that are stored as one.
#include "model/families/family.h"

namespace riffle {

extern const Family kLlama;
const Family kLlama = {
    .name = "llama",
    .model_type = "llama",
    .class_name = "LlamaForCausalLM",
    .defaults = {2048, 0, 1e-6, 10000},
    .rope_interleaved = true,
    .bias_fields = true,
    .any_window_in_gguf = true,  // Mistral's files say "llama", too
};

}  // namespace riffle
