#include <algorithm>
#include <charconv>
#include <cmath>

#include "import/end_tokens.h"
#include "import/read_config.h"
#include "model/families/family.h"
#include "model/families/fields.h"
#include "util/c_locale.h"
#include "util/error.h"
#include "util/json_file.h"

namespace riffle {

namespace {

constexpr const char* kLayerConfig = "per_layer_config";

class JsonFields : public Fields {
 public:
  // rope: an object whose rope_theta, if it has one, is used instead of this object's.
  JsonFields(const std::string& file, const Json& object, const Json* rope = nullptr)
      : file_(file), object_(object), rope_(rope) {}
  const std::string& file() const override { return file_; }
  bool is_json() const override { return true; }
  std::string name_of(const Field& field) const override { return field.json ? field.json : ""; }
  using Fields::boolean, Fields::booleans, Fields::has, Fields::integer, Fields::integers,
      Fields::number, Fields::numbers, Fields::string, Fields::strings;
  std::optional<uint64_t> integer(const std::string& name) const override {
    const Json* value = at(name);
    if (!value && name == field::kLayers.json) return listed_layers();
    // per_layer_config goes first, which transformers does too.
    if (find(object_, kLayerConfig) && name == "global_head_dim")
      return of_named_layers(field::kHeadDim.json);
    if (find(object_, kLayerConfig) && name == "num_global_key_value_heads")
      return of_named_layers(field::kKvHeads.json);
    if (!value) return std::nullopt;
    if (!value->is_unsigned()) bad_model(file_, name, shown(*value), "a whole number from 0");
    return value->whole();
  }
  std::optional<double> number(const std::string& name) const override {
    const Json* value = at(name);
    if (!value) return std::nullopt;
    if (!value->is_number()) bad_model(file_, name, shown(*value), "a number");
    return value->number();
  }
  std::optional<bool> boolean(const std::string& name) const override {
    const Json* value = at(name);
    if (!value) return std::nullopt;
    if (!value->is_boolean()) bad_model(file_, name, shown(*value), "true or false");
    return value->boolean();
  }
  std::optional<std::string> string(const std::string& name) const override {
    const Json* value = at(name);
    if (!value) return std::nullopt;
    if (!value->is_string()) bad_model(file_, name, shown(*value), "a string");
    return value->string();
  }
  std::vector<int64_t> integers(const std::string& name) const override {
    return array<int64_t>(name, &Json::is_integer, &Json::integer, "an array of whole numbers");
  }
  std::vector<double> numbers(const std::string& name) const override {
    return array<double>(name, &Json::is_number, &Json::number, "an array of numbers");
  }
  std::vector<bool> booleans(const std::string& name) const override {
    return array<bool>(name, &Json::is_boolean, &Json::boolean, "an array of true and false");
  }
  std::vector<std::string> strings(const std::string& name) const override {
    return array<std::string>(name, &Json::is_string, &Json::string, "an array of strings");
  }
  bool has(const std::string& name) const override { return at(name) != nullptr; }
  bool is_boolean(const std::string& name) const override {
    const Json* const value = at(name);
    return value && value->is_boolean();
  }

 private:
  // transformers 5 writes a Nemotron-H without a number of layers.
  std::optional<uint64_t> listed_layers() const {
    const Json* const kinds = find(object_, "layers_block_type");
    return kinds && kinds->is_array() ? std::optional(kinds->size()) : std::nullopt;
  }
  // transformers 5.24 writes what differs in some layers as {"5": {"head_dim": 512}, ...}.
  std::optional<uint64_t> of_named_layers(const char* key) const {
    const Json* const layers = find(object_, kLayerConfig);
    if (!layers || !layers->is_object()) return std::nullopt;
    std::optional<uint64_t> common;
    for (const auto& [layer, changes] : layers->members()) {
      const Json* const value = changes.is_object() ? find(changes, key) : nullptr;
      if (!value) continue;
      const std::string name = std::string(kLayerConfig) + "." + layer + "." + key;
      if (!value->is_unsigned()) bad_model(file_, name, shown(*value), "a whole number from 0");
      if (common.value_or(value->whole()) != value->whole())
        unsupported(file_, name, shown(*value),
                    std::to_string(*common) + ", as in an earlier entry");
      common = value->whole();
    }
    return common;
  }
  template <class T>
  std::vector<T> array(const std::string& name, bool (Json::*is)() const, auto(Json::*get)() const,
                       const char* expected) const {
    const Json* value = at(name);
    std::vector<T> all;
    if (!value) return all;
    const bool array = value->is_array() && value->size() <= 100'000;
    if (array)
      for (const Json& n : value->elements())
        if ((n.*is)()) all.push_back((n.*get)());
    if (!array || all.size() != value->size()) bad_model(file_, name, shown(*value), expected);
    return all;
  }
  const Json* at(const std::string& name) const {
    const Json* const theta = rope_ && name == field::kRopeBase.json ? find(*rope_, name) : nullptr;
    return theta ? theta : find(object_, name);
  }

