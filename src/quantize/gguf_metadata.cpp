#include "quantize/gguf_metadata.h"

#include <algorithm>
#include <cmath>

#include "formats/gguf.h"
#include "import/end_tokens.h"
#include "import/gguf_vocab.h"
#include "model/families/family.h"
#include "model/families/fields.h"
#include "model/rope.h"
#include "text/sentencepiece_model.h"
#include "util/checked.h"

namespace riffle {

namespace {

void write_rope_scaling(GgufFileWriter& out, const std::string& a, const Config& c,
                        const std::string& where) {
  const RopeScaling& s = c.ropes[0].scaling;
  const std::string p = a + ".rope.scaling.";
  switch (s.type) {
    case RopeScaling::LONGROPE:  // by tensors
      out.u32(p + "original_context_length", static_cast<uint32_t>(s.original_ctx));
      out.f32(p + "attn_factor", s.attention_factor);
      return;
    case RopeScaling::NONE:
    case RopeScaling::LLAMA3:  // by tensor
    case RopeScaling::FACTORS: return;
    case RopeScaling::DYNAMIC:
      unsupported(where, "rope_scaling.type", "\"dynamic\"",
                  "a scaling that GGUF has: linear, yarn, llama3 or longrope");
    case RopeScaling::LINEAR:
      out.text(p + "type", "linear");
      out.f32(p + "factor", s.factor);
      return;
    case RopeScaling::YARN: break;
  }
  const bool usual_ramp = family_of_architecture(a)->yarn_truncated;
  if (s.truncated != usual_ramp)
    unsupported(
        where, "rope_scaling.truncate", s.truncated ? "true" : "false",
        usual_ramp ? "true, to write the model as GGUF" : "false, to write the model as GGUF");
  out.text(p + "type", "yarn");
  out.f32(p + "factor", s.factor);
  out.u32(p + "original_context_length", static_cast<uint32_t>(s.original_ctx));
  out.f32(p + "yarn_beta_fast", s.beta_fast);
  out.f32(p + "yarn_beta_slow", s.beta_slow);
  if (c.latent && s.mscale_all_dim > 0) {  // files have a tenth, and take mscale to be the same
    if (s.attention_factor != 1)
      unsupported(where, "rope_scaling.mscale", "another value than mscale_all_dim",
                  "the same, to write the model as GGUF");
    // A tenth of config.json's decimal number, of which mscale_all_dim is a rounded copy.
    const double decimal = std::round(1e5 * static_cast<double>(s.mscale_all_dim));
    out.f32(p + "yarn_log_multiplier", static_cast<float>(decimal / 1e6));
    return;
  }
  RopeScaling usual = s;
  finish_yarn(&usual, 0, 0, 0);
  if (usual.attention_factor != s.attention_factor)
    out.f32(p + "yarn_attn_factor", s.attention_factor);
}

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

// Pads the vocabulary as converters do, with names that occur in no text.
Vocabulary padded(std::vector<VocabPiece> pieces, const Config& c) {
  Vocabulary v;
  const size_t n = std::max(pieces.size(), static_cast<size_t>(c.vocab_size));
  for (size_t i = 0; i < n; ++i) {
    const bool missing =
        i >= pieces.size() || (pieces[i].text.empty() && pieces[i].type == VocabPiece::UNUSED);
    v.texts.push_back(missing ? "[PAD" + std::to_string(i) + "]" : std::move(pieces[i].text));
    v.types.push_back(missing ? VocabPiece::UNUSED : pieces[i].type);
  }
  return v;
}

// Writes the ids that end answers: one is eos, two have keys of their own, some are found by their
// spelling, and riffle and Ollama read a list of others.
void write_special(GgufFileWriter& out, const Config& c, int bos_id, int eos_id, bool add_bos,
                   const Vocabulary& v, const std::string& where) {
  if (bos_id >= 0) out.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos_id));
  if (eos_id >= 0) out.u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(eos_id));
  out.boolean("tokenizer.ggml.add_bos_token", add_bos && bos_id >= 0);
  out.boolean("tokenizer.ggml.add_eos_token", false);
  std::vector<int> others;
  for (const int id : c.eos_ids)
    if (id != eos_id && static_cast<size_t>(id) < v.texts.size()) others.push_back(id);
  // A token that ends a turn, if its name is known, goes under the first key.
  std::stable_partition(others.begin(), others.end(), [&](int id) {
    return v.texts[id] == "<|eot_id|>" || v.texts[id] == "<|im_end|>";
  });
  const auto found_by_name = [&](int id) {
    return v.types[id] == VocabPiece::CONTROL && is_end_token_name(v.texts[id]);
  };
  const char* keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  size_t used = 0;
  std::vector<int32_t> listed;
  for (const int id : others) {
    if (used < std::size(keys)) out.u32(keys[used++], static_cast<uint32_t>(id));
    else if (!found_by_name(id)) listed.push_back(id);
  }
  // Readers may find more by name.
  constexpr size_t kMost = kMaxTokenIds - std::size(kEndTokenNames);
  if (others.size() >= kMost)
    unsupported(where, "eos_token_id", std::to_string(c.eos_ids.size()) + " end tokens",
                "at most " + std::to_string(kMost) + ", to write them as GGUF");
  if (!listed.empty()) out.integers("tokenizer.ggml.eos_token_ids", listed);
}

}  // namespace

