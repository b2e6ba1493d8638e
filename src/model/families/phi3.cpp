// Phi-3 and Phi-4 (Abdin et al., arXiv 2404.14219): one matrix for q, k and v, one for gate and up;
// Phi-4-mini rotates three quarters of a head; long contexts by LongRoPE.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kPartial = {"rope.dimension_count", "partial_rotary_factor"};
constexpr Field kOriginal = {nullptr, "original_max_position_embeddings"};
constexpr Field kFields[] = {kPartial, kOriginal};

}  // namespace

extern const Family kPhi3;
const Family kPhi3 = {
    .name = "phi3",
    .model_type = "phi3",
    .class_name = "Phi3ForCausalLM",
    .defaults = {4096, 32064, 1e-5, 10000},
    .partial_rope = true,
    .original_ctx_default = 4096,
    .window = Family::ALWAYS,
    .fields = kFields,
};

}  // namespace riffle
