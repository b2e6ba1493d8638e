#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "model/json.h"
#include "util/error.h"

namespace riffle {

namespace {

using nlohmann::json;

constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;
constexpr int kMaxDim = 1 << 20;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxContext = 1 << 28;

// Fields of either format, by name: nothing if absent, RIFFLE_BAD_MODEL if of another type.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual const std::string& file() const = 0;
  virtual std::optional<uint64_t> integer(const char* key) const = 0;
  virtual std::optional<double> number(const char* key) const = 0;
};

struct Keys {
  const char *dim, *hidden_dim, *head_dim, *n_layers, *n_heads, *n_kv_heads, *vocab_size, *n_ctx, *norm_eps,
      *rope_theta;
};

// fallback 0: the field is required.
int dimension(const Fields& fields, const char* key, int max, int fallback = 0) {
  const auto n = fields.integer(key);
  if (!n && fallback > 0) return fallback;
  if (!n || *n < 1 || *n > static_cast<uint64_t>(max)) {
    bad_model(fields.file(), key, n ? std::to_string(*n) : "none", "1 to " + std::to_string(max));
  }
  return static_cast<int>(*n);
}

float positive(const Fields& fields, const char* key, double max, double fallback) {
  const auto x = fields.number(key);
  if (!x && fallback > 0) return static_cast<float>(fallback);
  if (!x || !(*x > 0) || !(*x <= max) || !(static_cast<float>(*x) > 0)) {
    bad_model(fields.file(), key, x ? format("%g", *x) : "none", format("above 0 and at most %g", max));
  }
  return static_cast<float>(*x);
}

struct Defaults {
  int n_ctx;  // 0: required
  int vocab_size;
  double norm_eps, rope_theta;
};

void read_dimensions(const Fields& fields, const Keys& keys, const Defaults& defaults, Config* c) {
  const std::string& file = fields.file();
  c->dim = dimension(fields, keys.dim, kMaxDim);
  c->hidden_dim = dimension(fields, keys.hidden_dim, kMaxDim);
  c->n_layers = dimension(fields, keys.n_layers, kMaxLayers);
  c->n_heads = dimension(fields, keys.n_heads, kMaxHeads);
  c->n_kv_heads = dimension(fields, keys.n_kv_heads, kMaxHeads, c->n_heads);
  if (c->n_heads % c->n_kv_heads != 0) {
    bad_model(file, keys.n_kv_heads, std::to_string(c->n_kv_heads),
              "a divisor of " + std::string(keys.n_heads) + " = " + std::to_string(c->n_heads));
  }
  if (!fields.integer(keys.head_dim) && c->dim % c->n_heads != 0) {
    bad_model(file, keys.n_heads, std::to_string(c->n_heads),
              "a divisor of " + std::string(keys.dim) + " = " + std::to_string(c->dim));
  }
  c->head_dim = dimension(fields, keys.head_dim, kMaxHeadDim, c->dim / c->n_heads);
  if (c->head_dim % 2 != 0) bad_model(file, keys.head_dim, std::to_string(c->head_dim), "an even number");
  if (static_cast<int64_t>(c->n_heads) * c->head_dim > kMaxDim) {
    bad_model(file, keys.head_dim, std::to_string(c->head_dim),
              "at most " + std::to_string(kMaxDim) + " together with " + keys.n_heads);
  }
  c->vocab_size = dimension(fields, keys.vocab_size, kMaxVocab, defaults.vocab_size);
  c->n_ctx = dimension(fields, keys.n_ctx, kMaxContext, defaults.n_ctx);
  c->norm_eps = positive(fields, keys.norm_eps, 1, defaults.norm_eps);
  c->rope_theta = positive(fields, keys.rope_theta, 1e15, defaults.rope_theta);
}

// ---- GGUF -----------------------------------------------------------------------------------------------------------

class GgufFields : public Fields {
 public:
  explicit GgufFields(const GgufFile& gguf) : gguf_(gguf) {}
  const std::string& file() const override { return gguf_.file.name; }
  std::optional<uint64_t> integer(const char* key) const override { return gguf_.integer(key); }
  std::optional<double> number(const char* key) const override { return gguf_.number(key); }

