#include <algorithm>

#include "model/config_fields.h"
#include "model/formats/json.h"
#include "util/error.h"

namespace riffle {

namespace {

using nlohmann::json;

std::string shown(const json& value) { return value.dump(-1, ' ', true).substr(0, 80); }

// null counts as absent throughout, as it does in transformers.
const json* find(const json& object, const std::string& key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

class JsonFields : public Fields {
 public:
  JsonFields(const std::string& file, const json& object) : file_(file), object_(object) {}
  const std::string& file() const override { return file_; }
  std::optional<uint64_t> integer(const std::string& key) const override {
    const json* value = find(object_, key);
    if (!value) return std::nullopt;
    if (!value->is_number_unsigned()) bad_model(file_, key, shown(*value), "a whole number from 0");
    return value->get<uint64_t>();
  }
  std::optional<double> number(const std::string& key) const override {
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

const Keys kJsonKeys = {"hidden_size",       "intermediate_size",       "head_dim",
                        "num_hidden_layers", "num_attention_heads",     "num_key_value_heads",
                        "vocab_size",        "max_position_embeddings", "rms_norm_eps",
                        "rope_theta"};

// Keys that change the arithmetic, and the value with which they do not.
struct Neutral {
  const char* key;
  double value;
};
constexpr Neutral kJsonNeutral[] = {
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
constexpr const char* kJsonFalse[] = {"use_qk_norm",        "qk_norm",          "alibi",
                                      "is_encoder_decoder", "rope_interleaved", "use_mrope"};

// What a model_type stands for: transformers' defaults, and which options its code has.
struct Family {
  const char *model_type, *class_name;
  Defaults defaults;
  bool qkv_bias, bias_fields;  // always there; attention_bias and mlp_bias say
  bool qk_norm;                // each head of q and k is normalised before RoPE
  enum Window : uint8_t { NEVER, ALWAYS, IF_USED } window;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", {2048, 0, 1e-6, 10000, 0}, false, true, false, Family::NEVER},
    {"mistral",
     "MistralForCausalLM",
     {131072, 0, 1e-6, 10000, 8},
     false,
     false,
     false,
     Family::ALWAYS},
    {"qwen2", "Qwen2ForCausalLM", {32768, 0, 1e-6, 10000, 32}, true, false, false, Family::IF_USED},
    {"qwen3",
     "Qwen3ForCausalLM",
     {32768, 0, 1e-6, 10000, 32, 128},
     false,
     true,
     true,
     Family::IF_USED},
};

const Family& family_of(const JsonFields& fields, const json& config) {
  const std::string& file = fields.file();
  const auto type = fields.string("model_type");
  const char* known = "\"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";
  if (!type) bad_model(file, "model_type", "none", known);
  for (const Family& family : kFamilies) {
    if (*type != family.model_type) continue;
    if (const json* names = find(config, "architectures")) {
      if (!names->is_array()) bad_model(file, "architectures", shown(*names), "an array");
      for (const json& name : *names) {
        if (name != family.class_name)
          unsupported(file, "architectures", shown(name),
                      std::string("\"") + family.class_name + "\"");
      }
    }
    return family;
  }
  unsupported(file, "model_type", "\"" + *type + "\"", known);
}

// Which layers have a sliding window; transformers: Mistral all, Qwen2 from max_window_layers on,
// if it is used at all.
void read_window(const JsonFields& fields, const json& config, const Family& family, Config* c) {
  const std::string& file = fields.file();
  const auto given = fields.integer("sliding_window");
  const bool named = config.contains("sliding_window");  // null: none
  uint64_t window = given.value_or(0);
  if (family.window == Family::ALWAYS && !named) window = 4096;
  if (family.window == Family::NEVER && window != 0)
    unsupported(file, "sliding_window", std::to_string(window), "null");
  if (family.window == Family::IF_USED) {
    if (!fields.boolean("use_sliding_window").value_or(false)) window = 0;
    else if (!named) window = 4096;
    c->first_window_layer = static_cast<int>(
        std::min<uint64_t>(fields.integer("max_window_layers").value_or(28), c->n_layers));
  } else if (fields.boolean("use_sliding_window").value_or(false) && window == 0) {
    unsupported(file, "use_sliding_window", "true", "false");
  }
  c->sliding_window = static_cast<int>(std::min<uint64_t>(window, 1 << 28));
  const json* types = find(config, "layer_types");
  if (!types) return;
  if (!types->is_array()) bad_model(file, "layer_types", shown(*types), "an array");
  if (types->size() != static_cast<size_t>(c->n_layers)) {
    bad_model(file, "layer_types", std::to_string(types->size()) + " entries",
              std::to_string(c->n_layers) + ", one a layer");
  }
  int first = 0;  // full layers, then windowed ones
  while (first < c->n_layers && (*types)[first] == "full_attention") ++first;
  for (int l = first; l < c->n_layers; ++l) {
    if ((*types)[l] != "sliding_attention" || c->sliding_window == 0)
      unsupported(file, "layer_types", shown((*types)[l]) + " at " + std::to_string(l),
                  c->sliding_window == 0
                      ? "\"full_attention\" (sliding_window is not set)"
                      : "\"full_attention\", then \"sliding_attention\" to the end");
  }
  c->first_window_layer = first;
}

// rope: the object, where: its name in the file.
void read_rope_scaling(const std::string& file, const json& rope, const std::string& where,
                       const json& config, Config* c) {
  if (!rope.is_object()) bad_model(file, where, shown(rope), "an object or null");
  const JsonFields fields(file, rope);
  const auto named = fields.string("rope_type");
  const std::string type = named ? *named : fields.string("type").value_or("default");
  RopeScaling& s = c->rope;
  std::vector<std::string> known = {"rope_type", "type", "rope_theta", "finetuned"};
  const auto also = [&](std::initializer_list<const char*> names) {
    known.insert(known.end(), names.begin(), names.end());
  };
  const auto number = [&](const char* key, double fallback) {
    return positive(fields, key, 1e6, fallback);
  };
  if (type == "linear") {
    s.type = RopeScaling::LINEAR, also({"factor"});
  } else if (type == "dynamic") {
    s.type = RopeScaling::DYNAMIC, also({"factor", "original_max_position_embeddings"});
  } else if (type == "yarn") {
    s.type = RopeScaling::YARN;
    also({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
          "beta_slow", "mscale", "mscale_all_dim", "truncate"});
  } else if (type == "llama3") {
    s.type = RopeScaling::LLAMA3;
    also({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"});
  } else if (type != "default") {
    unsupported(file, where + (named ? ".rope_type" : ".type"), "\"" + type + "\"",
                "\"default\", \"linear\", \"dynamic\", \"yarn\" or \"llama3\"");
  }
  for (const auto& [name, value] : rope.items()) {
    if (value.is_null() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (name == "partial_rotary_factor" && value == 1) continue;
    unsupported(file, where + "." + name, shown(value), "none, with type \"" + type + "\"");
  }
  if (!fields.boolean("truncate").value_or(true))
    unsupported(file, where + ".truncate", "false", "true");
  if (s.type == RopeScaling::NONE) return;
  s.factor = number("factor", 0);
  if (s.type == RopeScaling::LINEAR) return;
  const JsonFields top(file, config);
  s.original_ctx = dimension(fields, "original_max_position_embeddings", 1 << 28,
                             dimension(top, "original_max_position_embeddings", 1 << 28, c->n_ctx));
  if (s.type == RopeScaling::LLAMA3) {
    s.low_freq_factor = number("low_freq_factor", 0);
    s.high_freq_factor = number("high_freq_factor", 0);
    if (!(s.high_freq_factor > s.low_freq_factor)) {
      bad_model(file, where + ".high_freq_factor", format("%g", s.high_freq_factor),
                format("above low_freq_factor = %g", s.low_freq_factor));
    }
  } else if (s.type == RopeScaling::YARN) {
    s.beta_fast = number("beta_fast", 32);
    s.beta_slow = number("beta_slow", 1);
    if (!(c->rope_theta > 1))
      bad_model(file, "rope_theta", format("%g", c->rope_theta), "above 1 with yarn");
    finish_yarn(&s, fields.number("attention_factor").value_or(0),
                fields.number("mscale").value_or(0), fields.number("mscale_all_dim").value_or(0));
    c->n_ctx = std::max(
        c->n_ctx, static_cast<int>(std::min(double(1 << 28), double(s.original_ctx) * s.factor)));
  }
}

void refuse_json_options(const JsonFields& fields, const json& config, const Family& family) {
  const std::string& file = fields.file();
  for (const Neutral& n : kJsonNeutral) {
    const auto value = fields.number(n.key);
    if (value && *value != n.value)
      unsupported(file, n.key, format("%g", *value), format("%g or null", n.value));
  }
  for (const char* key : kJsonFalse) {
    if (fields.boolean(key).value_or(false)) unsupported(file, key, "true", "false");
  }
  // Families without the fields have their biases whatever these say, as in transformers.
  const auto bias = [&](const char* key, bool expected) {
    if (fields.boolean(key).value_or(expected) != expected)
      unsupported(file, key, expected ? "false" : "true", expected ? "true" : "false");
  };
  bias("qkv_bias", family.qkv_bias);
  if (!family.bias_fields) bias("mlp_bias", false);
  if (!family.bias_fields && !family.qkv_bias) bias("attention_bias", false);
  if (const json* layers = find(config, "no_rope_layers"); layers && *layers != json::array()) {
    const bool all = layers->is_array() && std::all_of(layers->begin(), layers->end(),
                                                       [](const json& rope) { return rope == 1; });
    if (!all) unsupported(file, "no_rope_layers", shown(*layers), "null (RoPE in every layer)");
  }
  if (const json* scale = find(config, "attention_multiplier"))
    unsupported(file, "attention_multiplier", shown(*scale), "null (1/sqrt(head_dim))");
  const std::string act = fields.string("hidden_act").value_or("silu");
  if (act != "silu" && act != "swish")
    unsupported(file, "hidden_act", "\"" + act + "\"", "\"silu\"");
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (const json* value = find(config, key))
      unsupported(file, key, shown(*value), "null (F32, F16 or BF16 weights)");
  }
}

// A number, or a list of them. None of them, or -1: empty.
std::vector<int> token_ids(const std::string& file, const json& config, const char* key,
                           int vocab_size) {
  std::vector<int> ids;
  const json* value = find(config, key);
  if (!value) return ids;
  const auto add = [&](const json& id) {
    if (id.is_number_integer() && !id.is_number_unsigned() && id == -1)
      return;  // to the library 2^64 - 1 is equal to -1
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      bad_model(file, key, shown(id), "an id below vocab_size = " + std::to_string(vocab_size));
    }
    if (std::find(ids.begin(), ids.end(), id.get<int>()) == ids.end()) ids.push_back(id.get<int>());
  };
  if (!value->is_array()) {
    add(*value);
    return ids;
  }
  if (value->size() > kMaxTokenIds) {
    bad_model(file, key, std::to_string(value->size()) + " ids",
              "at most " + std::to_string(kMaxTokenIds));
  }
  for (const json& id : *value) add(id);
  return ids;
}

int first_or_none(const std::vector<int>& ids) { return ids.empty() ? -1 : ids.front(); }

}  // namespace

Config config_from_json(const FileView& file) {
  const json config = parse_json_object(file);
  const JsonFields fields(file.name, config);
  const Family& family = family_of(fields, config);
  refuse_json_options(fields, config, family);

  // transformers 5 moved rope_theta into rope_parameters.
  json flat = config;
  const json* rope = find(config, "rope_parameters");
  if (rope && rope->is_object() && find(*rope, "rope_theta") && !find(config, "rope_theta"))
    flat["rope_theta"] = *find(*rope, "rope_theta");
  const JsonFields flat_fields(file.name, flat);

  Config c;
  c.architecture = family.model_type;
  read_dimensions(flat_fields, kJsonKeys, family.defaults, &c);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (const json* scaling = find(config, key); scaling && c.rope.type == RopeScaling::NONE)
      read_rope_scaling(file.name, *scaling, key, config, &c);
  }
  read_window(fields, config, family, &c);
  c.qk_norm = family.qk_norm;
  c.qkv_bias = family.qkv_bias;
  if (family.bias_fields) {
    c.qkv_bias = c.o_bias = fields.boolean("attention_bias").value_or(false);
    c.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  }
  c.tied_output = fields.boolean("tie_word_embeddings").value_or(false);
  c.bos_id = first_or_none(token_ids(file.name, config, "bos_token_id", c.vocab_size));
  c.eos_ids = token_ids(file.name, config, "eos_token_id", c.vocab_size);
  c.eos_id = first_or_none(c.eos_ids);
  c.rope_interleaved = false;
  return c;
}

void add_generation_config(const FileView& file, Config* config) {
  const json root = parse_json_object(file);
  for (const int id : token_ids(file.name, root, "eos_token_id", config->vocab_size))
    add_end_token(id, config);
  if (config->eos_id < 0) config->eos_id = first_or_none(config->eos_ids);
}

}  // namespace riffle
