// ERNIE 4.5 (Baidu, 2025), dense: RoPE pairs neighbouring dimensions, in folders too; biases of all
// matrices or of none.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kBias = {nullptr, "use_bias"};
constexpr Field kFields[] = {kBias};

void describe(const Fields& f, int, Config* c) {
  if (f.is_json()) c->qkv_bias = c->o_bias = c->mlp_bias = f.boolean(kBias).value_or(false);
}

}  // namespace

extern const Family kErnie45;
const Family kErnie45 = {
    .name = "ernie4_5",
    .model_type = "ernie4_5",
    .class_name = "Ernie4_5ForCausalLM",
    .defaults = {131072, 103424, 1e-5, 500000, 2, 128, true, 16},
    .rope_interleaved = true,
    .interleaved_in_folders = true,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
