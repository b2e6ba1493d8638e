#include <algorithm>
#include <cmath>
#include <span>

#include "formats/gguf.h"
#include "import/gguf_options.h"
#include "import/read_config.h"
#include "model/families/family.h"
#include "model/families/fields.h"
#include "model/weights.h"
#include "util/error.h"

namespace riffle {

namespace {

// The metadata whose keys begin with "ARCHITECTURE.".
class GgufFields : public Fields {
 public:
  // family.recurrence: layers may have 0 KV heads; one_part: and FFNs of width 0.
  GgufFields(const GgufFile& gguf, std::string architecture, const Family& family)
      : gguf_(gguf),
        architecture_(std::move(architecture)),
        recurrent_(family.recurrence != Recurrence::NONE),
        one_part_(family.one_part),
        other_eps_(family.one_part || family.layer_norm),
        uneven_(family.uneven_layers),
        uneven_heads_(family.uneven_heads) {}
  const std::string& file() const override { return gguf_.file.name; }
  bool is_json() const override { return false; }
  std::string name_of(const Field& field) const override {
    if (!field.gguf) return "";
    return field.gguf[0] == '.' ? field.gguf + 1 : architecture_ + "." + field.gguf;
  }
  using Fields::boolean, Fields::booleans, Fields::has, Fields::integer, Fields::integers,
      Fields::number, Fields::numbers, Fields::string, Fields::strings;
  std::optional<uint64_t> integer(const std::string& name) const override {
    const auto it = gguf_.metadata.find(name);
    const bool array = it != gguf_.metadata.end() && it->second.type == GgufType::ARRAY;
    for (const Field& each : {field::kHeads, field::kKvHeads, field::kHiddenDim})
      if (array && name == name_of(each)) return of_all_layers(name);
    return gguf_.integer(name);
  }
  std::optional<double> number(const std::string& name) const override {
    // Nemotron-H files have the epsilon of RMS norms only under the other key. So do models whose
    // norms subtract the mean.
    if (other_eps_ && !gguf_.has(name) && name == name_of(field::kNormEps))
      return gguf_.number(name_of({"attention.layer_norm_epsilon", nullptr}));
    return gguf_.number(name);
  }
  std::optional<bool> boolean(const std::string& name) const override {
    return gguf_.boolean(name);
  }
  std::optional<std::string> string(const std::string& name) const override {
    const auto text = gguf_.string(name);
    return text ? std::optional<std::string>(*text) : std::nullopt;
  }
  std::vector<int64_t> integers(const std::string& name) const override {
    return gguf_.integers(name).value_or(std::vector<int64_t>());
  }
  std::vector<double> numbers(const std::string& name) const override {
    const std::vector<float> all = gguf_.floats(name).value_or(std::vector<float>());
    return {all.begin(), all.end()};
  }
  std::vector<bool> booleans(const std::string& name) const override {
    const auto it = gguf_.metadata.find(name);
    std::vector<bool> all;
    if (it == gguf_.metadata.end()) return all;
    const GgufValue& value = it->second;
    if (value.type != GgufType::ARRAY || value.element != GgufType::BOOL)
      bad_model(file(), name,
                value.type == GgufType::ARRAY
                    ? std::string("an array of ") + riffle::name_of(value.element)
                    : "no array",
                "an array of BOOL");
    for (uint64_t i = 0; i < value.count; ++i) all.push_back(value.data[i] != 0);
    return all;
  }
  std::vector<std::string> strings(const std::string& name) const override {
    const auto all = gguf_.strings(name).value_or(std::vector<std::string_view>());
    return {all.begin(), all.end()};
  }
  bool has(const std::string& name) const override { return gguf_.has(name); }
  bool is_boolean(const std::string& name) const override {
    const auto it = gguf_.metadata.find(name);
    return it != gguf_.metadata.end() && it->second.type == GgufType::BOOL;
  }

