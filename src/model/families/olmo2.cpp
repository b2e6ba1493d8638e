// OLMo 2 (OLMo Team, arXiv 2501.00656): norms only after attention and FFN, and of q and k over all
// heads together.
#include "model/families/family.h"

namespace riffle {

extern const Family kOlmo2;
const Family kOlmo2 = {
    .name = "olmo2",
    .model_type = "olmo2",
    .class_name = "Olmo2ForCausalLM",
    .defaults = {2048, 50304, 1e-5, 10000},
    .pre_norm = false,
    .post_norm = true,
    .qk_norm = QkNorm::WHOLE,
    .hf_names = &kHuggingFacePostNorms,
};

}  // namespace riffle
