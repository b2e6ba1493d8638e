// LFM2 (Liquid AI, arXiv 2511.23404): most layers are short convolutions between two gates; the
// others attend, with norms of each head of q and k.
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

void describe(const Fields& f, int, Config* c) {
  c->recurrence.taps = dimension(f, f.name_of(kTaps), 8, f.is_json() ? 3 : 0);
  if (c->recurrence.taps < 2) bad_model(f.file(), f.name_of(kTaps), "1", "2 to 8");
  if (f.is_json()) {
    if (f.boolean(kBias).value_or(false)) unsupported(f.file(), f.name_of(kBias), "true", "false");
    c->norm_eps = c->post_norm_eps = positive(f, kEps, 1, 1e-5);
    c->hidden_dim = adjusted_width(f, c->hidden_dim);
  }
  if (f.has(kAttends) && !f.has(f.name_of(field::kWindowed))) {
    for (LayerConfig& layer : c->layers) layer.recurrent = true;
    for (const int64_t l : f.integers(kAttends)) {
      if (l < 0 || l >= c->n_layers)
        bad_model(f.file(), f.name_of(kAttends), std::to_string(l),
                  "layers below " + std::to_string(c->n_layers));
      c->layers[l].recurrent = false;
    }
  }
  require_attention(f, *c);
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
  names.mix = [] { return std::vector<const char*>{"conv.in_proj.weight", "conv.conv.weight"}; };
  names.mix_out = "conv.out_proj.weight";
  return names;
}();
constexpr TensorNames kGguf = [] {
  TensorNames names = kGgufNames;
  names.final_norm = "token_embd_norm.weight";
  names.mix = [] {
    return std::vector<const char*>{"shortconv.in_proj.weight", "shortconv.conv.weight"};
  };
  names.mix_out = "shortconv.out_proj.weight";
  return names;
}();

}  // namespace

extern const Family kLfm2;
const Family kLfm2 = {
    .name = "lfm2",
    .model_type = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .defaults = {128000, 65536, 1e-5, 1000000, 8, 0, true, 32},
    .tied_field = "tie_embedding",
    .qk_norm = QkNorm::HEAD,
    .recurrence = Recurrence::SHORT_CONV,
    .recurrent_word = "conv",
    .hf_names = &kNames,
    .gguf_names = &kGguf,
    .fields = kFields,
    .describe = describe,
};

}  // namespace riffle
