#include <algorithm>

#include "model/config_fields.h"
#include "model/formats/gguf.h"
#include "model/formats/gguf_options.h"
#include "model/weights.h"
#include "util/error.h"

namespace riffle {

namespace {

class GgufFields : public Fields {
 public:
  explicit GgufFields(const GgufFile& gguf) : gguf_(gguf) {}
  const std::string& file() const override { return gguf_.file.name; }
  std::optional<uint64_t> integer(const std::string& key) const override {
    return gguf_.integer(key);
  }
  std::optional<double> number(const std::string& key) const override { return gguf_.number(key); }

 private:
  const GgufFile& gguf_;
};

// Models that compute as a Llama does but for what their fields say. mistral's files say "llama".
constexpr const char* kArchitectures[] = {"llama", "qwen2", "qwen3"};

Keys keys_of(const std::string& a) {
  return {
      a + ".embedding_length", a + ".feed_forward_length",  a + ".attention.key_length",
      a + ".block_count",      a + ".attention.head_count", a + ".attention.head_count_kv",
      a + ".vocab_size",       a + ".context_length",       a + ".attention.layer_norm_rms_epsilon",
      a + ".rope.freq_base"};
}

void refuse_arrays(const GgufFile& gguf, const Keys& keys) {
  // One number for all layers; some models give one for each.
  for (const std::string& key : {keys.n_heads, keys.n_kv_heads, keys.hidden_dim}) {
    const auto it = gguf.metadata.find(key);
    if (it != gguf.metadata.end() && it->second.type == GgufType::ARRAY) {
      unsupported(gguf.file.name, key, "a value for each layer", "one value for all layers");
    }
  }
}

// rope_freqs.weight: by what each frequency is divided (converters write Llama 3.1's scaling so).
std::vector<float> rope_factors(const RawTensor& raw, int head_dim) {
  const std::string field = "rope_freqs.weight";
  if (raw.type != DType::F32) unsupported(raw.file, field + " type", raw.type_name, "F32");
  if (raw.bytes != sizeof(float) * (head_dim / 2)) {
    bad_model(raw.file, field + " shape", shape_text(raw.shape),
              "[" + std::to_string(head_dim / 2) + "]");
  }
  std::vector<float> factors(head_dim / 2);
  for (size_t i = 0; i < factors.size(); ++i) {
    factors[i] = load_unaligned<float>(raw.data + sizeof(float) * i);
    if (!(factors[i] > 0) || !(factors[i] < 1e9f)) {
      bad_model(raw.file, field, format("%g at index %zu", factors[i], i),
                "values above 0 and below 1e9");
    }
  }
  return factors;
}

void read_rope_scaling(const GgufFile& gguf, const GgufFields& fields, const std::string& a,
                       Config* c) {
  RopeScaling& s = c->rope;
  const std::string p = a + ".rope.scaling.", type_key = p + "type";
  const auto given = gguf.string(type_key);
  const double old = gguf.number(a + ".rope.scale_linear").value_or(0);  // before there was a type
  const std::string type(given ? *given : old != 0 && old != 1 ? "linear" : "none");
  if (const auto it = gguf.tensors.find("rope_freqs.weight"); it != gguf.tensors.end()) {
    if (type != "none")
      unsupported(gguf.file.name, type_key, "\"" + type + "\" beside rope_freqs.weight",
                  "one of them");
    s.type = RopeScaling::FACTORS;
    s.factors = rope_factors(it->second, c->head_dim);
    return;
  }
  if (type == "none") {
    const double factor = gguf.number(p + "factor").value_or(0);
    if (factor != 0 && factor != 1)
      unsupported(gguf.file.name, p + "factor", format("%g", factor), "1 without " + type_key);
    return;
  }
  if (type != "linear" && type != "yarn")
    unsupported(gguf.file.name, type_key, "\"" + type + "\"", "\"none\", \"linear\" or \"yarn\"");
  s.type = type == "linear" ? RopeScaling::LINEAR : RopeScaling::YARN;
  s.factor = given && gguf.has(p + "factor") ? positive(fields, p + "factor", 1e6, 0)
             : old != 0                      ? positive(fields, a + ".rope.scale_linear", 1e6, 0)
                                             : 1;
  if (s.type == RopeScaling::LINEAR) return;
  if (!(c->rope_theta > 1))
    bad_model(gguf.file.name, a + ".rope.freq_base", format("%g", c->rope_theta),
              "above 1 with yarn");
  s.original_ctx = dimension(fields, p + "original_context_length", 1 << 28, c->n_ctx);
  s.beta_fast = positive(fields, p + "yarn_beta_fast", 1e6, 32);
  s.beta_slow = positive(fields, p + "yarn_beta_slow", 1e6, 1);
  const double ext = gguf.number(p + "yarn_ext_factor").value_or(1),
               log = gguf.number(p + "yarn_log_multiplier").value_or(0);
  if (ext != 1 && ext != -1)
    unsupported(gguf.file.name, p + "yarn_ext_factor", format("%g", ext), "1");
  // Converters write attention_factor as yarn_attn_factor, and mscale_all_dim (beside an mscale of
  // 1) as the multiplier.
  const double whole =
      gguf.has(p + "yarn_attn_factor") ? positive(fields, p + "yarn_attn_factor", 1e6, 0) : 0;
  finish_yarn(&s, whole, log > 0 ? 1 : 0, log);
  s.attention_factor *= positive(fields, p + "attn_factor", 1e6, 1);
}

}  // namespace

Config config_from_gguf(const GgufFile& gguf, GgufVocab* vocab) {
  const std::string& file = gguf.file.name;
  const auto architecture = gguf.string("general.architecture");
  if (!architecture)
    bad_model(file, "general.architecture", "none", "\"llama\", \"qwen2\" or \"qwen3\"");
  const std::string a(*architecture);
  if (std::find(std::begin(kArchitectures), std::end(kArchitectures), a) ==
      std::end(kArchitectures)) {
    unsupported(file, "general.architecture", "\"" + a + "\"", "\"llama\", \"qwen2\" or \"qwen3\"");
  }
  const Keys keys = keys_of(a);
  refuse_unknown_options(gguf, a);
  refuse_arrays(gguf, keys);
  *vocab = gguf_vocab(gguf);
  const size_t n_pieces = vocab->pieces.size();

  Config c;
  c.architecture = a;
  c.name = gguf.string("general.name").value_or("");
  const GgufFields fields(gguf);
  read_dimensions(fields, keys, {0, static_cast<int>(n_pieces), 0, 10000}, &c);
  if (static_cast<size_t>(c.vocab_size) < n_pieces) {
    bad_model(file, keys.vocab_size, std::to_string(c.vocab_size),
              "at least " + std::to_string(n_pieces) + ", the number of tokenizer.ggml.tokens");
  }
  for (const char* name :
       {".attention.value_length", ".attention.head_dim"}) {  // the latter: Ollama's converter
    const int length = dimension(fields, a + name, kMaxHeadDim, c.head_dim);
    if (length != c.head_dim)
      unsupported(file, a + name, std::to_string(length),
                  std::to_string(c.head_dim) + ", as the keys have");
  }
  const int rope_dims = dimension(fields, a + ".rope.dimension_count", kMaxHeadDim, c.head_dim);
  if (rope_dims != c.head_dim) {
    unsupported(file, a + ".rope.dimension_count", std::to_string(rope_dims),
                std::to_string(c.head_dim) + " (RoPE on the whole head)");
  }
  c.tied_output = gguf.tensors.find(kGgufNames.output) == gguf.tensors.end();
  c.bos_id = vocab->options.bos_id;
  c.eos_id = vocab->options.eos_id;
  c.eos_ids = vocab->options.eos_ids;
  c.rope_interleaved = a == "llama";
  c.sliding_window = static_cast<int>(
      std::min<uint64_t>(gguf.integer(a + ".attention.sliding_window").value_or(0), 1 << 28));
  read_rope_scaling(gguf, fields, a, &c);
  const auto has = [&](const char* name) {
    return gguf.tensors.count(std::string("blk.0.") + name) > 0;
  };
  c.qk_norm = a == "qwen3";
  c.qkv_bias = has(kGgufNames.bq) || has(kGgufNames.bk) || has(kGgufNames.bv);
  c.o_bias = has(kGgufNames.bo);
  c.mlp_bias = has(kGgufNames.b1) || has(kGgufNames.b3) || has(kGgufNames.b2);
  return c;
}

}  // namespace riffle