// Writes the window, if layers have one, and the layers that have it. Fails if the family's readers
// expect other layers and there is no key to say so.
static void write_layers(GgufFileWriter& out, const Family& family, const Config& c,
                         const std::string& where) {
  const std::string a = c.architecture;
  int window = 0;
  std::vector<bool> windowed;
  for (const LayerConfig& layer : c.layers) {
    window = std::max(window, layer.window);
    windowed.push_back(layer.window > 0);
  }
  Config usual = c;
  usual.ropes.resize(1);
  set_layers(family, window, {}, &usual);
  const auto has_rope = [](const Config& of, int l) {
    return of.ropes[of.layers[l].rope].theta > 0;
  };
  for (int l = 0; l < c.n_layers; ++l) {
    if (windowed[l] != (usual.layers[l].window > 0) && family.window != Family::PERIOD)
      unsupported(where, "sliding_window", "a sliding window in some layers",
                  "in all layers or in none, to write them as GGUF");
    if (family.no_rope_period > 0 && has_rope(c, l) != has_rope(usual, l))
      unsupported(
          where, "no_rope_layers",
          "layers other than every " + std::to_string(family.no_rope_period) + "th without RoPE",
          "only those, to write them as GGUF");
  }
  constexpr std::string_view kRotated = "attention.rope_pattern";
  if (std::ranges::any_of(family.fields,
                          [&](const Field& f) { return f.gguf && f.gguf == kRotated; })) {
    std::vector<bool> rotated;
    for (int l = 0; l < c.n_layers; ++l) rotated.push_back(has_rope(c, l));
    out.booleans(a + "." + kRotated.data(), rotated);
  }
  if (window == 0) return;
  out.u32(a + "." + field::kWindow.gguf, static_cast<uint32_t>(window));
  if (family.window == Family::PERIOD) out.booleans(a + "." + field::kWindowed.gguf, windowed);
}

// Writes the number of KV heads, and which layers keep a recurrent state: they have 0 KV heads, or
// are named.
void write_recurrence(GgufFileWriter& out, const Config& c, const std::string& where) {
  const std::string a = c.architecture + ".", key = a + field::kKvHeads.gguf;
  const auto count = [&](const char* name, int64_t value) {
    out.u32(a + name, static_cast<uint32_t>(value));
  };
  const RecurrenceConfig& r = c.recurrence;
  if (r.kind == Recurrence::SHORT_CONV || r.kind == Recurrence::MAMBA2) {
    std::vector<int32_t> heads;
    for (int l = 0; l < c.n_layers; ++l) heads.push_back(c.attends(l) ? c.n_kv_heads : 0);
    out.integers(key, heads);
  } else if (family_of_architecture(c.architecture)->uneven_layers) {
    std::vector<int32_t> heads;
    for (int l = 0; l < c.n_layers; ++l) heads.push_back(c.kv_heads(l));
    out.integers(key, heads);
  } else {
    out.u32(key, static_cast<uint32_t>(c.n_kv_heads));
  }
  if (r.kind == Recurrence::NONE) return;
  if (r.kind == Recurrence::SHORT_CONV) return count("shortconv.l_cache", r.taps);
  if (r.kind == Recurrence::GATED_DELTA && r.k_dim != r.v_dim)
    unsupported(where, "linear_value_head_dim", std::to_string(r.v_dim),
                std::to_string(r.k_dim) + ", as linear_key_head_dim, to write the model as GGUF");
  count("ssm.conv_kernel", r.taps);
  count("ssm.state_size", r.k_dim);
  count("ssm.group_count", r.k_heads);
  count("ssm.time_step_rank", r.v_heads);
  count("ssm.inner_size", r.v_width());
  if (r.kind == Recurrence::MAMBA2) return;
  std::vector<bool> recurrent;
  for (int l = 0; l < c.n_layers; ++l) recurrent.push_back(c.recurs(l));
  if (c.draft_head) recurrent.push_back(false);  // the MTP layer attends
  out.booleans(a + "attention.recurrent_layers", recurrent);
  if (!family_of_architecture(c.architecture)->position_parts) return;
  // llama.cpp needs the key. Its numbers do not matter for text, whose positions have one value.
  out.integers(a + "rope.dimension_sections", {11, 11, 10, 0});
}

