// Qwen3-Next and Qwen3.5 to 3.8, dense and with experts: three of four layers are Gated DeltaNets;
// the others attend, with norms of each head of q and k, a gate on the output, and RoPE on a
// quarter of each head.
#include "kernels/common/recurrent.h"
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kTaps = {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                kKeyHeads = {"ssm.group_count", "linear_num_key_heads"},
                kValueHeads = {"ssm.time_step_rank", "linear_num_value_heads"},
                kStateSize = {"ssm.state_size", nullptr}, kInner = {"ssm.inner_size", nullptr},
                kKeyDim = {nullptr, "linear_key_head_dim"},
                kValueDim = {nullptr, "linear_value_head_dim"},
                kPeriod = {"full_attention_interval", "full_attention_interval"},
                kLayers = {"attention.recurrent_layers", nullptr},
                kSections = {"rope.dimension_sections", nullptr},
                kDraft = {"nextn_predict_layers", "mtp_num_hidden_layers"},
                kGate = {nullptr, "attn_output_gate"}, kStateType = {nullptr, "mamba_ssm_dtype"},
                // Ollama's converter.
    kTiled = {"ssm.v_head_reordered", nullptr}, kTopNormed = {"norm_top_k_prob", nullptr};
constexpr Field kFields[] = {kTaps,   kKeyHeads, kValueHeads, kStateSize, kInner,
                             kKeyDim, kValueDim, kPeriod,     kLayers,    kSections,
                             kDraft,  kGate,     kStateType,  kTiled};

void read_heads(const Fields& f, RecurrenceConfig* r) {
  constexpr int kMostHeads = 1024;
  const auto number = [&](const Field& field, int most, int fallback) {
    return dimension(f, f.name_of(field), most, f.is_json() ? fallback : 0);
  };
  r->taps = number(kTaps, kMostTaps, 4);
  if (r->taps < 2) bad_model(f.file(), f.name_of(kTaps), "1", "2 to 8");
  r->k_heads = number(kKeyHeads, kMostHeads, 16);
  r->v_heads = number(kValueHeads, kMostHeads, 32);
  if (r->v_heads % r->k_heads != 0)
    bad_model(f.file(), f.name_of(kValueHeads), std::to_string(r->v_heads),
              "a multiple of " + f.name_of(kKeyHeads) + " = " + std::to_string(r->k_heads));
  r->k_dim = number(f.is_json() ? kKeyDim : kStateSize, kMostStateDim, 128);
  r->v_dim = f.is_json() ? number(kValueDim, kMostStateDim, 128) : r->k_dim;
  if (f.is_json()) return;
  const uint64_t inner = f.integer(kInner).value_or(0);
  if (inner != static_cast<uint64_t>(r->v_width()))
    bad_model(f.file(), f.name_of(kInner), std::to_string(inner),
              format("%lld, which is %s times %s", static_cast<long long>(r->v_width()),
                     f.name_of(kValueHeads).c_str(), f.name_of(kStateSize).c_str()));
}

void describe_dense(const Fields& f, int, Config* c) {
  read_heads(f, &c->recurrence);
  c->recurrence.tiled = !f.is_json() && f.boolean(kTiled).value_or(true);
  c->query_gate = true;
  if (!f.boolean(kGate).value_or(true)) unsupported(f.file(), f.name_of(kGate), "false", "true");
  if (const auto type = f.string(kStateType); type && *type != "float32")
    unsupported(f.file(), f.name_of(kStateType), "\"" + *type + "\"", "\"float32\"");
  read_draft_layers(f, kDraft, c);
  require_attention(f, *c);
}

constexpr Field kExperts = {"expert_count", "num_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kShared = {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"};
constexpr Field kMoeFields[] = {kTaps,   kKeyHeads, kValueHeads, kStateSize, kInner,
                                kKeyDim, kValueDim, kPeriod,     kLayers,    kSections,
                                kDraft,  kGate,     kStateType,  kExperts,   kUsed,
                                kWidth,  kShared,   kTiled,      kTopNormed};

void describe_experts(const Fields& f, int window, Config* c) {
  describe_dense(f, window, c);
  read_experts(f, {kExperts, kUsed, kWidth}, {256, 8, 512}, c);
  c->experts.shared_dim = dimension(f, f.name_of(kShared), 1 << 20, f.is_json() ? 512 : 0);
  c->experts.shared_gate = true;
  if (!f.boolean(kTopNormed).value_or(true))
    unsupported(f.file(), f.name_of(kTopNormed), "false", "true");
  for (LayerConfig& layer : c->layers) layer.has_experts = true;
}

constexpr Field kRenormalised = {"expert_weights_norm", "norm_topk_prob"};
constexpr Field kNextFields[] = {kTaps,
                                 kKeyHeads,
                                 kValueHeads,
                                 kStateSize,
                                 kInner,
                                 kKeyDim,
                                 kValueDim,
                                 kPeriod,
                                 kLayers,
                                 kDraft,
                                 kExperts,
                                 kUsed,
                                 kWidth,
                                 kShared,
                                 kRenormalised,
                                 field::kExpertStep,
                                 field::kDenseLayers};

void describe_next(const Fields& f, int window, Config* c) {
  describe_dense(f, window, c);
  c->recurrence.tiled = false;
  c->recurrence.qkvz_by_key = c->recurrence.ba_by_key = true;
  read_experts(f, {kExperts, kUsed, kWidth, true}, {512, 10, 512}, c);
  c->experts.renormalised = f.boolean(kRenormalised).value_or(true);
  c->experts.shared_dim =
      dimension(f, f.name_of(kShared), 1 << 20, f.is_json() ? 512 : c->hidden_dim);
  c->experts.shared_gate = true;
  for (LayerConfig& layer : c->layers) layer.has_experts = true;
  read_dense_layers(f, c);
}

std::vector<const char*> folder_mix(const RecurrenceConfig& r) {
  if (r.qkvz_by_key)
    return {"linear_attn.in_proj_qkvz.weight",
            "linear_attn.in_proj_ba.weight",
            "linear_attn.conv1d.weight",
            "linear_attn.A_log",
            "linear_attn.dt_bias",
            "linear_attn.norm.weight"};
  return {"linear_attn.in_proj_qkv.weight",
          "linear_attn.in_proj_z.weight",
          "linear_attn.in_proj_b.weight",
          "linear_attn.in_proj_a.weight",
          "linear_attn.conv1d.weight",
          "linear_attn.A_log",
          "linear_attn.dt_bias",
          "linear_attn.norm.weight"};
}

std::vector<const char*> gguf_mix(const RecurrenceConfig& r) {
  if (r.qkvz_by_key)
    return {"ssm_in.weight", "ssm_ba.weight", "ssm_conv1d.weight",
            "ssm_a",         "ssm_dt.bias",   "ssm_norm.weight"};
  if (r.ba_by_key)
    return {"attn_qkv.weight", "attn_gate.weight", "ssm_ba.weight",  "ssm_conv1d.weight",
            "ssm_a",           "ssm_dt.bias",      "ssm_norm.weight"};
  return {"attn_qkv.weight",  "attn_gate.weight",  "ssm_beta.weight",
          "ssm_alpha.weight", "ssm_conv1d.weight", "ssm_a",
          "ssm_dt.bias",      "ssm_norm.weight"};
}

// transformers multiplies by 1 + weight; GGUF's converters add the 1.
constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.norm_offset = 1;
  names.mix = folder_mix;
  names.mix_out = "linear_attn.out_proj.weight";
  names.log_decay = true;
  names.drafts = "mtp.";
  names.draft_layer = "layers.0.";
  names.draft_proj = "fc.weight";
  names.draft_embed_norm = "pre_fc_norm_embedding.weight";
  names.draft_hidden_norm = "pre_fc_norm_hidden.weight";
  names.draft_final_norm = "norm.weight";
  names.expert_w13 = "mlp.experts.gate_up_proj";
  names.stacked_w2 = "mlp.experts.down_proj";
  names.shared_w1 = "mlp.shared_expert.gate_proj.weight";
  names.shared_w3 = "mlp.shared_expert.up_proj.weight";
  names.shared_w2 = "mlp.shared_expert.down_proj.weight";
  names.shared_gate = "mlp.shared_expert_gate.weight";
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.drafts = names.layer;
  names.draft_mark = "nextn.";
  names.draft_proj = "nextn.eh_proj.weight";
  names.draft_embed_norm = "nextn.enorm.weight";
  names.draft_hidden_norm = "nextn.hnorm.weight";
  names.draft_final_norm = "nextn.shared_head_norm.weight";
  names.draft_embedding = "nextn.embed_tokens.weight";
  names.draft_output = "nextn.shared_head_head.weight";
  names.ffn_norm = "post_attention_norm.weight";
  names.post_attn_norm = "";
  names.mix = gguf_mix;
  names.mix_out = "ssm_out.weight";
  names.expert_w13 = "ffn_gate_up_exps.weight";
  return names;
}();

}  // namespace

