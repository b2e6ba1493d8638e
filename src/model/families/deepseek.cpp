// DeepSeek-V2 and V3 (arXiv 2405.04434, 2412.19437) and GLM-4.7-Flash (Z.ai): multi-head latent
// attention with RoPE of neighbouring dimensions, and experts next to shared ones after some dense
// layers. GGUF has one architecture for all.
#include <algorithm>
#include <cmath>

#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kKvRank = {"attention.kv_lora_rank", "kv_lora_rank"},
                kQueryRank = {"attention.q_lora_rank", "q_lora_rank"},
                kQuery = {"attention.key_length_mla", nullptr},
                kValue = {"attention.value_length_mla", "v_head_dim"},
                kOldValue = {"attention.value_length", nullptr},
                kNope = {nullptr, "qk_nope_head_dim"},
                kRotatedDim = {"rope.dimension_count", "qk_rope_head_dim"},
                kInterleaved = {nullptr, "rope_interleave"},
                kDraft = {"nextn_predict_layers", "num_nextn_predict_layers"},
                kExperts = {"expert_count", "n_routed_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kShared = {"expert_shared_count", "n_shared_experts"},
                kSharedWidth = {"expert_shared_feed_forward_length", nullptr},
                kDense = {"leading_dense_block_count", "first_k_dense_replace"},
                kStep = {nullptr, "moe_layer_freq"}, kGating = {"expert_gating_func", nullptr},
                kScoring = {nullptr, "scoring_func"}, kChoice = {nullptr, "topk_method"},
                kGroups = {"expert_group_count", "n_group"},
                kUsedGroups = {"expert_group_used_count", "topk_group"},
                kRenormalised = {"expert_weights_norm", "norm_topk_prob"},
                kScale = {"expert_weights_scale", "routed_scaling_factor"};
constexpr Field kFields[] = {kKvRank,     kQueryRank,    kQuery,       kValue,   kNope,
                             kRotatedDim, kInterleaved,  kDraft,       kExperts, kUsed,
                             kWidth,      kShared,       kSharedWidth, kDense,   field::kFfnTypes,
                             kStep,       kGating,       kScoring,     kChoice,  kGroups,
                             kUsedGroups, kRenormalised, kScale};

// The epsilon of the norms of latents. No file has it.
constexpr float kLatentEps = 1e-6f;

// transformers' values for absent fields of a config.json.
struct Usual {
  int query_rank, nope_dim, value_dim;
  ExpertsConfig experts;
  int shared, dense;
  float scale;
  bool sigmoid, groups = false;
};

// Sets the sizes of heads, RoPE and the scale of scores.
void describe_attention(const Fields& f, const Usual& usual, Config* c) {
  constexpr int kMostRank = 1 << 16;
  const auto size = [&](const Field& field, int most, int fallback) {
    return dimension(f, f.name_of(field), most, f.is_json() ? fallback : 0);
  };
  // GGUF files of 2024 have the sizes of each head's keys and values under the usual names, and
  // attn_kv_b in place of attn_k_b and attn_v_b.
  const bool old = !f.is_json() && !f.has(kQuery);
  LatentConfig& l = c->latent;
  l.kv_rank = size(kKvRank, kMaxHeadDim, 512);
  if (f.integer(kQueryRank).value_or(0) > 0) l.q_rank = size(kQueryRank, kMostRank, 0);
  l.rope_dim = size(kRotatedDim, kMaxHeadDim, 64);
  l.value_dim = size(old ? kOldValue : kValue, kMaxHeadDim, usual.value_dim);
  if (l.rope_dim % 2 != 0)
    bad_model(f.file(), f.name_of(kRotatedDim), std::to_string(l.rope_dim), "an even number");
  if (f.is_json()) {
    l.nope_dim = size(kNope, kMaxHeadDim, usual.nope_dim);
  } else {
    const Field& field = old ? field::kHeadDim : kQuery;
    const int query = size(field, kMaxHeadDim, 0), heads = old ? c->n_heads : 1;
    if (query <= l.rope_dim)
      bad_model(f.file(), f.name_of(field), std::to_string(query),
                "above " + f.name_of(kRotatedDim) + " = " + std::to_string(l.rope_dim));
    l.nope_dim = query - l.rope_dim;
    if (!old && c->head_dim != l.kv_rank + l.rope_dim)
      bad_model(f.file(), f.name_of(field::kHeadDim), std::to_string(c->head_dim),
                format("%d, which is %s plus %s", l.kv_rank + l.rope_dim,
                       f.name_of(kKvRank).c_str(), f.name_of(kRotatedDim).c_str()));
    if (c->n_kv_heads != heads)
      unsupported(f.file(), f.name_of(field::kKvHeads), std::to_string(c->n_kv_heads),
                  std::to_string(heads));
  }
  c->head_dim = l.kv_rank + l.rope_dim;
  if (c->head_dim % 2 != 0 || c->head_dim > kMaxHeadDim)
    bad_model(f.file(), f.name_of(kKvRank), std::to_string(l.kv_rank),
              format("an even number up to %d", kMaxHeadDim - l.rope_dim));
  c->n_kv_heads = 1;
  if (c->qkv_bias || c->o_bias)
    unsupported(f.file(), f.is_json() ? "attention_bias" : "biases of attention's products",
                f.is_json() ? "true" : "at least one", "none, with latent attention");
  if (f.is_json() && c->ropes[0].rotated > 0)
    unsupported(f.file(), "partial_rotary_factor",
                format("a factor that rotates %d dimensions", c->ropes[0].rotated), "1");
  if (!f.boolean(kInterleaved).value_or(true))
    unsupported(f.file(), f.name_of(kInterleaved), "false", "true");
  Rope& rope = c->ropes[0];
  rope.rotated = 0;
  rope.skipped = l.kv_rank;
  rope.head_dim = l.rope_dim;
  double scale = std::sqrt(static_cast<double>(c->head_dim) / l.query_dim());
  if (RopeScaling& s = rope.scaling; s.type == RopeScaling::YARN && s.mscale_all_dim > 0) {
    if (!f.is_json()) {  // GGUF stores a tenth of it and no mscale, which riffle takes to be equal
      s.mscale_all_dim *= 10;
      s.attention_factor = 1;
    }
    const double sharper =
        s.factor <= 1 ? 1 : 0.1 * s.mscale_all_dim * std::log(static_cast<double>(s.factor)) + 1;
    scale *= sharper * sharper;
  }
  l.query_scale = static_cast<float>(scale);
  c->layer_norm_eps = c->norm_eps;
  c->norm_eps = kLatentEps;
}

// Tells which layers have experts. dense: first layers without, if the file does not say.
void read_kinds(const Fields& f, int dense, Config* c) {
  read_ffn_types(f, f.integer(kDense).value_or(f.is_json() ? static_cast<uint64_t>(dense) : 0), c);
  if (const uint64_t step = f.integer(kStep).value_or(1); step != 1)
    unsupported(f.file(), f.name_of(kStep), std::to_string(step), "1");
}

// v3: config.json is one of DeepSeek-V3, which has 8 groups if it does not say.
void read_groups(const Fields& f, bool v3, Config* c) {
  constexpr int kMostGroups = 64;
  Routing& routing = c->experts.routing;
  routing.n_groups = dimension(f, f.name_of(kGroups), kMostGroups, v3 ? 8 : 1);
  routing.used_groups = dimension(f, f.name_of(kUsedGroups), routing.n_groups,
                                  v3 ? std::min(4, routing.n_groups) : routing.n_groups);
  if (routing.n_groups == 1) return;
  const int size = c->experts.n / routing.n_groups;
  if (c->experts.n % routing.n_groups != 0 || size < 2)
    bad_model(f.file(), f.name_of(kGroups), std::to_string(routing.n_groups),
              "a divisor of " + f.name_of(kExperts) + " = " + std::to_string(c->experts.n) +
                  ", with at least 2 experts in a group");
  if (routing.used_groups * size < c->experts.n_used)
    bad_model(f.file(), f.name_of(kUsedGroups), std::to_string(routing.used_groups),
              format("groups with at least %d experts together", c->experts.n_used));
  if (!routing.sigmoid)
    unsupported(f.file(), f.name_of(kGroups), std::to_string(routing.n_groups),
                "1: riffle chooses groups only with a sigmoid router");
}

// Refuses a word that changes the choice of experts.
void require_word(const Fields& f, const Field& field, const char* expected) {
  if (const auto given = f.string(field); given && *given != expected)
    unsupported(f.file(), f.name_of(field), "\"" + printable(*given, 40) + "\"",
                "\"" + std::string(expected) + "\"");
}

void describe_experts(const Fields& f, const Usual& usual, Config* c) {
  read_experts(f, {kExperts, kUsed, kWidth}, usual.experts, c);
  const auto shared = f.integer(kShared).value_or(f.is_json() ? usual.shared : 0);
  constexpr uint64_t kMostShared = 64, kSoftmax = 1, kSigmoid = 2;
  if (shared > kMostShared)
    bad_model(f.file(), f.name_of(kShared), std::to_string(shared),
              "at most " + std::to_string(kMostShared));
  c->experts.shared_dim = static_cast<int>(shared) * c->experts.hidden_dim;
  const auto width = static_cast<uint64_t>(c->experts.shared_dim);
  if (const uint64_t given = f.integer(kSharedWidth).value_or(width); given != width)
    unsupported(f.file(), f.name_of(kSharedWidth), std::to_string(given), std::to_string(width));
  Routing& routing = c->experts.routing;
  routing.sigmoid = usual.sigmoid;
  if (!f.is_json()) {
    // Converters write no key for GLM-4.7-Flash. Only sigmoid routers have a bias.
    const uint64_t given = f.integer(kGating).value_or(0), gating = given > 0 ? given
                                                                    : c->experts.routing.choice_bias
                                                                        ? kSigmoid
                                                                        : kSoftmax;
    if (gating != kSoftmax && gating != kSigmoid)
      unsupported(f.file(), f.name_of(kGating), std::to_string(gating),
                  "1 (softmax) or 2 (sigmoid)");
    routing.sigmoid = gating == kSigmoid;
  }
  routing.choice_bias = routing.sigmoid;
  routing.sum_eps = routing.sigmoid ? 1e-20f : 0;
  routing.scale = positive(f, kScale, 1e6, usual.scale);
  require_word(f, kScoring, routing.sigmoid ? "sigmoid" : "softmax");
  require_word(f, kChoice, routing.sigmoid ? "noaux_tc" : "greedy");
  c->experts.renormalised = f.boolean(kRenormalised).value_or(f.is_json() && usual.sigmoid);
  if (f.is_json() && !usual.sigmoid && c->experts.renormalised)  // transformers ignores it
    unsupported(f.file(), f.name_of(kRenormalised), "true", "false");
  read_groups(f, f.is_json() && usual.groups, c);
}

void describe_with(const Fields& f, const Usual& usual, Config* c) {
  if (!f.is_json() || usual.sigmoid) read_draft_layers(f, kDraft, c);
  describe_attention(f, usual, c);
  read_kinds(f, usual.dense, c);
  if (std::ranges::any_of(c->layers, &LayerConfig::has_experts)) describe_experts(f, usual, c);
}

void describe_v2(const Fields& f, int, Config* c) {
  describe_with(f, {1536, 128, 128, {.n = 64, .n_used = 0, .hidden_dim = 1407}, 2, 0, 1, false}, c);
}
void describe_v3(const Fields& f, int, Config* c) {
  describe_with(
      f, {1536, 128, 128, {.n = 256, .n_used = 8, .hidden_dim = 2048}, 1, 3, 2.5, true, true}, c);
}
void describe_glm(const Fields& f, int, Config* c) {
  describe_with(f, {768, 192, 256, {.n = 64, .n_used = 4, .hidden_dim = 1536}, 1, 1, 1.8f, true},
                c);
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  require_leading_dense(c, where, field::kFfnTypes.json);
  if (c.experts.n == 0) return {};
  return {{kScale, c.experts.routing.scale}};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.wq_a = "self_attn.q_a_proj.weight";
  names.q_a_norm = "self_attn.q_a_layernorm.weight";
  names.wq_b = "self_attn.q_b_proj.weight";
  names.wkv_a = "self_attn.kv_a_proj_with_mqa.weight";
  names.kv_a_norm = "self_attn.kv_a_layernorm.weight";
  names.wkv_b = "self_attn.kv_b_proj.weight";
  names.choice_bias = "mlp.gate.e_score_correction_bias";
  names.expert_w13 = "mlp.experts.gate_up_proj";
  names.stacked_w2 = "mlp.experts.down_proj";
  names.shared_w1 = "mlp.shared_experts.gate_proj.weight";
  names.shared_w3 = "mlp.shared_experts.up_proj.weight";
  names.shared_w2 = "mlp.shared_experts.down_proj.weight";
  names.drafts = names.layer;
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.wq_a = "attn_q_a.weight";
  names.q_a_norm = "attn_q_a_norm.weight";
  names.wq_b = "attn_q_b.weight";
  names.wkv_a = "attn_kv_a_mqa.weight";
  names.kv_a_norm = "attn_kv_a_norm.weight";
  names.wkv_b = "attn_kv_b.weight";
  names.k_b = "attn_k_b.weight";
  names.v_b = "attn_v_b.weight";
  names.expert_w13 = "ffn_gate_up_exps.weight";
  names.drafts = names.layer;
  names.draft_mark = "nextn.";
  return names;
}();

}  // namespace