void write_config(GgufFileWriter& out, const Config& c, const std::string& where) {
  const std::string& a = c.architecture;
  const Family& family = *family_of_architecture(a);
  const auto count = [&](const char* key, int value) {
    out.u32(a + "." + key, static_cast<uint32_t>(value));
  };
  out.text("general.architecture", a);
  out.text("general.type", "model");
  out.text("general.name", c.name);
  count(field::kVocab.gguf, c.vocab_size);
  count(field::kContext.gguf, c.n_ctx);
  count(field::kDim.gguf, c.dim);
  count(field::kLayers.gguf, c.n_layers + c.draft_head);
  if (c.draft_head) count("nextn_predict_layers", 1);
  const auto widened = std::ranges::find_if(c.layers, [](const auto& l) { return l.hidden_dim; });
  if (widened != c.layers.end()) {
    std::vector<int32_t> widths;
    for (int l = 0; l < c.n_layers; ++l) widths.push_back(c.ffn_width(l));
    out.integers(a + "." + family.hidden_dim.gguf, widths);
  } else if (!family.one_part) {
    count(family.hidden_dim.gguf, c.hidden_dim);
  } else {
    std::vector<int32_t> widths;
    for (const LayerConfig& layer : c.layers)
      widths.push_back(!layer.has_ffn      ? 0
                       : layer.has_experts ? c.experts.hidden_dim
                                           : c.hidden_dim);
    out.integers(a + "." + family.hidden_dim.gguf, widths);
  }
  if (family.uneven_heads) {
    std::vector<int32_t> heads;
    for (int l = 0; l < c.n_layers; ++l) heads.push_back(c.heads(l));
    out.integers(a + "." + field::kHeads.gguf, heads);
  } else {
    count(field::kHeads.gguf, c.n_heads);
  }
  write_recurrence(out, c, where);
  count(field::kHeadDim.gguf, c.head_dim);
  count("attention.value_length", c.latent ? c.latent.kv_rank : c.head_dim);
  if (const LatentConfig& l = c.latent) {
    count("attention.kv_lora_rank", l.kv_rank);
    if (l.q_rank > 0) count("attention.q_lora_rank", l.q_rank);
    count("attention.key_length_mla", l.query_dim());
    count("attention.value_length_mla", l.value_dim);
  }
  const auto windowed = std::ranges::find_if(c.layers, [](const auto& l) { return l.window > 0; });
  if (family.full_head_dim && windowed != c.layers.end())
    for (const char* key :
         {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"})
      count(key, windowed->head_dim);
  // With the first key a cohere2moe has RMS norms.
  if (!c.layer_norm)
    out.f32(a + "." + field::kNormEps.gguf, c.layer_norm_eps > 0 ? c.layer_norm_eps : c.norm_eps);
  if (family.one_part || family.layer_norm)
    out.f32(a + ".attention.layer_norm_epsilon", c.norm_eps);  // llama.cpp's key
  const Rope& rope = c.ropes[0];
  count("rope.dimension_count", rope.rotated > 0 ? rope.rotated : c.rope_head(rope));
  out.f32(a + "." + field::kRopeBase.gguf, rope.theta > 0 ? rope.theta : 10000);
  const auto has_key = [&](std::string_view key) {
    return std::ranges::any_of(family.fields,
                               [&](const Field& f) { return f.gguf && key == f.gguf; });
  };
  if (has_key("attention.shared_kv_layers"))
    count("attention.shared_kv_layers",
          static_cast<int>(std::ranges::count_if(
              c.layers, [](const LayerConfig& l) { return l.kv_source >= 0; })));
  if (has_key("embedding_length_per_layer_input"))
    count("embedding_length_per_layer_input", c.layer_embedding_dim);
  if (!family.full_head_dim && has_key("rope.dimension_count_swa"))
    count("rope.dimension_count_swa",
          c.ropes.back().rotated > 0 ? c.ropes.back().rotated : c.head_dim);
  if (has_key(field::kRotated.gguf)) out.boolean(a + "." + field::kRotated.gguf, rope.theta > 0);
  write_layers(out, family, c, where);
  if (c.experts.n > 0) {
    count("expert_count", c.experts.n);
    count("expert_used_count", c.experts.n_used);
    count("expert_feed_forward_length", c.experts.hidden_dim);
    constexpr std::string_view kShared = "expert_shared_feed_forward_length";
    if (c.experts.shared_dim > 0 && family.hidden_dim.gguf != kShared)
      count(kShared.data(), c.experts.shared_dim);
    if (has_key("expert_gating_func"))
      count("expert_gating_func", c.experts.routing.sigmoid ? 2 : 1);  // 1: a softmax
    if (has_key("leading_dense_block_count"))
      count("leading_dense_block_count",
            static_cast<int>(std::count_if(c.layers.begin(), c.layers.end(),
                                           [](const auto& l) { return !l.has_experts; })));
    // A Nemotron 3 has one shared expert of another width than the others. Other families have
    // several as one.
    if (has_key("expert_shared_count"))
      count("expert_shared_count", c.latent || has_key("leading_dense_block_count")
                                       ? c.experts.shared_dim / c.experts.hidden_dim
                                       : 1);
    if (has_key("expert_group_count")) count("expert_group_count", c.experts.routing.n_groups);
    if (has_key("expert_group_used_count"))
      count("expert_group_used_count", c.experts.routing.used_groups);
    if (has_key("interleave_moe_layer_step")) count("interleave_moe_layer_step", 1);
    if (has_key("expert_weights_norm"))
      out.boolean(a + ".expert_weights_norm", c.experts.renormalised);
  }
  if (c.activation == Activation::XIELU)
    for (const auto& [key, member] : {std::pair{"alpha_p", &Xielu::alpha_p},
                                      {"alpha_n", &Xielu::alpha_n},
                                      {"beta", &Xielu::beta},
                                      {"eps", &Xielu::eps}}) {
      std::vector<float> all;
      for (const LayerConfig& layer : c.layers) all.push_back(layer.xielu.*member);
      out.floats(std::string("xielu.") + key, all);
    }
  write_rope_scaling(out, a, c, where);
  if (!family.values) return;
  for (const auto& [field, value] : family.values(c, where)) out.f32(a + "." + field.gguf, value);
}

std::vector<NamedFactors> rope_factors_of(const Config& c) {
  const RopeScaling& s = c.ropes[0].scaling;
  if (s.type == RopeScaling::FACTORS) return {{"rope_freqs.weight", s.factors}};
  if (s.type == RopeScaling::LONGROPE)
    return {{"rope_factors_long.weight", s.long_factors}, {"rope_factors_short.weight", s.factors}};
  if (s.type != RopeScaling::LLAMA3) return {};
  Rope plain = c.ropes[0];
  plain.scaling = {};
  const std::vector<float> scaled = rope_frequencies(c.ropes[0], c.head_dim, c.n_ctx).frequency;
  std::vector<float> factors = rope_frequencies(plain, c.head_dim, c.n_ctx).frequency;
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return {{"rope_freqs.weight", factors}};
}

void write_pieces(GgufFileWriter& out, std::vector<VocabPiece> pieces, bool add_space_prefix,
                  bool add_bos, const Config& c) {
  std::vector<float> scores;
  for (VocabPiece& piece : pieces) {
    scores.push_back(piece.score);
    if (piece.type == VocabPiece::USER_DEFINED) piece.text = with_bare_spaces(piece.text);
  }
  const auto unknown = std::find_if(pieces.begin(), pieces.end(),
                                    [](const auto& p) { return p.type == VocabPiece::UNKNOWN; });
  const auto unknown_id = unknown - pieces.begin();
  const bool has_unknown = unknown != pieces.end();
  const Vocabulary v = padded(std::move(pieces), c);
  scores.resize(v.texts.size(), -10000);
  out.text("tokenizer.ggml.model", "llama");
  out.text("tokenizer.ggml.pre", "default");
  out.strings("tokenizer.ggml.tokens", v.texts);
  out.floats("tokenizer.ggml.scores", scores);
  out.integers("tokenizer.ggml.token_type", v.types);
  if (has_unknown) out.u32("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(unknown_id));
  out.boolean("tokenizer.ggml.add_space_prefix", add_space_prefix);
  write_special(out, c, c.bos_id, c.eos_id, add_bos, v, c.name);
}

void write_bpe(GgufFileWriter& out, const BpeSpec& spec, const Config& c) {
  const bool merged = is_gemma4(spec);
  if (!spec.byte_level && !merged) {
    unsupported(spec.where, "model", "a sentencepiece-like tokenizer",
                "a byte-level one, that of Gemma 4, or a tokenizer.model next to it");
  }
  const std::string_view pre = merged ? "gemma4" : gguf_pre(spec);
  const Vocabulary v = padded(spec.pieces, c);
  std::vector<std::string> merges;
  merges.reserve(spec.merges.size());
  for (const BpeMerge& m : spec.merges)
    merges.push_back(spec.pieces[m.left].text + " " + spec.pieces[m.right].text);
  out.text("tokenizer.ggml.model", merged ? "gemma4" : "gpt2");
  out.text("tokenizer.ggml.pre", pre);
  out.strings("tokenizer.ggml.tokens", v.texts);
  out.integers("tokenizer.ggml.token_type", v.types);
  out.strings("tokenizer.ggml.merges", merges);
  out.boolean("tokenizer.ggml.add_space_prefix", false);
  write_special(out, c, spec.bos_id, c.eos_id, spec.add_bos, v, spec.where);
}

}  // namespace riffle