 private:
  const GgufFile& gguf_;
};

constexpr Keys kGgufKeys = {
    "llama.embedding_length", "llama.feed_forward_length",  "llama.attention.key_length",
    "llama.block_count",      "llama.attention.head_count", "llama.attention.head_count_kv",
    "llama.vocab_size",       "llama.context_length",       "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.freq_base"};

// Keys that change the arithmetic, and the value with which they do not.
struct Neutral {
  const char* key;
  double value;
};
constexpr Neutral kGgufNeutral[] = {
    {"llama.attention.sliding_window", 0},
    {"llama.attn_logit_softcapping", 0},
    {"llama.final_logit_softcapping", 0},
    {"llama.router_logit_softcapping", 0},
    {"llama.expert_count", 0},
    {"llama.expert_used_count", 0},
    {"llama.expert_shared_count", 0},
    {"llama.attention.clamp_kqv", 0},
    {"llama.attention.max_alibi_bias", 0},
    {"llama.attention.scale", 0},
    {"llama.attention.temperature_scale", 0},
    {"llama.logit_scale", 1},
    {"llama.embedding_scale", 1},
    {"llama.residual_scale", 1},
    {"llama.rope.scale_linear", 1},
    {"llama.rope.scaling.factor", 1},
    {"llama.rope.scaling.attn_factor", 1},
    {"split.count", 1},
    {"llama.nextn_predict_layers", 0},
};
constexpr const char* kGgufFalse[] = {"llama.use_parallel_residual", "llama.swin_norm", "llama.rope.scaling.finetuned"};

void refuse_gguf_options(const GgufFile& gguf) {
  const std::string& file = gguf.file.name;
  if (const auto type = gguf.string("llama.rope.scaling.type"); type && *type != "none") {
    unsupported(file, "llama.rope.scaling.type", "\"" + std::string(*type) + "\"", "\"none\" (no RoPE scaling)");
  }
  for (const Neutral& n : kGgufNeutral) {
    const auto value = gguf.number(n.key);
    // 0 is how some writers say "not set".
    if (value && *value != 0 && *value != n.value)
      unsupported(file, n.key, format("%g", *value), format("%g", n.value));
  }
  for (const char* key : kGgufFalse) {
    if (gguf.boolean(key).value_or(false)) unsupported(file, key, "true", "false");
  }
  if (!gguf.boolean("llama.attention.causal").value_or(true)) {
    unsupported(file, "llama.attention.causal", "false", "true");
  }
  if (gguf.tensors.count("rope_freqs.weight")) {
    unsupported(file, "rope_freqs.weight", "RoPE scaling factors", "no RoPE scaling");
  }
  // One number for all layers; some models give one for each.
  for (const char* key : {kGgufKeys.n_heads, kGgufKeys.n_kv_heads, kGgufKeys.hidden_dim}) {
    const auto it = gguf.metadata.find(key);
    if (it != gguf.metadata.end() && it->second.type == GgufType::ARRAY) {
      unsupported(file, key, "a value for each layer", "one value for all layers");
    }
  }
}

}  // namespace

Config config_from_gguf(const GgufFile& gguf) {
  const std::string& file = gguf.file.name;
  const auto architecture = gguf.string("general.architecture");
  if (!architecture) bad_model(file, "general.architecture", "none", "\"llama\"");
  if (*architecture != "llama") {
    unsupported(file, "general.architecture", "\"" + std::string(*architecture) + "\"", "\"llama\"");
  }
  refuse_gguf_options(gguf);
  VocabOptions vocab;
  const std::vector<VocabPiece> pieces = gguf_vocab(gguf, &vocab);

  Config c;
  c.architecture = *architecture;
  c.name = gguf.string("general.name").value_or("");
  const GgufFields fields(gguf);
  read_dimensions(fields, kGgufKeys, {0, static_cast<int>(pieces.size()), 0, 10000}, &c);
  if (static_cast<size_t>(c.vocab_size) < pieces.size()) {
    bad_model(file, kGgufKeys.vocab_size, std::to_string(c.vocab_size),
              "at least " + std::to_string(pieces.size()) + ", the number of tokenizer.ggml.tokens");
  }
  const int value_length = dimension(fields, "llama.attention.value_length", kMaxHeadDim, c.head_dim);
  if (value_length != c.head_dim) {
    unsupported(file, "llama.attention.value_length", std::to_string(value_length),
                std::to_string(c.head_dim) + ", as the keys have");
  }
  const int rope_dims = dimension(fields, "llama.rope.dimension_count", kMaxHeadDim, c.head_dim);
  if (rope_dims != c.head_dim) {
    unsupported(file, "llama.rope.dimension_count", std::to_string(rope_dims),
                std::to_string(c.head_dim) + " (RoPE on the whole head)");
  }
  c.tied_output = gguf.tensors.find(kGgufNames.output) == gguf.tensors.end();
  c.bos_id = vocab.bos_id;
  c.eos_id = vocab.eos_id;
  c.eos_ids = vocab.eos_ids;
  c.rope_interleaved = true;
  return c;
}