  const std::string& file_;
  const Json& object_;
  const Json* rope_;
};

// Keys that change the arithmetic, each with the value that changes nothing.
struct Neutral {
  const char* key;
  double value;
};
constexpr Neutral kJsonNeutral[] = {
    {"query_pre_attn_scalar", 0},
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
constexpr const char* kJsonFalse[] = {"alibi", "is_encoder_decoder", "rope_interleaved",
                                      "use_mrope", "use_bidirectional_attention"};

void check_class(const std::string& file, const Json& config, const char* expected) {
  const Json* names = find(config, "architectures");
  if (!names) return;
  if (!names->is_array()) bad_model(file, "architectures", shown(*names), "an array");
  // Older files of some families write a class with other capital letters.
  const auto same = [expected](const Json& name) {
    return name.is_string() && std::ranges::equal(name.string(), std::string_view(expected), {},
                                                  ascii_lower, ascii_lower);
  };
  for (const Json& name : names->elements()) {
    if (!same(name))
      unsupported(file, "architectures", shown(name), std::string("\"") + expected + "\"");
  }
}

// Returns text_config of a model that also takes images; null for other models.
const Json* text_part(const std::string& file, const Json& config) {
  const auto type = JsonFields(file, config).string("model_type");
  if (!type || !family_of_multimodal_type(*type, "")) return nullptr;
  const Json* text = find(config, "text_config");
  if (!text || !text->is_object())
    bad_model(file, "text_config", text ? shown(*text) : "none", "an object");
  return text;
}

// text: text_part.
const Family& family_of(const std::string& file, const Json& config, const Json* text) {
  const auto type = JsonFields(file, config).string("model_type");
  if (!type) bad_model(file, "model_type", "none", known_model_types());
  if (!text) {
    const Family* family = family_of_model_type(*type);
    if (!family) unsupported(file, "model_type", lacking_family(*type), known_model_types());
    check_class(file, config, family->class_name);
    return *family;
  }
  const std::string text_type = JsonFields(file, *text).string("model_type").value_or("");
  const Family* family = family_of_multimodal_type(*type, text_type);
  if (!family)
    unsupported(file, "text_config.model_type", "\"" + text_type + "\"", known_text_types(*type));
  check_class(file, config, family->multimodal_class);
  return *family;
}

// Returns the window that layers may have; 0: none.
int read_window(const JsonFields& fields, const Json& config, const Family& family) {
  const std::string& file = fields.file();
  const auto given = fields.integer("sliding_window");
  const bool named = config.find("sliding_window");  // null: none
  uint64_t window = given.value_or(named ? 0 : family.window_default);
  const auto used = fields.boolean("use_sliding_window");
  if (family.window == Family::NEVER || family.window == Family::UNUSED) {
    if (used.value_or(window != 0 && family.window == Family::NEVER)) {
      if (used.value_or(false)) unsupported(file, "use_sliding_window", "true", "false");
      unsupported(file, "sliding_window", std::to_string(window), "null");
    }
    window = 0;
  } else if (family.window == Family::IF_USED) {
    if (!used.value_or(false)) window = 0;
  } else if (used.value_or(false) && window == 0) {
    unsupported(file, "use_sliding_window", "true", "false");
  }
  return static_cast<int>(std::min<uint64_t>(window, 1 << 28));
}

// Returns the layers that have the window; empty: the family decides.
std::vector<bool> windowed_layers(const JsonFields& fields, const Json& config,
                                  const Family& family, int window, const Config& c) {
  const std::string& file = fields.file();
  std::vector<bool> windowed;
  const Json* types = find(config, "layer_types");
  if (types) {
    if (!types->is_array()) bad_model(file, "layer_types", shown(*types), "an array");
    if (types->size() != static_cast<size_t>(c.n_layers)) {
      bad_model(file, "layer_types", entries_text(types->size()),
                std::to_string(c.n_layers) + ", one per layer");
    }
    for (const Json& type : types->elements()) {
      const bool sliding = type.equals("sliding_attention");
      const bool full =
          type.equals("full_attention") || type.equals("attention");  // the latter is older
      // transformers ignores layer_types in these families, though their authors meant something.
      if (full && window > 0 && family.window == Family::ALWAYS)
        unsupported(file, "layer_types", shown(type) + " at " + std::to_string(windowed.size()),
                    "\"sliding_attention\", as sliding_window is " + std::to_string(window) +
                        " and all layers of this family have it");
      if (type.is_string() && family.calls_recurrent(type.string())) {
        windowed.push_back(false);
        continue;
      }
      if ((!sliding && !full) || (sliding && window == 0))
        unsupported(file, "layer_types", shown(type) + " at " + std::to_string(windowed.size()),
                    sliding ? "\"full_attention\" (sliding_window is not set)"
                    : family.recurrent_word
                        ? std::string("\"full_attention\" or \"") + family.recurrent_word + "\""
                    : window == 0 ? "\"full_attention\" or \"attention\""
                                  : "\"full_attention\" or \"sliding_attention\"");
      windowed.push_back(sliding);
    }
    return windowed;
  }
  if (family.window == Family::IF_USED) {  // Qwen
    const uint64_t first = fields.integer("max_window_layers").value_or(28);
    for (int l = 0; l < c.n_layers; ++l) windowed.push_back(uint64_t(l) >= first);
  }
  if (family.window != Family::PERIOD) return windowed;
  // Older files have a period, or letters that are repeated, in place of layer_types.
  const Json* pattern = find(config, "sliding_window_pattern");
  if (!pattern) return windowed;
  const std::string expected = "a number above 0, or letters L (window) and G (none)";
  const std::string letters = pattern->is_string() ? pattern->string() : "";
  const uint64_t period = pattern->is_unsigned() ? pattern->whole() : letters.size();
  if (period == 0 || letters.find_first_not_of("LG") != letters.npos)
    bad_model(file, "sliding_window_pattern", shown(*pattern), expected);
  for (uint64_t l = 0; l < uint64_t(c.n_layers); ++l)
    windowed.push_back(letters.empty() ? (l + 1) % period != 0 : letters[l % period] == 'L');
  return windowed;
}

// Sets which layers have no RoPE: those of the family, unless config.json names others.
void read_no_rope(const JsonFields& fields, const Json& config, const Family& family, Config* c) {
  const std::string& file = fields.file();
  const Json* layers = find(config, "no_rope_layers");
  if (layers && layers->is_array() && layers->empty()) layers = nullptr;
  if (layers && (!layers->is_array() || layers->size() < static_cast<size_t>(c->n_layers) ||
                 !std::ranges::all_of(layers->elements(), [](const Json& rope) {
                   return rope.equals(0) || rope.equals(1);
                 })))
    bad_model(file, "no_rope_layers", shown(*layers), "0 or 1 for each layer");
  if (family.no_rope_period == 0) {
    if (layers &&
        !std::ranges::all_of(layers->elements(), [](const Json& r) { return r.equals(1); }))
      unsupported(file, "no_rope_layers", shown(*layers), "null (RoPE in every layer)");
    return;
  }
  const uint64_t period = fields.integer("no_rope_layer_interval").value_or(family.no_rope_period);
  if (period == 0) bad_model(file, "no_rope_layer_interval", "0", "at least 1");
  c->ropes.resize(2);  // the second has no base: no RoPE
  for (int l = 0; l < c->n_layers; ++l) {
    const bool has_rope =
        layers ? (*layers)[static_cast<size_t>(l)].equals(1) : (uint64_t(l) + 1) % period != 0;
    c->layers[l].rope = has_rope ? 0 : 1;
  }
}

// Returns LongRoPE's factor of each frequency.
std::vector<float> rope_factors(const std::string& file, const Json& rope, const char* key,
                                const std::string& where, int n) {
  const Json* value = find(rope, key);
  const std::string field = where + "." + key, expected = std::to_string(n) + " numbers";
  if (!value || !value->is_array() || value->size() != static_cast<size_t>(n))
    bad_model(file, field,
              !value              ? "none"
              : value->is_array() ? entries_text(value->size())
                                  : shown(*value),
              expected);
  std::vector<float> factors;
  for (const Json& x : value->elements()) {
    if (!x.is_number()) bad_model(file, field, shown(x), expected);
    factors.push_back(static_cast<float>(x.number()));
  }
  check_factors(factors, file, field);
  return factors;
}

// Returns the context length with which the model was first trained. rope: the parameters of RoPE;
// where: their name in the file.
int original_ctx(const JsonFields& rope, const JsonFields& top, const std::string& where,
                 const Family& family, int n_ctx) {
  const std::string key = "original_max_position_embeddings";
  constexpr int kMost = 1 << 28;
  const int fixed = family.original_ctx_default;
  const int outside = dimension(top, key, kMost, fixed > 0 ? fixed : n_ctx);
  const int inside = dimension(rope, key, kMost, outside);
  if (fixed > 0 && inside != outside)
    bad_model(rope.file(), where + "." + key, std::to_string(inside),
              std::to_string(outside) + ", as " + key + " outside " + where + " is" +
                  (top.has(key) ? "" : " by default"));
  return inside;
}

// rope: the object; where: its name in the file.
void read_rope_scaling(const std::string& file, const Json& rope, const std::string& where,
                       const Json& config, const Family& family, Config* c, Rope* to) {
  if (!rope.is_object()) bad_model(file, where, shown(rope), "an object or null");
  const JsonFields fields(file, rope);
  const auto named = fields.string("rope_type");
  const std::string type = named ? *named : fields.string("type").value_or("default");
  RopeScaling& s = to->scaling;
  std::vector<std::string> known = {"rope_type", "type", "rope_theta", "finetuned"};
  if (family.partial_rope) known.push_back("partial_rotary_factor");
  if (family.position_parts) known.insert(known.end(), {"mrope_section", "mrope_interleaved"});
  if (type == "default") known.push_back("original_max_position_embeddings");
  const auto also = [&](std::initializer_list<const char*> names) {
    known.insert(known.end(), names.begin(), names.end());
  };
  const auto number = [&](const char* key, double fallback) {
    return positive(fields, key, 1e6, fallback);
  };
  const double alpha = family.rope_alpha ? fields.number("alpha").value_or(0) : 0;
  if (type == "dynamic" && alpha != 0) {
    also({"alpha", "factor", "original_max_position_embeddings", "mscale", "mscale_all_dim",
          "beta_fast", "beta_slow"});
    to->theta = static_cast<float>(
        to->theta * std::pow(positive(fields, "alpha", 1e9, 0), c->head_dim / (c->head_dim - 2.0)));
  } else if (type == "linear") {
    s.type = RopeScaling::LINEAR, also({"factor"});
  } else if (type == "dynamic") {
    s.type = RopeScaling::DYNAMIC, also({"factor", "original_max_position_embeddings"});
  } else if (type == "yarn") {
    s.type = RopeScaling::YARN;
    also({"factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
          "beta_slow", "mscale", "mscale_all_dim", "truncate", "llama_4_scaling_beta",
          "max_position_embeddings"});
  } else if (type == "llama3") {
    s.type = RopeScaling::LLAMA3;
    also({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"});
  } else if (type == "longrope" || type == "su") {
    s.type = RopeScaling::LONGROPE;
    also({"factor", "original_max_position_embeddings", "attention_factor", "short_factor",
          "long_factor"});
  } else if (type == "proportional" && family.proportional_rope) {
    s.type = RopeScaling::FACTORS, also({"partial_rotary_factor"});
    const double share = fields.number("partial_rotary_factor").value_or(1);
    if (!(share > 0) || !(share <= 1))
      bad_model(file, where + ".partial_rotary_factor", format("%g", share), "above 0, at most 1");
    s.factors = proportional_factors(c->head_dim, share);
  } else if (type != "default") {
    unsupported(file, where + (named ? ".rope_type" : ".type"), "\"" + type + "\"",
                std::string(family.proportional_rope ? "\"proportional\", " : "") +
                    "\"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\" or \"longrope\"");
  }
  for (const auto& [name, value] : rope.members()) {
    if (value.is_null() || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (name == "partial_rotary_factor" && value.equals(1)) continue;
    unsupported(file, where + "." + name, shown(value), "none, with type \"" + type + "\"");
  }
  s.truncated = fields.boolean("truncate").value_or(true);
  if (s.type == RopeScaling::NONE || s.type == RopeScaling::FACTORS) return;
  s.original_ctx = original_ctx(fields, JsonFields(file, config), where, family, c->n_ctx);
  s.factor =
      number("factor",
             s.type == RopeScaling::LONGROPE ? static_cast<double>(c->n_ctx) / s.original_ctx : 0);
  if (s.type == RopeScaling::LINEAR) {
    s.original_ctx = 0;
    return;
  }
  if (s.type == RopeScaling::LLAMA3) {
    s.low_freq_factor = number("low_freq_factor", 0);
    s.high_freq_factor = number("high_freq_factor", 0);
    if (!(s.high_freq_factor > s.low_freq_factor)) {
      bad_model(file, where + ".high_freq_factor", format("%g", s.high_freq_factor),
                format("above low_freq_factor = %g", s.low_freq_factor));
    }
  } else if (s.type == RopeScaling::LONGROPE) {
    const int n = (to->rotated > 0 ? to->rotated : c->head_dim) / 2;
    s.factors = rope_factors(file, rope, "short_factor", where, n);
    s.long_factors = rope_factors(file, rope, "long_factor", where, n);
    const double sharper =
        s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(double(s.original_ctx)));
    s.attention_factor = number("attention_factor", sharper);
  } else if (s.type == RopeScaling::YARN) {
    s.beta_fast = number("beta_fast", 32);
    s.beta_slow = number("beta_slow", 1);
    if (!(to->theta > 1))
      bad_model(file, "rope_theta", format("%g", to->theta), "above 1 with yarn");
    if (const auto beta = fields.number("llama_4_scaling_beta"); beta && *beta != 0) {
      to->temperature = positive(fields, "llama_4_scaling_beta", 1e6, 0);
      to->temperature_ctx = s.original_ctx;
    }
    const double all = fields.number("mscale_all_dim").value_or(0);
    if (!(all >= 0) || !(all <= 100))
      bad_model(file, where + ".mscale_all_dim", format("%g", all), "0 to 100");
    s.mscale_all_dim = static_cast<float>(all);
    finish_yarn(&s, fields.number("attention_factor").value_or(0),
                fields.number("mscale").value_or(0), all);
    c->n_ctx = std::max(
        c->n_ctx, static_cast<int>(std::min(double(1 << 28), double(s.original_ctx) * s.factor)));
  }
}

// Checks that per_layer_config changes the heads of the layers without a window, and nothing else.
void check_layer_config(const std::string& file, const Json& config, const Family& family,
                        const Config& c) {
  const Json* const layers = find(config, kLayerConfig);
  if (!layers) return;
  if (!family.full_head_dim || !layers->is_object())
    unsupported(file, kLayerConfig, shown(*layers),
                family.full_head_dim ? "an object" : "none, as riffle does not know the option");
  size_t found = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    const Json* const changes = find(*layers, std::to_string(l));
    const std::string name = std::string(kLayerConfig) + "." + std::to_string(l);
    if (!changes && c.layers[l].window == 0)
      unsupported(file, name, "none", "an object, since the layer has no window");
    if (!changes) continue;
    if (!changes->is_object() || c.layers[l].window > 0)
      unsupported(file, name, shown(*changes),
                  c.layers[l].window > 0 ? "none, since the layer has a window" : "an object");
    ++found;
    for (const auto& [key, value] : changes->members())
      if (key != field::kHeadDim.json && key != field::kKvHeads.json)
        unsupported(file, name + "." + key, shown(value),
                    "none, as riffle does not know the option");
  }
  if (found == layers->size()) return;
  for (const auto& [layer, changes] : layers->members()) {
    int l = -1;
    std::from_chars(layer.data(), layer.data() + layer.size(), l);
    if (l < 0 || l >= c.n_layers || std::to_string(l) != layer)
      unsupported(file, std::string(kLayerConfig) + "." + layer, shown(changes),
                  "only layers without a window, below " + std::to_string(c.n_layers));
  }
}

// Reads the share of each head that is rotated. rope: the parameters of RoPE, or null.
void read_partial_rope(const JsonFields& fields, const Json* rope, const Family& family,
                       const Config& c, Rope* to) {
  const std::string& file = fields.file();
  double share = fields.number("partial_rotary_factor").value_or(family.partial_default);
  if (rope && rope->is_object() && find(*rope, "partial_rotary_factor"))
    share = *JsonFields(file, *rope).number("partial_rotary_factor");
  if (family.partial_rope && share != 1) {
    to->rotated = static_cast<int>(share * c.head_dim);
    if (!(share > 0) || !(share < 1) || to->rotated < 2 || to->rotated % 2 != 0)
      bad_model(file, "partial_rotary_factor", format("%g", share),
                format("a fraction whose product with head_dim = %d is even", c.head_dim));
  }
}

void refuse_json_options(const JsonFields& fields, const Json& config, const Family& family) {
  const std::string& file = fields.file();
  const auto known = [&](std::string_view key) {
    return std::any_of(family.fields.begin(), family.fields.end(),
                       [&](const Field& f) { return f.json && key == f.json; });
  };
  for (const Neutral& n : kJsonNeutral) {
    if (known(n.key) || (family.partial_rope && n.key == std::string_view("partial_rotary_factor")))
      continue;
    const auto value = fields.number(n.key);
    if (value && *value != n.value)
      unsupported(file, n.key, format("%g", *value), format("%g or null", n.value));
  }
  const auto refuse_true = [&](const char* key) {
    if (fields.boolean(key).value_or(false)) unsupported(file, key, "true", "false");
  };
  for (const char* key : kJsonFalse)
    if (!known(key)) refuse_true(key);
  // Families that have these norms may have these keys too.
  if (family.qk_norm == QkNorm::NONE)
    for (const char* key : {"use_qk_norm", "qk_norm"}) refuse_true(key);
  // Families without these fields have their biases whatever the fields say, as in transformers.
  const auto bias = [&](const char* key, bool expected) {
    if (fields.boolean(key).value_or(expected) != expected)
      unsupported(file, key, expected ? "false" : "true", expected ? "true" : "false");
  };
  bias("qkv_bias", family.qkv_bias);
  if (!family.bias_fields) bias("mlp_bias", false);
  if (!family.bias_fields && !family.qkv_bias && !known("attention_bias"))
    bias("attention_bias", false);
  const Json* scale = find(config, "attention_multiplier");
  if (scale && !known("attention_multiplier"))
    unsupported(file, "attention_multiplier", shown(*scale), "null (1/sqrt(head_dim))");
  // Bounds of a Mamba's time steps. transformers writes infinity as an object.
  if (const Json* limits = find(config, "time_step_limit")) {
    const auto infinite = [](const Json& limit) {
      const Json* const of_object = limit.is_object() ? limit.find("__float__") : nullptr;
      const Json& value = of_object ? *of_object : limit;
      return value.is_string() && value.string() == "Infinity";
    };
    if (!limits->is_array() || limits->size() != 2 || !(*limits)[0].is_number() ||
        (*limits)[0].number() != 0 || !infinite((*limits)[1]))
      unsupported(file, "time_step_limit", shown(*limits), "[0, Infinity] or null");
  }
  // Gemma's files name it hidden_activation; if both are present, that one is used.
  const bool gelu = family.activation == Activation::GELU_TANH;
  const char* act_key =
      gelu && find(config, "hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string expected = gelu                                     ? "gelu_pytorch_tanh"
                               : family.activation == Activation::XIELU ? "xielu"
                                                                        : "silu",
                    act = fields.string(act_key).value_or(expected);
  if (act != expected && (expected != "silu" || act != "swish"))
    unsupported(file, act_key, "\"" + act + "\"", "\"" + expected + "\"");
}

void refuse_packed_weights(const std::string& file, const Json& config, const Family& family) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const Json* value = find(config, key);
    const Json* method = value && value->is_object() ? find(*value, "quant_method") : nullptr;
    if (method && family.mxfp4 && method->equals("mxfp4")) continue;
    if (value) unsupported(file, key, shown(*value), "null (F32, F16 or BF16 weights)");
  }
}

// Reads an id or a list of ids. Returns an empty list for -1 and if the key is absent.
std::vector<int> token_ids(const std::string& file, const Json& config, const char* key,
                           int vocab_size) {
  std::vector<int> ids;
  const Json* value = find(config, key);
  if (!value) return ids;
  const auto add = [&](const Json& id) {
    if (id.is_integer() && id.equals(-1)) return;
    if (!id.is_unsigned() || id.whole() >= static_cast<uint64_t>(vocab_size)) {
      bad_model(file, key, shown(id), "an id below vocab_size = " + std::to_string(vocab_size));
    }
    const int known = static_cast<int>(id.whole());
    if (std::find(ids.begin(), ids.end(), known) == ids.end()) ids.push_back(known);
  };
  if (!value->is_array()) {
    add(*value);
    return ids;
  }
  if (value->size() > kMaxTokenIds) {
    bad_model(file, key, std::to_string(value->size()) + " ids",
              "at most " + std::to_string(kMaxTokenIds));
  }
  for (const Json& id : value->elements()) add(id);
  return ids;
}

int first_or_none(const std::vector<int>& ids) { return ids.empty() ? -1 : ids.front(); }

}  // namespace

// config: that of a language model. file: for error texts.
static Config language_model(const std::string& file, const Json& config, const Family& family) {
  const JsonFields fields(file, config);
  refuse_json_options(fields, config, family);
  refuse_packed_weights(file, config, family);

  // transformers 5 moved rope_theta into rope_parameters, where each kind of layer may have its
  // own.
  const Json* rope = find(config, "rope_parameters");
  if (rope && !rope->is_object()) bad_model(file, "rope_parameters", shown(*rope), "an object");
  const Json* full = rope ? find(*rope, "full_attention") : nullptr;
  const Json* sliding = rope ? find(*rope, "sliding_attention") : nullptr;
  const Json* usual = full && full->is_object() ? full : rope;
  const JsonFields flat_fields(file, config, usual);

  Config c;
  c.architecture = family.name;
  const bool old = family.old_hidden_dim && !flat_fields.has(family.hidden_dim);
  read_dimensions(flat_fields, old ? Field{nullptr, family.old_hidden_dim} : family.hidden_dim,
                  family.defaults, &c);
  const int windowed_head_dim = c.head_dim;
  if (family.full_head_dim)
    c.head_dim = head_dimension(flat_fields, family.full_head_dim, family.full_head_dim_default, c);
  read_partial_rope(fields, usual ? usual : find(config, "rope_scaling"), family, c, &c.ropes[0]);
  const auto rope_part = [&](const Json& value, const std::string& where, Rope* to) {
    read_rope_scaling(file, value, where, config, family, &c, to);
  };
  if (sliding) {
    Rope of_windows;
    const std::string where = "rope_parameters.sliding_attention";
    if (!sliding->is_object()) bad_model(file, where, shown(*sliding), "an object or null");
    read_partial_rope(fields, sliding, family, c, &of_windows);
    if (find(*sliding, "rope_theta"))  // else the family's
      of_windows.theta = positive(JsonFields(file, *sliding), "rope_theta", 1e15, 0);
    rope_part(*sliding, where, &of_windows);
    c.ropes.push_back(of_windows);
  }
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* scaling = find(config, key);
    if (!scaling || c.ropes[0].scaling.type != RopeScaling::NONE) continue;
    if (scaling == rope && (full || sliding)) {
      if (full) rope_part(*full, "rope_parameters.full_attention", &c.ropes[0]);
    } else {
      rope_part(*scaling, key, &c.ropes[0]);
    }
  }
  const int window = read_window(fields, config, family);
  set_layers(family, window, windowed_layers(fields, config, family, window, c), &c);
  check_layer_config(file, config, family, c);
  for (LayerConfig& layer : c.layers)
    if (family.full_head_dim && layer.window > 0) layer.head_dim = windowed_head_dim;
  read_no_rope(fields, config, family, &c);
  c.recurrence.kind = family.recurrence;
  if (family.recurrent_period > 0 && !find(config, "layer_types")) {
    const uint64_t period =
        fields.integer("full_attention_interval").value_or(family.recurrent_period);
    if (period == 0) bad_model(file, "full_attention_interval", "0", "at least 1");
    for (int l = 0; l < c.n_layers; ++l)
      if ((static_cast<uint64_t>(l) + 1) % period != 0) c.layers[l].mixer = Mixer::RECURRENT;
  }
  if (const Json* types = find(config, "layer_types"); types && family.recurrent_word)
    for (int l = 0; l < c.n_layers; ++l)
      if (family.calls_recurrent((*types)[static_cast<size_t>(l)].string()))
        c.layers[l].mixer = Mixer::RECURRENT;
  c.activation = family.activation;
  c.pre_norm = family.pre_norm;
  c.layer_norm = family.layer_norm;
  c.post_norm = family.post_norm;
  c.qk_norm = family.qk_norm;
  c.qkv_bias = family.qkv_bias;
  if (family.bias_fields) {
    c.qkv_bias = c.o_bias = fields.boolean("attention_bias").value_or(false);
    c.mlp_bias = fields.boolean("mlp_bias").value_or(false);
  }
  if (family.describe) family.describe(fields, window, &c);
  if (sliding && std::any_of(c.layers.begin(), c.layers.end(), [](const LayerConfig& layer) {
        return layer.window > 0 && layer.rope == 0;
      }))
    unsupported(file, "rope_parameters.sliding_attention", shown(*sliding),
                "none: this family rotates all layers in the same way");
  c.rope_interleaved = family.interleaved_in_folders;
  return c;
}

// Replaces the ids of c by those that config has.
static void read_end_tokens(const std::string& file, const Json& config, Config* c) {
  if (find(config, "bos_token_id"))
    c->bos_id = first_or_none(token_ids(file, config, "bos_token_id", c->vocab_size));
  if (find(config, "eos_token_id"))
    c->eos_ids = token_ids(file, config, "eos_token_id", c->vocab_size);
  c->eos_id = first_or_none(c->eos_ids);
}

Config config_from_json(const FileView& file, const Family** of) {
  const Json config = parse_json_object(file);
  const Json* text = text_part(file.name, config);
  const Family& family = family_of(file.name, config, text);
  if (of) *of = &family;
  const std::string text_name = file.name + ": text_config";
  Config c = language_model(text ? text_name : file.name, text ? *text : config, family);
  if (text) {
    c.text_part = true;
    refuse_packed_weights(file.name, config, family);
    read_end_tokens(text_name, *text, &c);
  }
  read_end_tokens(file.name, config, &c);
  // transformers takes it from the outer config.json, not from text_config.
  const JsonFields outer(file.name, config);
  c.tied_output = outer.boolean("tie_word_embeddings")
                      .value_or(text ? family.multimodal_tied : family.defaults.tied);
  if (family.tied_field) c.tied_output = outer.boolean(family.tied_field).value_or(c.tied_output);
  return c;
}

void add_generation_config(const FileView& file, Config* config) {
  const Json root = parse_json_object(file);
  for (const int id : token_ids(file.name, root, "eos_token_id", config->vocab_size))
    add_end_token(id, config);
  if (config->eos_id < 0) config->eos_id = first_or_none(config->eos_ids);
}

}  // namespace riffle
