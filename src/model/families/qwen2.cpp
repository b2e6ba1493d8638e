// Qwen2 and Qwen2.5 (Yang et al., arXiv 2407.10671): biases of q, k and v.
#include "model/families/family.h"

namespace riffle {

extern const Family kQwen2;
const Family kQwen2 = {
    .name = "qwen2",
    .model_type = "qwen2",
    .class_name = "Qwen2ForCausalLM",
    .defaults = {32768, 0, 1e-6, 10000, 32},
    .qkv_bias = true,
    .window = Family::IF_USED,
    .window_default = 4096,
};

}  // namespace riffle
