// Families of models. A family is a description: how its files, GGUF and Hugging Face, spell what
// makes it differ from a Llama. Each has a file here, and nothing outside asks which one a model is
// of: what it is made of says Config, and what its files call it TensorNames.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "model/config_fields.h"
#include "model/weights.h"
#include "util/error.h"

namespace riffle {

// A field as the two formats spell it: GGUF's key without "ARCHITECTURE.", and config.json's. Null:
// the format has none, or another field says it.
struct Field {
  const char *gguf, *json;
};

// What a family reads of either format. Each returns nothing if the field is absent, and throws
// RIFFLE_BAD_MODEL if it is of another type.
class FamilyFields {
 public:
  virtual ~FamilyFields() = default;
  virtual const std::string& file() const = 0;
  virtual bool is_json() const = 0;
  virtual std::string name_of(const Field& field) const = 0;  // as the file spells it
  virtual std::optional<uint64_t> integer(const Field& field) const = 0;
  virtual std::optional<double> number(const Field& field) const = 0;
  virtual std::optional<bool> boolean(const Field& field) const = 0;
  virtual std::vector<int64_t> integers(const Field& field) const = 0;  // an array; absent: empty
  virtual bool has(const Field& field) const = 0;                       // of any type
};

// Above 0 and at most max.
float positive(const FamilyFields& fields, const Field& field, double max, double fallback);

// Fills in c->experts. defaults: transformers'; GGUF has none.
struct ExpertFields {
  Field n, n_used, hidden_dim;
};
void read_experts(const FamilyFields& fields, const ExpertFields& names, ExpertsConfig defaults,
                  Config* c);

struct Family {
  const char* name;                     // general.architecture
  const char *model_type, *class_name;  // of config.json; null: GGUF only
  // Of the config.json of a model that takes images too, whose text_config may be of this family;
  // null: there is none.
  const char *multimodal_type = nullptr, *multimodal_class = nullptr;
  Defaults defaults;  // transformers'
  // GGUF files keep the rows of wq and wk in the order that pairs (2i, 2i+1) for RoPE.
  bool rope_interleaved = false;
  bool pre_norm = true, post_norm = false;
  QkNorm qk_norm = QkNorm::NONE;
  bool qkv_bias = false;       // always there
  bool bias_fields = false;    // attention_bias and mlp_bias of config.json say
  bool partial_rope = false;   // a part of each head may be rotated
  bool yarn_truncated = true;  // RopeScaling::truncated in GGUF, which has no field for it
  // Which layers have a window, if the file's `sliding_window` gives one: none (a window is
  // refused), all of them, those that config.json says (`use_sliding_window`), those that are not a
  // multiple of window_period counted from 1.
  enum Window : uint8_t { NEVER, ALWAYS, IF_USED, PERIOD } window = NEVER;
  int window_period = 0, window_default = 0;  // the latter: transformers'
  // Layers that are a multiple of it, counted from 1, have no RoPE; 0: all have it. config.json may
  // say another period (no_rope_layer_interval) or which layers have it (no_rope_layers).
  int no_rope_period = 0;
  Activation activation = Activation::SILU;
  const TensorNames *hf_names = &kHuggingFaceNames, *gguf_names = &kGgufNames;
  bool mxfp4 = false;                  // config.json may say that the experts are MXFP4
  std::span<const Field> fields = {};  // what `describe` reads
  // Fills in what is the family's own, when all else was read.
  void (*describe)(const FamilyFields& fields, Config* config) = nullptr;
  // What GGUF's fields of `fields` say of this model. Throws RIFFLE_UNSUPPORTED, naming `where`,
  // for what GGUF has no field for.
  std::vector<std::pair<Field, float>> (*values)(const Config& config,
                                                 const std::string& where) = nullptr;
};

// Fills in c->layers: window and RoPE of each. windowed: [n_layers], or empty if the file does not
// say; window: tokens, 0: none.
void set_layers(const Family& family, int window, const std::vector<bool>& windowed, Config* c);

// All families, one to a file of this folder.
std::span<const Family* const> families();
// By general.architecture; by model_type of config.json. Null: none.
const Family* family_of_architecture(std::string_view name);
const Family* family_of_model_type(std::string_view type);
// By model_type of a config.json and of its text_config. text_type empty: transformers' default.
const Family* family_of_multimodal_type(std::string_view type, std::string_view text_type);
// "llama", "qwen2" or "qwen3": what the fields may say, for error texts.
std::string known_architectures();
std::string known_model_types();
std::string known_text_types(std::string_view multimodal_type);

}  // namespace riffle
