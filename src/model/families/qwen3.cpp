// Qwen3 (Yang et al., arXiv 2505.09388): norms of each head of q and k.
#include "model/families/family.h"

namespace riffle {

extern const Family kQwen3;
const Family kQwen3 = {
    .name = "qwen3",
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .defaults = {32768, 0, 1e-6, 10000, 32, 128},
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .window = Family::IF_USED,
    .window_default = 4096,
};

}  // namespace riffle