 private:
  // Some converters write a number for each layer, the same for all.
  uint64_t of_all_layers(const std::string& name) const {
    const std::vector<int64_t> all = *gguf_.integers(name);
    const uint64_t n_layers = gguf_.integer(name_of(field::kLayers)).value_or(0);
    if (all.empty() || all.size() != n_layers)
      bad_model(file(), name, "an array of " + std::to_string(all.size()),
                std::to_string(n_layers) + " numbers from 0, one per layer");
    const bool ffn = one_part_ && name == name_of(field::kHiddenDim);
    const bool zeros = ffn || (recurrent_ && name == name_of(field::kKvHeads));
    size_t first = 0;  // the layer whose value the others must have
    while (zeros && first + 1 < all.size() && all[first] == 0) ++first;
    if (all[first] < 0)
      bad_model(file(), name, std::to_string(all[first]) + " in layer " + std::to_string(first),
                "at least 0");
    const bool kv_or_ffn = name == name_of(field::kKvHeads) || name == name_of(field::kHiddenDim);
    if ((uneven_ && kv_or_ffn) || (uneven_heads_ && name == name_of(field::kHeads)))
      return static_cast<uint64_t>(all[0]);
    for (size_t l = 0; l < all.size(); ++l)
      if (all[l] != all[first] && !(zeros && all[l] == 0))
        unsupported(file(), name,
                    std::to_string(all[l]) + " in layer " + std::to_string(l) + " and " +
                        std::to_string(all[first]) + " in layer " + std::to_string(first),
                    ffn     ? "one value for all layers with an FFN, 0 for the others"
                    : zeros ? "one value for all layers that attend, 0 for the others"
                            : "one value for all layers");
    return static_cast<uint64_t>(all[first]);
  }

