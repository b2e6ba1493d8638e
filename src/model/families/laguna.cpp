// Laguna (poolside, 2026): every fourth layer, the first among them, has no window, its own number
// of query heads, and YaRN in a part of each head; the others have a window and RoPE as first
// trained. Norms of each head of q and k, a gate by softplus on attention's output, experts that a
// sigmoid and a bias choose, and a shared expert.
#include <algorithm>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kHeads = {nullptr, "num_attention_heads_per_layer"}, kGating = {nullptr, "gating"},
                kGatingTypes = {nullptr, "gating_types"},
                kLocalBase = {"rope.freq_base_swa", nullptr},
                kLocalRotated = {"rope.dimension_count_swa", nullptr},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kSharedWidth = {"expert_shared_feed_forward_length",
                                "shared_expert_intermediate_size"},
                kShared = {"expert_shared_count", nullptr},
                kDense = {"leading_dense_block_count", nullptr},
                kRenormalised = {"expert_weights_norm", nullptr},
                kScale = {"expert_weights_scale", "moe_routed_scaling_factor"},
                kFunction = {"expert_gating_func", nullptr},
                kAtInput = {nullptr, "moe_apply_router_weight_on_input"},
                kRouterCap = {nullptr, "moe_router_logit_softcapping"};
constexpr Field kFields[] = {
    kHeads,    kGating,      kGatingTypes, kLocalBase,      kLocalRotated,      kUsed,
    kWidth,    kSharedWidth, kShared,      kDense,          kRenormalised,      kScale,
    kFunction, kAtInput,     kRouterCap,   field::kExperts, field::kExpertsNow, field::kFfnTypes};

// Reads the number of query heads of each layer. Blocks of the KV cache are chosen in the layers
// without a window, which must be alike.
void read_heads(const Fields& f, Config* c) {
  set_heads(f, kHeads, f.integers(kHeads), c);  // those of GGUF were read before
  int full = -1;                                // the first layer without a window
  for (int l = 0; l < c->n_layers; ++l) {
    if (c->layers[l].window > 0) continue;
    if (full < 0) full = l;
    if (c->heads(l) != c->heads(full))
      unsupported(f.file(), f.name_of(f.is_json() ? kHeads : field::kHeads),
                  std::to_string(c->heads(l)) + " in layer " + std::to_string(l),
                  format("%d, as in layer %d, since neither has a window", c->heads(full), full));
  }
}

// Returns "per-head" or "per-element".
std::string gate_type(const Fields& f, const Field& field, std::string word) {
  std::ranges::replace(word, '_', '-');
  if (word != "per-head" && word != "per-element")
    unsupported(f.file(), f.name_of(field), "\"" + printable(word, 40) + "\"",
                "true, \"per-head\" or \"per-element\"");
  return word;
}

// Sets whether there is a gate for each head or for each value. GGUF shows it by the tensors.
void read_gates(const Fields& f, Config* c) {
  c->attention_gate = c->softplus_gate = true;
  if (!f.is_json()) return;
  const bool named = f.has(kGating) && !f.is_boolean(f.name_of(kGating));
  if (!named && !f.boolean(kGating).value_or(true))
    unsupported(f.file(), f.name_of(kGating), "false", "true, \"per-head\" or \"per-element\"");
  const std::string all = named ? gate_type(f, kGating, *f.string(kGating)) : "per-head";
  for (const std::string& word : f.strings(kGatingTypes))
    if (gate_type(f, kGatingTypes, word) != all)
      unsupported(f.file(), f.name_of(kGatingTypes), "\"" + printable(word, 40) + "\"",
                  "\"" + all + "\", as gating says");
  c->head_gate = all == "per-head";
}

void read_ropes(const Fields& f, Config* c) {
  if (f.is_json() && !f.has(field::kWindowed))
    for (LayerConfig& layer : c->layers) layer.window = 0;
  if (f.is_json() && !f.has({nullptr, "rope_parameters"})) c->ropes[0].rotated = c->head_dim / 2;
  require_local_rope(f, *c);
  set_local_rope(f, kLocalBase, f.is_json() ? 10000 : c->ropes[0].theta, c);
  if (f.is_json()) return;
  // Without the field, layers with a window rotate as many dimensions as the others, as in
  // llama.cpp.
  const int usual = c->ropes[0].rotated > 0 ? c->ropes[0].rotated : c->head_dim;
  const int rotated = dimension(f, f.name_of(kLocalRotated), kMaxHeadDim, usual);
  if (rotated > c->head_dim || rotated % 2 != 0)
    bad_model(f.file(), f.name_of(kLocalRotated), std::to_string(rotated),
              "an even number up to " + std::to_string(c->head_dim));
  if (rotated != c->head_dim) c->ropes[1].rotated = rotated;
}

void refuse_options(const Fields& f) {
  constexpr uint64_t kSigmoid = 2;
  if (const uint64_t function = f.integer(kFunction).value_or(0);
      function != 0 && function != kSigmoid)
    unsupported(f.file(), f.name_of(kFunction), std::to_string(function), "2 (sigmoid)");
  if (f.boolean(kAtInput).value_or(false))
    unsupported(f.file(), f.name_of(kAtInput), "true", "false");
  if (const double cap = f.number(kRouterCap).value_or(0); cap != 0)
    unsupported(f.file(), f.name_of(kRouterCap), format("%g", cap), "0");
}

void describe(const Fields& f, int, Config* c) {
  refuse_options(f);
  read_ropes(f, c);
  read_heads(f, c);
  read_gates(f, c);
  read_experts(f, {experts_field(f), kUsed, kWidth}, {256, 8, 512}, c);
  c->experts.shared_dim =
      dimension(f, f.name_of(kSharedWidth), 1 << 24, f.is_json() ? 512 : c->experts.hidden_dim);
  c->experts.renormalised = f.boolean(kRenormalised).value_or(f.is_json());
  Routing& routing = c->experts.routing;
  routing.sigmoid = routing.choice_bias = true;
  routing.scale = positive(f, kScale, 1e6, 1);
  read_ffn_types(f, f.integer(kDense).value_or(f.is_json() ? 1 : 0), c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  require_leading_dense(c, where, field::kFfnTypes.json);
  const Rope& local = c.ropes[1];
  if (local.scaling.type != RopeScaling::NONE)
    unsupported(where, "rope_parameters.sliding_attention", "a scaling of RoPE",
                "\"default\", to write the model as GGUF");
  return {{kLocalBase, local.theta}, {kScale, c.experts.routing.scale}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.wgate = "self_attn.g_proj.weight";
  names.choice_bias = "mlp.experts.e_score_correction_bias";
  names.shared_w1 = "mlp.shared_expert.gate_proj.weight";
  names.shared_w3 = "mlp.shared_expert.up_proj.weight";
  names.shared_w2 = "mlp.shared_expert.down_proj.weight";
  return names;
}();

}  // namespace

extern const Family kLaguna;
const Family kLaguna = {
    .name = "laguna",
    .model_type = "laguna",
    .class_name = "LagunaForCausalLM",
    .defaults = {131072, 100352, 1e-6, 500000, 8, 128, false, 48},
    .uneven_heads = true,
    .qk_norm = QkNorm::HEAD,
    .bias_fields = true,
    .partial_rope = true,
    .window = Family::PERIOD,
    .window_period = 4,
    .window_default = 512,
    .full_first = true,
    .hf_names = &kNames,
    .fields = kFields,
    .describe = describe,
    .values = values,
};

}  // namespace riffle