// ---- config.json ----------------------------------------------------------------------------------------------------

namespace {

std::string shown(const json& value) { return value.dump(-1, ' ', true).substr(0, 80); }

// null counts as absent throughout, as it does in transformers.
const json* find(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

class JsonFields : public Fields {
 public:
  JsonFields(const std::string& file, const json& object) : file_(file), object_(object) {}
  const std::string& file() const override { return file_; }
  std::optional<uint64_t> integer(const char* key) const override {
    const json* value = find(object_, key);
    if (!value) return std::nullopt;
    if (!value->is_number_unsigned()) bad_model(file_, key, shown(*value), "a whole number from 0");
    return value->get<uint64_t>();
  }
  std::optional<double> number(const char* key) const override {
    const json* value = find(object_, key);
    if (!value) return std::nullopt;
    if (!value->is_number()) bad_model(file_, key, shown(*value), "a number");
    return value->get<double>();
  }
  std::optional<bool> boolean(const char* key) const {
    const json* value = find(object_, key);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) bad_model(file_, key, shown(*value), "true or false");
    return value->get<bool>();
  }
  std::optional<std::string> string(const char* key) const {
    const json* value = find(object_, key);
    if (!value) return std::nullopt;
    if (!value->is_string()) bad_model(file_, key, shown(*value), "a string");
    return value->get<std::string>();
  }

 private:
  const std::string& file_;
  const json& object_;
};

constexpr Keys kJsonKeys = {"hidden_size",         "intermediate_size",   "head_dim",   "num_hidden_layers",
                            "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings",
                            "rms_norm_eps",        "rope_theta"};

constexpr Neutral kJsonNeutral[] = {
    {"sliding_window", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_cap", 0},
    {"num_local_experts", 0},
    {"num_experts", 0},
    {"n_routed_experts", 0},
    {"clip_qkv", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"partial_rotary_factor", 1},
    {"rotary_pct", 1},
    {"attention_chunk_size", 0},
};
constexpr const char* kJsonFalse[] = {"attention_bias",  "mlp_bias", "qkv_bias",           "use_qk_norm",
                                      "qk_norm",         "alibi",    "use_sliding_window", "is_encoder_decoder",
                                      "rope_interleaved"};

void refuse_rope_scaling(const std::string& file, const json& config, const char* key) {
  const json* rope = find(config, key);
  if (!rope) return;
  if (!rope->is_object()) bad_model(file, key, shown(*rope), "an object or null");
  for (const char* name : {"rope_type", "type"}) {
    const json* type = find(*rope, name);
    if (type && *type != "default") {
      unsupported(file, std::string(key) + "." + name, shown(*type), "\"default\" (no RoPE scaling)");
    }
  }
  for (const auto& [name, value] : rope->items()) {
    if (name == "rope_type" || name == "type" || name == "rope_theta" || value.is_null()) continue;
    if (name == "partial_rotary_factor" && value == 1) continue;
    unsupported(file, std::string(key) + "." + name, shown(value), "none (no RoPE scaling)");
  }
}

void refuse_json_options(const JsonFields& fields, const json& config) {
  const std::string& file = fields.file();
  for (const Neutral& n : kJsonNeutral) {
    const auto value = fields.number(n.key);
    if (value && *value != n.value) unsupported(file, n.key, format("%g", *value), format("%g or null", n.value));
  }
  for (const char* key : kJsonFalse) {
    if (fields.boolean(key).value_or(false)) unsupported(file, key, "true", "false");
  }
  const std::string act = fields.string("hidden_act").value_or("silu");
  if (act != "silu") unsupported(file, "hidden_act", "\"" + act + "\"", "\"silu\"");
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const json* value = find(config, key)) unsupported(file, key, shown(*value), "null (F32, F16 or BF16 weights)");
  }
  if (const json* types = find(config, "layer_types")) {
    if (!types->is_array()) bad_model(file, "layer_types", shown(*types), "an array");
    for (const json& type : *types) {
      if (type != "full_attention") unsupported(file, "layer_types", shown(type), "\"full_attention\"");
    }
  }
  refuse_rope_scaling(file, config, "rope_scaling");
  refuse_rope_scaling(file, config, "rope_parameters");
}