// Describes a family of config.json.
static constexpr Family family(const char* model_type, const char* class_name, Defaults defaults,
                               void (*describe)(const Fields&, int, Config*)) {
  return {
      .name = "deepseek2",
      .model_type = model_type,
      .class_name = class_name,
      .defaults = defaults,
      .latent = true,
      .rope_interleaved = true,
      .interleaved_in_folders = true,
      .partial_rope = true,
      .hf_names = &kNames,
      .gguf_names = &kGguf,
      .fields = kFields,
      .describe = describe,
      .values = values,
  };
}

extern const Family kDeepseekV2, kDeepseekV3, kGlm4MoeLite;
const Family kDeepseekV2 = family("deepseek_v2", "DeepseekV2ForCausalLM",
                                  {2048, 102400, 1e-6, 10000, 0, 64, false, 32}, describe_v2);
const Family kDeepseekV3 = family("deepseek_v3", "DeepseekV3ForCausalLM",
                                  {4096, 129280, 1e-6, 10000, 0, 64, false, 128}, describe_v3);
const Family kGlm4MoeLite = family("glm4_moe_lite", "Glm4MoeLiteForCausalLM",
                                   {202752, 154880, 1e-5, 10000, 0, 64, false, 20}, describe_glm);

}  // namespace riffle