  const GgufFile& gguf_;
  const std::string architecture_;
  const bool recurrent_, one_part_, other_eps_, uneven_, uneven_heads_;
};

// Returns the numbers of a field with one for each layer; empty: the file has one for all.
std::vector<int64_t> listed(const GgufFile& gguf, const GgufFields& fields, const Field& field) {
  const std::string key = fields.name_of(field);
  const auto it = gguf.metadata.find(key);
  const bool array = it != gguf.metadata.end() && it->second.type == GgufType::ARRAY;
  return array ? fields.integers(key) : std::vector<int64_t>();
}

void read_kv_heads(std::span<const int64_t> heads, const GgufFields& fields, Config* c) {
  for (size_t l = 0; l < heads.size(); ++l) {
    check_kv_heads(fields, field::kKvHeads, heads[l],
                   std::to_string(heads[l]) + " in layer " + std::to_string(l), *c);
    c->layers[l].n_kv_heads = static_cast<int>(heads[l]);
  }
}

// Reads the widths of FFNs that differ by layer.
void read_widths(std::span<const int64_t> widths, const GgufFields& fields, Config* c) {
  constexpr int kMost = 1 << 20;
  for (size_t l = 0; l < widths.size(); ++l) {
    if (widths[l] < 1 || widths[l] > kMost)
      bad_model(fields.file(), fields.name_of(field::kHiddenDim),
                std::to_string(widths[l]) + " in layer " + std::to_string(l),
                "1 to " + std::to_string(kMost));
    if (widths[l] != c->hidden_dim) c->layers[l].hidden_dim = static_cast<int>(widths[l]);
  }
}

// Marks the layers that have 0 KV heads.
void read_recurrent_layers(std::span<const int64_t> heads, Config* c) {
  for (size_t l = 0; l < heads.size(); ++l)
    if (heads[l] == 0) c->layers[l].mixer = Mixer::RECURRENT;
}

// Throws unless the layers with 0 KV heads, if there are any, are those that the file says are
// recurrent.
void require_kv_heads(std::span<const int64_t> heads, const GgufFields& fields, const Config& c) {
  if (std::ranges::count(heads, 0) == 0) return;
  for (int l = 0; l < c.n_layers && l < static_cast<int>(heads.size()); ++l)
    if ((heads[l] == 0) != c.recurs(l))
      bad_model(
          fields.file(), fields.name_of(field::kKvHeads),
          std::to_string(heads[l]) + " in layer " + std::to_string(l),
          c.recurs(l) ? "0, since the layer is recurrent" : "at least 1, since the layer attends");
}

// Reads rope_freqs.weight and the like: the divisor of each of n frequencies.
std::vector<float> rope_factors(const GgufFile& gguf, const std::string& field, int n) {
  const auto it = gguf.tensors.find(field);
  if (it == gguf.tensors.end())
    bad_model(gguf.file.name, "tensor " + field, "none", "shape [" + std::to_string(n) + "]");
  const RawTensor& raw = it->second;
  if (raw.type != DType::F32) unsupported(raw.file, field + " type", raw.type_name, "F32");
  if (raw.bytes != sizeof(float) * n) {
    bad_model(raw.file, field + " shape", shape_text(raw.shape), "[" + std::to_string(n) + "]");
  }
  std::vector<float> factors(n);
  for (size_t i = 0; i < factors.size(); ++i)
    factors[i] = load_unaligned<float>(raw.data + sizeof(float) * i);
  check_factors(factors, raw.file, field);
  return factors;
}

// Tells whether the file's attention factor is the one that follows from the scaling's factor.
// Files may round it to four digits.
bool is_yarn_factor(RopeScaling scaling, float attention_factor) {
  finish_yarn(&scaling, 0, 0, 0);
  return std::fabs(attention_factor - scaling.attention_factor) < 1e-3f;
}

void read_rope_scaling(const GgufFile& gguf, const GgufFields& fields, const Family& family,
                       Config* c) {
  const std::string a = family.name;
  Rope& rope = c->ropes[0];
  RopeScaling& s = rope.scaling;
  const std::string p = a + ".rope.scaling.", type_key = p + "type";
  const auto given = gguf.string(type_key);
  const double old = gguf.number(a + ".rope.scale_linear").value_or(0);  // older than the type
  const std::string type(given ? *given : old != 0 && old != 1 ? "linear" : "none");
  const int frequencies = (rope.rotated > 0 ? rope.rotated : c->head_dim) / 2;
  if (gguf.tensors.count("rope_factors_long.weight") > 0) {
    if (given && type != "none" && type != "longrope" &&
        type != "su")  // some converters write none
      unsupported(gguf.file.name, type_key,
                  "\"" + type + "\" together with rope_factors_long.weight", "\"longrope\"");
    s.type = RopeScaling::LONGROPE;
    s.factors = rope_factors(gguf, "rope_factors_short.weight", frequencies);
    s.long_factors = rope_factors(gguf, "rope_factors_long.weight", frequencies);
    s.original_ctx = dimension(fields, p + "original_context_length", 1 << 28, c->n_ctx);
    s.factor = static_cast<float>(c->n_ctx) / static_cast<float>(s.original_ctx);
    s.attention_factor = positive(fields, p + "attn_factor", 1e6, 1);
    return;
  }
  if (gguf.tensors.count("rope_freqs.weight") > 0) {
    if (type != "none")
      unsupported(gguf.file.name, type_key, "\"" + type + "\" together with rope_freqs.weight",
                  "one of them");
    s.type = RopeScaling::FACTORS;
    s.factors = rope_factors(gguf, "rope_freqs.weight", frequencies);
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
  if (!(rope.theta > 1))
    bad_model(gguf.file.name, fields.name_of(field::kRopeBase), format("%g", rope.theta),
              "above 1 with yarn");
  s.original_ctx = dimension(fields, p + "original_context_length", 1 << 28, c->n_ctx);
  s.beta_fast = positive(fields, p + "yarn_beta_fast", 1e6, 32);
  s.beta_slow = positive(fields, p + "yarn_beta_slow", 1e6, 1);
  const double ext = gguf.number(p + "yarn_ext_factor").value_or(1),
               log = gguf.number(p + "yarn_log_multiplier").value_or(0);
  if (!(log >= 0) || !(log <= 10))
    bad_model(gguf.file.name, p + "yarn_log_multiplier", format("%g", log), "0 to 10");
  if (ext != 1 && ext != -1)
    unsupported(gguf.file.name, p + "yarn_ext_factor", format("%g", ext), "1");
  // Converters write attention_factor as yarn_attn_factor, and mscale_all_dim (if mscale is 1) as
  // the multiplier.
  double whole =
      gguf.has(p + "yarn_attn_factor") ? positive(fields, p + "yarn_attn_factor", 1e6, 0) : 0;
  float times = positive(fields, p + "attn_factor", 1e6, 1);
  // In llama.cpp attn_factor multiplies YaRN's own factor. But its converter for OLMo 3 wrote
  // attention_factor there until yarn_attn_factor came, and so do other converters. That value is
  // nearly always YaRN's own factor, which no model has twice.
  if (whole == 0 && (family.whole_attn_factor || is_yarn_factor(s, times)) &&
      gguf.has(p + "attn_factor")) {
    whole = times;
    times = 1;
  }
  s.mscale_all_dim = static_cast<float>(log);
  finish_yarn(&s, whole, log > 0 ? 1 : 0, log);
  s.attention_factor *= times;
}

// Returns the layers that have a window, or keep a state: given as a period, or as one boolean a
// layer. Empty: the family decides.
std::vector<bool> windowed_layers(const GgufFile& gguf, const std::string& key,
                                  const Family& family, int n_layers) {
  const auto it = gguf.metadata.find(key);
  std::vector<bool> windowed;
  if (it == gguf.metadata.end()) return windowed;
  const GgufValue& value = it->second;
  const auto layers = static_cast<uint64_t>(n_layers);
  if (value.type == GgufType::ARRAY) {
    // Some converters leave out the MTP layers, which are the last ones.
    const uint64_t drafts =
        gguf.integer(std::string(family.name) + ".nextn_predict_layers").value_or(0);
    const bool without_drafts = drafts > 0 && drafts < layers && value.count == layers - drafts;
    if (value.element != GgufType::BOOL || (value.count != layers && !without_drafts))
      bad_model(gguf.file.name, key,
                "an array of " + std::to_string(value.count) + " " + name_of(value.element),
                std::to_string(n_layers) + " BOOL, one per layer");
    for (uint64_t l = 0; l < value.count; ++l) windowed.push_back(value.data[l] != 0);
    windowed.resize(layers);
    return windowed;
  }
  const auto period = gguf.integer(key);
  if (!period || *period == 0)
    bad_model(gguf.file.name, key, period ? "0" : "no number",
              "a number above 0, or an array of booleans");
  for (uint64_t l = 0; l < layers; ++l)
    windowed.push_back(family.in_period(static_cast<int>(l), *period));
  return windowed;
}

}  // namespace

Config config_from_gguf(const GgufFile& gguf, GgufVocab* vocab) {
  const std::string& file = gguf.file.name;
  const auto architecture = gguf.string("general.architecture");
  if (!architecture) bad_model(file, "general.architecture", "none", known_architectures());
  const std::string a(*architecture);
  const Family* found = family_of_architecture(a);
  if (!found) unsupported(file, "general.architecture", lacking_family(a), known_architectures());
  const Family& family = *found;
  const GgufFields fields(gguf, a, family);
  refuse_unknown_options(gguf, family);
  *vocab = gguf_vocab(gguf);
  const size_t n_pieces = vocab->pieces.size();

  Config c;
  c.architecture = a;
  c.name = gguf.string("general.name").value_or("");
  // llama.cpp's converter omits the width of dense FFNs if config.json has null for it. A Cohere
  // mixture without dense layers may have null.
  constexpr Field kExpertWidth = {"expert_feed_forward_length", nullptr};
  const bool no_width = !fields.has(family.hidden_dim) && fields.has(kExpertWidth);
  read_dimensions(fields, no_width ? kExpertWidth : family.hidden_dim,
                  {0, static_cast<int>(n_pieces), 0, 10000}, &c);
  if (static_cast<size_t>(c.vocab_size) < n_pieces) {
    bad_model(file, fields.name_of(field::kVocab), std::to_string(c.vocab_size),
              "at least " + std::to_string(n_pieces) + ", the number of tokenizer.ggml.tokens");
  }
  for (const char* name :
       {".attention.value_length", ".attention.head_dim"}) {  // the latter: Ollama's converter
    const int length = dimension(fields, a + name, kMaxHeadDim, c.head_dim);
    if (length != c.head_dim && !family.latent)
      unsupported(file, a + name, std::to_string(length),
                  std::to_string(c.head_dim) + ", as the keys have");
  }
  const std::string dims = a + ".rope.dimension_count";
  const int rope_dims = dimension(fields, dims, kMaxHeadDim, c.head_dim);
  if (rope_dims != c.head_dim) {
    if (!family.partial_rope)
      unsupported(file, dims, std::to_string(rope_dims),
                  std::to_string(c.head_dim) + " (RoPE on the whole head)");
    if (rope_dims > c.head_dim || rope_dims % 2 != 0)
      bad_model(file, dims, std::to_string(rope_dims),
                "an even number up to " + std::to_string(c.head_dim));
    c.ropes[0].rotated = rope_dims;
  }
  c.tied_output = gguf.tensors.find(kGgufNames.output) == gguf.tensors.end();
  c.bos_id = vocab->options.bos_id;
  c.eos_id = vocab->options.eos_id;
  c.eos_ids = vocab->options.eos_ids;
  c.rope_interleaved = family.rope_interleaved;
  read_rope_scaling(gguf, fields, family, &c);
  c.ropes[0].scaling.truncated = family.yarn_truncated;
  const auto window =
      static_cast<int>(std::min<uint64_t>(fields.integer(field::kWindow).value_or(0), 1 << 28));
  const bool windowless = family.window == Family::NEVER || family.window == Family::UNUSED;
  if (window > 0 && windowless && !family.any_window_in_gguf)
    unsupported(gguf.file.name, fields.name_of(field::kWindow), std::to_string(window), "none");
  set_layers(family, window,
             windowed_layers(gguf, fields.name_of(field::kWindowed), family, c.n_layers), &c);
  if (family.full_head_dim) {
    const int windowed = head_dimension(fields, a + ".attention.key_length_swa", 0, c);
    for (LayerConfig& layer : c.layers)
      if (layer.window > 0) layer.head_dim = windowed;
  }
  if (family.uneven_heads)
    set_heads(fields, field::kHeads, listed(gguf, fields, field::kHeads), &c);
  if (family.uneven_layers) {
    read_kv_heads(listed(gguf, fields, field::kKvHeads), fields, &c);
    read_widths(listed(gguf, fields, field::kHiddenDim), fields, &c);
  }
  const auto has = [&](const char* name) {
    return gguf.tensors.count(std::string("blk.0.") + name) > 0;
  };
  c.activation = family.activation;
  c.pre_norm = family.pre_norm;
  c.layer_norm = family.layer_norm;
  c.post_norm = family.post_norm;
  c.qk_norm = family.qk_norm;
  c.qkv_bias = family.qkv_bias || has(kGgufNames.bq) || has(kGgufNames.bk) || has(kGgufNames.bv);
  c.o_bias = has(kGgufNames.bo);
  c.mlp_bias = has(kGgufNames.b1) || has(kGgufNames.b3) || has(kGgufNames.b2);
  c.recurrence.kind = family.recurrence;
  if (family.recurrent_period > 0) {
    const std::string named = a + ".attention.recurrent_layers",
                      period = a + ".full_attention_interval";
    const std::vector<bool> given =
        windowed_layers(gguf, gguf.has(named) ? named : period, family, c.n_layers);
    for (int l = 0; l < c.n_layers; ++l)
      if (given.empty() ? (l + 1) % family.recurrent_period != 0 : given[l])
        c.layers[l].mixer = Mixer::RECURRENT;
  } else if (family.recurrence != Recurrence::NONE) {
    read_recurrent_layers(listed(gguf, fields, field::kKvHeads), &c);
  }
  for (int l = 0; family.value_may_be_key && l < c.n_layers; ++l) {
    const std::string prefix = format(kGgufNames.layer, l);
    c.layers[l].value_is_key = !gguf.tensors.contains(prefix + kGgufNames.wv) &&
                               !gguf.tensors.contains(prefix + kGgufNames.wqkv);
  }
  c.experts.routing.choice_bias = std::ranges::any_of(
      gguf.tensors, [](const auto& t) { return t.first.ends_with(".exp_probs_b.bias"); });
  if (family.describe) family.describe(fields, window, &c);
  const auto gate = gguf.tensors.find(std::string("blk.0.") + kGgufNames.wgate);
  c.head_gate = c.softplus_gate && gate != gguf.tensors.end() && !gate->second.shape.empty() &&
                gate->second.shape.front() == static_cast<uint64_t>(c.heads(0));
  if (family.recurrent_period > 0)
    require_kv_heads(listed(gguf, fields, field::kKvHeads), fields, c);
  // Older converters keep q, k, v and z in one matrix, as folders do.
  if (c.recurrence.ba_by_key)
    c.recurrence.qkvz_by_key = std::ranges::any_of(
        gguf.tensors, [](const auto& t) { return t.first.ends_with(".ssm_in.weight"); });
  return c;
}

}  // namespace riffle
