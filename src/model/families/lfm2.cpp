// LFM2 (Liquid AI, arXiv 2511.23404), dense and with experts: most layers are short convolutions
// between two gates; the others attend, with norms of each head of q and k.
#include "model/families/family.h"

namespace riffle {

namespace {

constexpr Field kTaps = {"shortconv.l_cache", "conv_L_cache"}, kEps = {nullptr, "norm_eps"},
                kBias = {nullptr, "conv_bias"}, kAttends = {nullptr, "full_attn_idxs"},
                kAdjust = {nullptr, "block_auto_adjust_ff_dim"},
                kHidden = {nullptr, "block_ff_dim"},
                kFactor = {nullptr, "block_ffn_dim_multiplier"},
                kMultiple = {nullptr, "block_multiple_of"};
constexpr Field kFields[] = {kTaps, kEps, kBias, kAttends, kAdjust, kHidden, kFactor, kMultiple};

// config.json has the width of a FFN with two matrices, from which transformers computes that of
// one with three.
int adjusted_width(const Fields& f, int width) {
  if (f.has(kHidden)) width = dimension(f, f.name_of(kHidden), 1 << 24, width);
  if (!f.boolean(kAdjust).value_or(true)) return width;
  width = static_cast<int>(2 * int64_t(width) / 3);
  width = static_cast<int>(static_cast<double>(positive(f, kFactor, 1e2, 1)) * width);
  const int multiple = dimension(f, f.name_of(kMultiple), 1 << 20, 256);
  return (width + multiple - 1) / multiple * multiple;
}

constexpr Field kExperts = {"expert_count", "num_experts"},
                kUsed = {"expert_used_count", "num_experts_per_tok"},
                kWidth = {"expert_feed_forward_length", "moe_intermediate_size"},
                kDense = {"leading_dense_block_count", "num_dense_layers"},
                kGating = {"expert_gating_func", nullptr},
                kChoiceBias = {nullptr, "use_expert_bias"},
                kRenormalised = {nullptr, "norm_topk_prob"},
                kScale = {nullptr, "routed_scaling_factor"};
constexpr Field kMoeFields[] = {kTaps,  kEps,   kBias,   kAttends,    kExperts,      kUsed,
                                kWidth, kDense, kGating, kChoiceBias, kRenormalised, kScale};

void describe_mixers(const Fields& f, Config* c) {
  c->recurrence.taps = dimension(f, f.name_of(kTaps), 8, f.is_json() ? 3 : 0);
  if (c->recurrence.taps < 2) bad_model(f.file(), f.name_of(kTaps), "1", "2 to 8");
  if (f.is_json()) {
    if (f.boolean(kBias).value_or(false)) unsupported(f.file(), f.name_of(kBias), "true", "false");
    c->norm_eps = c->post_norm_eps = positive(f, kEps, 1, 1e-5);
  }
  if (f.has(kAttends) && !f.has(f.name_of(field::kWindowed))) {
    for (LayerConfig& layer : c->layers) layer.mixer = Mixer::RECURRENT;
    for (const int64_t l : f.integers(kAttends)) {
      if (l < 0 || l >= c->n_layers)
        bad_model(f.file(), f.name_of(kAttends), std::to_string(l),
                  "layers below " + std::to_string(c->n_layers));
      c->layers[l].mixer = Mixer::ATTENTION;
    }
  }
  require_attention(f, *c);
}

void describe_dense(const Fields& f, int, Config* c) {
  describe_mixers(f, c);
  if (f.is_json()) c->hidden_dim = adjusted_width(f, c->hidden_dim);
}

void describe_experts(const Fields& f, int, Config* c) {
  describe_mixers(f, c);
  read_experts(f, {kExperts, kUsed, kWidth}, {32, 4, 1792}, c);
  constexpr uint64_t kSigmoid = 2;
  if (!f.is_json() && f.integer(kGating).value_or(0) != kSigmoid)
    unsupported(f.file(), f.name_of(kGating), std::to_string(f.integer(kGating).value_or(0)),
                "2 (sigmoid)");
  c->experts.renormalised = f.boolean(kRenormalised).value_or(true);
  Routing& routing = c->experts.routing;
  routing.sigmoid = true;
  routing.choice_bias = f.boolean(kChoiceBias).value_or(true);
  routing.sum_eps = 1e-6f;
  routing.scale = f.is_json() ? positive(f, kScale, 1e6, 1) : 1;
  const uint64_t dense = f.integer(kDense).value_or(f.is_json() ? 2 : 0);
  for (size_t l = 0; l < c->layers.size(); ++l) c->layers[l].has_experts = l >= dense;
}

std::vector<std::pair<Field, float>> values(const Config& c, const std::string& where) {
  const ExpertsConfig& e = c.experts;
  if (!e.renormalised || e.routing.scale != 1)
    unsupported(
        where, e.renormalised ? kScale.json : kRenormalised.json,
        e.renormalised ? format("%g", e.routing.scale) : "false",
        e.renormalised ? "1, to write the model as GGUF" : "true, to write the model as GGUF");
  if (!e.routing.choice_bias)
    unsupported(where, kChoiceBias.json, "false", "true, to write the model as GGUF");
  return {};
}

constexpr TensorNames kNames = [] {
  TensorNames names = kHuggingFaceNames;
  names.final_norm = "model.embedding_norm.weight";
  names.attn_norm = "operator_norm.weight";
  names.ffn_norm = "ffn_norm.weight";
  names.wo = "self_attn.out_proj.weight";
  names.q_norm = "self_attn.q_layernorm.weight";
  names.k_norm = "self_attn.k_layernorm.weight";
  names.w1 = "feed_forward.w1.weight";
  names.w3 = "feed_forward.w3.weight";
  names.w2 = "feed_forward.w2.weight";
  names.mix = [](const RecurrenceConfig&) {
    return std::vector<const char*>{"conv.in_proj.weight", "conv.conv.weight"};
  };
  names.mix_out = "conv.out_proj.weight";
  names.router = "feed_forward.gate.weight";
  names.choice_bias = "feed_forward.expert_bias";
  names.expert = "feed_forward.experts.%d.";
  names.expert_w1 = "w1.weight";
  names.expert_w3 = "w3.weight";
  names.expert_w2 = "w2.weight";
  names.expert_w13 = "feed_forward.experts.gate_up_proj";
  names.stacked_w2 = "feed_forward.experts.down_proj";
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.final_norm = "token_embd_norm.weight";
  names.final_norm_too = "output_norm.weight";
  names.mix = [](const RecurrenceConfig&) {
    return std::vector<const char*>{"shortconv.in_proj.weight", "shortconv.conv.weight"};
  };
  names.mix_out = "shortconv.out_proj.weight";
  return names;
}();

}  // namespace

extern const Family kLfm2, kLfm2Moe;
const Family kLfm2 = {
    .name = "lfm2",
    .model_type = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .defaults = {128000, 65536, 1e-5, 1000000, 8, 0, true, 32},
    .tied_field = "tie_embedding",
    .old_hidden_dim = "block_ff_dim",
    .qk_norm = QkNorm::HEAD,
    .recurrence = Recurrence::SHORT_CONV,
    .recurrent_word = "conv",
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe_dense,
};

const Family kLfm2Moe = {
    .name = "lfm2moe",
    .model_type = "lfm2_moe",
    .class_name = "Lfm2MoeForCausalLM",
    .defaults = {128000, 65536, 1e-5, 1000000, 8, 0, true, 32},
    .tied_field = "tie_embedding",
    .old_hidden_dim = "block_ff_dim",
    .qk_norm = QkNorm::HEAD,
    .recurrence = Recurrence::SHORT_CONV,
    .recurrent_word = "conv",
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kMoeFields,
    .describe = describe_experts,
    .values = values,
};

}  // namespace riffle