extern const Family kQwen35, kQwen35Moe, kQwen3Next;
const Family kQwen35 = {
    .name = "qwen35",
    .model_type = "qwen3_5_text",
    .class_name = "Qwen3_5ForCausalLM",
    .multimodal_type = "qwen3_5",
    .multimodal_class = "Qwen3_5ForConditionalGeneration",
    .multimodal_tied = false,
    .defaults = {32768, 248320, 1e-6, 10000, 4, 256, false, 16},
    .qk_norm = QkNorm::HEAD,
    .partial_rope = true,
    .partial_default = 0.25,
    .position_parts = true,
    .recurrence = Recurrence::GATED_DELTA,
    .recurrent_word = "linear_attention",
    .recurrent_period = 4,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe_dense,
};

const Family kQwen35Moe = {
    .name = "qwen35moe",
    .model_type = "qwen3_5_moe_text",
    .class_name = "Qwen3_5MoeForCausalLM",
    .multimodal_type = "qwen3_5_moe",
    .multimodal_class = "Qwen3_5MoeForConditionalGeneration",
    .multimodal_tied = false,
    .defaults = {32768, 248320, 1e-6, 10000, 2, 256, false, 16},
    .hidden_dim = kShared,
    .qk_norm = QkNorm::HEAD,
    .partial_rope = true,
    .partial_default = 0.25,
    .position_parts = true,
    .recurrence = Recurrence::GATED_DELTA,
    .recurrent_word = "linear_attention",
    .recurrent_period = 4,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kMoeFields,
    .describe = describe_experts,
};

const Family kQwen3Next = {
    .name = "qwen3next",
    .model_type = "qwen3_next",
    .class_name = "Qwen3NextForCausalLM",
    .defaults = {32768, 151936, 1e-6, 10000, 2, 256, false, 16},
    .qk_norm = QkNorm::HEAD,
    .partial_rope = true,
    .partial_default = 0.25,
    .recurrence = Recurrence::GATED_DELTA,
    .recurrent_word = "linear_attention",
    .recurrent_period = 4,
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kNextFields,
    .describe = describe_next,
    .values = values_of_mixture,
};

}  // namespace riffle
