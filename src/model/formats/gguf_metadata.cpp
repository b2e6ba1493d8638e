#include "model/formats/gguf_metadata.h"

#include <algorithm>

#include "model/config_fields.h"
#include "model/formats/checked.h"
#include "model/formats/gguf.h"
#include "model/rope.h"

namespace riffle {

namespace {

void write_rope_scaling(GgufFileWriter& out, const std::string& a, const Config& c,
                        const std::string& where) {
  const RopeScaling& s = c.rope;
  const std::string p = a + ".rope.scaling.";
  switch (s.type) {
    case RopeScaling::NONE:
    case RopeScaling::LLAMA3:  // by tensor
    case RopeScaling::FACTORS: return;
    case RopeScaling::DYNAMIC:
      unsupported(where, "rope_scaling.type", "\"dynamic\"",
                  "a scaling that GGUF has: linear, yarn or llama3");
    case RopeScaling::LINEAR:
      out.text(p + "type", "linear");
      out.f32(p + "factor", s.factor);
      return;
    case RopeScaling::YARN: break;
  }
  out.text(p + "type", "yarn");
  out.f32(p + "factor", s.factor);
  out.u32(p + "original_context_length", static_cast<uint32_t>(s.original_ctx));
  out.f32(p + "yarn_beta_fast", s.beta_fast);
  out.f32(p + "yarn_beta_slow", s.beta_slow);
  RopeScaling usual = s;
  finish_yarn(&usual, 0, 0, 0);
  if (usual.attention_factor != s.attention_factor)
    out.f32(p + "yarn_attn_factor", s.attention_factor);
}

struct Vocabulary {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
};

// As converters do it: a name that no text has.
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

// The ids that end answers: one is eos, two have keys of their own, some are found by their
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
  // What ends a turn, where its name is known, goes under the first key.
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
  // Readers may find some more by name.
  constexpr size_t kMost = kMaxTokenIds - std::size(kEndTokenNames);
  if (others.size() >= kMost)
    unsupported(where, "eos_token_id", std::to_string(c.eos_ids.size()) + " end tokens",
                "at most " + std::to_string(kMost) + ", to write them as GGUF");
  if (!listed.empty()) out.integers("tokenizer.ggml.eos_token_ids", listed);
}

}  // namespace

void write_config(GgufFileWriter& out, const Config& c, const std::string& where) {
  const std::string a = c.rows_as_trained() ? c.architecture : "llama";
  if (c.sliding_window > 0 && c.first_window_layer > 0 && c.first_window_layer < c.n_layers) {
    unsupported(where, "max_window_layers", std::to_string(c.first_window_layer),
                "a sliding window in all layers or in none");
  }
  const auto count = [&](const char* key, int value) {
    out.u32(a + key, static_cast<uint32_t>(value));
  };
  out.text("general.architecture", a);
  out.text("general.type", "model");
  out.text("general.name", c.name);
  count(".vocab_size", c.vocab_size);
  count(".context_length", c.n_ctx);
  count(".embedding_length", c.dim);
  count(".block_count", c.n_layers);
  count(".feed_forward_length", c.hidden_dim);
  count(".attention.head_count", c.n_heads);
  count(".attention.head_count_kv", c.n_kv_heads);
  count(".attention.key_length", c.head_dim);
  count(".attention.value_length", c.head_dim);
  out.f32(a + ".attention.layer_norm_rms_epsilon", c.norm_eps);
  count(".rope.dimension_count", c.head_dim);
  out.f32(a + ".rope.freq_base", c.rope_theta);
  if (c.sliding_window > 0 && c.first_window_layer < c.n_layers)
    count(".attention.sliding_window", c.sliding_window);
  write_rope_scaling(out, a, c, where);
}

std::vector<float> rope_factors_of(const Config& c) {
  const RopeScaling& s = c.rope;
  if (s.type == RopeScaling::FACTORS) return s.factors;
  if (s.type != RopeScaling::LLAMA3) return {};
  Config plain = c;
  plain.rope = {};
  const std::vector<float> scaled = rope_frequencies(c, c.n_ctx).frequency;
  std::vector<float> factors = rope_frequencies(plain, c.n_ctx).frequency;
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return factors;
}

void write_pieces(GgufFileWriter& out, std::vector<VocabPiece> pieces, bool add_space_prefix,
                  bool add_bos, const Config& c) {
  std::vector<float> scores;
  for (const VocabPiece& piece : pieces) scores.push_back(piece.score);
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
  if (!spec.byte_level) {
    unsupported(spec.where, "model", "a sentencepiece-like tokenizer",
                "one that is byte-level, or a tokenizer.model beside it");
  }
  const std::string_view pre = gguf_pre(spec);
  const Vocabulary v = padded(spec.pieces, c);
  std::vector<std::string> merges;
  merges.reserve(spec.merges.size());
  for (const BpeMerge& m : spec.merges)
    merges.push_back(spec.pieces[m.left].text + " " + spec.pieces[m.right].text);
  out.text("tokenizer.ggml.model", "gpt2");
  out.text("tokenizer.ggml.pre", pre);
  out.strings("tokenizer.ggml.tokens", v.texts);
  out.integers("tokenizer.ggml.token_type", v.types);
  out.strings("tokenizer.ggml.merges", merges);
  out.boolean("tokenizer.ggml.add_space_prefix", false);
  write_special(out, c, spec.bos_id, c.eos_id, spec.add_bos, v, spec.where);
}

}  // namespace riffle