// A number, or a list of them. None of them, or -1: empty.
std::vector<int> token_ids(const std::string& file, const json& config, const char* key, int vocab_size) {
  constexpr size_t kMaxIds = 256;
  std::vector<int> ids;
  const json* value = find(config, key);
  if (!value) return ids;
  const auto add = [&](const json& id) {
    if (id == -1) return;
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      bad_model(file, key, shown(id), "an id below vocab_size = " + std::to_string(vocab_size));
    }
    if (std::find(ids.begin(), ids.end(), id.get<int>()) == ids.end()) ids.push_back(id.get<int>());
  };
  if (!value->is_array()) {
    add(*value);
    return ids;
  }
  if (value->size() > kMaxIds) {
    bad_model(file, key, std::to_string(value->size()) + " ids", "at most " + std::to_string(kMaxIds));
  }
  for (const json& id : *value) add(id);
  return ids;
}

int first_or_none(const std::vector<int>& ids) { return ids.empty() ? -1 : ids.front(); }

}  // namespace

Config config_from_json(const FileView& file) {
  const json config = parse_json_object(file);
  const JsonFields fields(file.name, config);
  const auto type = fields.string("model_type");
  if (!type) bad_model(file.name, "model_type", "none", "\"llama\"");
  if (*type != "llama") unsupported(file.name, "model_type", "\"" + *type + "\"", "\"llama\"");
  if (const json* names = find(config, "architectures")) {
    if (!names->is_array()) bad_model(file.name, "architectures", shown(*names), "an array");
    for (const json& name : *names) {
      if (name != "LlamaForCausalLM") unsupported(file.name, "architectures", shown(name), "\"LlamaForCausalLM\"");
    }
  }
  refuse_json_options(fields, config);

  // transformers 5 moved rope_theta into rope_parameters.
  json flat = config;
  const json* rope = find(config, "rope_parameters");
  if (rope && find(*rope, "rope_theta") && !find(config, "rope_theta")) flat["rope_theta"] = *find(*rope, "rope_theta");
  const JsonFields flat_fields(file.name, flat);

  Config c;
  c.architecture = *type;
  read_dimensions(flat_fields, kJsonKeys, {2048, 0, 1e-6, 10000}, &c);
  c.tied_output = fields.boolean("tie_word_embeddings").value_or(false);
  c.bos_id = first_or_none(token_ids(file.name, config, "bos_token_id", c.vocab_size));
  c.eos_ids = token_ids(file.name, config, "eos_token_id", c.vocab_size);
  c.eos_id = first_or_none(c.eos_ids);
  c.rope_interleaved = false;
  return c;
}

void add_generation_config(const FileView& file, Config* config) {
  const json root = parse_json_object(file);
  for (const int id : token_ids(file.name, root, "eos_token_id", config->vocab_size)) {
    if (std::find(config->eos_ids.begin(), config->eos_ids.end(), id) == config->eos_ids.end()) {
      config->eos_ids.push_back(id);
    }
  }
  if (config->eos_id < 0) config->eos_id = first_or_none(config->eos_ids);
}

}  // namespace riffle
