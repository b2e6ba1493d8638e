// Families of models. A family describes how its models differ from a Llama, and which fields of
// their files (GGUF and Hugging Face) show it. Only code that reads and writes files knows
// families. All other code has Config for the model's parts, and TensorNames for the names of its
// tensors.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "model/families/fields.h"
#include "model/weights.h"
#include "util/checked.h"
#include "util/error.h"

namespace riffle {

// Fills in c->experts. defaults: transformers' values for absent fields; in GGUF none may be
// absent, except as `divided` allows.
struct ExpertFields {
  Field n, n_used, hidden_dim;
  // In GGUF files without hidden_dim it is the width of a dense FFN, divided by n_used.
  bool divided = false;
};
void read_experts(const Fields& fields, const ExpertFields& names, ExpertsConfig defaults,
                  Config* c);

// Family::values of Qwen's mixtures: refuses those that GGUF has no key for.
std::vector<std::pair<Field, float>> values_of_mixture(const Config& c, const std::string& where);

// Sets has_experts of every layer from decoder_sparse_step and mlp_only_layers, as config.json of
// Qwen's mixtures has them.
void read_dense_layers(const Fields& fields, Config* c);

// Returns the field with the number of experts: num_experts, or num_local_experts, as transformers
// 5 writes it. Refuses a file with both if they differ.
Field experts_field(const Fields& fields);

// Sets has_experts of every layer: from mlp_layer_types, if config.json has it, else of all but the
// first n_dense layers.
void read_ffn_types(const Fields& fields, uint64_t n_dense, Config* c);

// Family::values: refuses layers without experts after one with them, since GGUF has only the
// number of leading ones. json: the field that says which layers have experts.
void require_leading_dense(const Config& c, const std::string& where, const char* json);

// Fills in c->recurrence for Mamba-2. defaults: transformers' values for absent fields (v_dim 0:
// required); in GGUF none may be absent.
struct Mamba2Fields {
  Field taps, groups, heads, state_dim;
  Field head_dim;  // config.json
  Field inner;     // GGUF: the width of all heads together
};
void read_mamba2(const Fields& fields, const Mamba2Fields& names, RecurrenceConfig defaults,
                 Config* c);

// TensorNames::mix of a Mamba-2 in GGUF.
std::vector<const char*> mamba2_gguf_mix(const RecurrenceConfig& r);

// Refuses a config.json with parameters of RoPE that has none for the layers with a window.
void require_local_rope(const Fields& fields, const Config& c);

// Reads the number of MTP layers. GGUF counts them among the layers.
void read_draft_layers(const Fields& fields, const Field& field, Config* c);

// Refuses a model without a layer that attends. json: the field of config.json that says which do.
void require_attention(const Fields& fields, const Config& c,
                       const char* json = field::kWindowed.json);

struct Family {
  const char* name;  // general.architecture
  // Values in config.json. class_name null: no class names only the text part; a folder always
  // holds the whole model of multimodal_type.
  const char *model_type, *class_name = nullptr;
  // model_type and class of models that also take images, if their text_config is of this family;
  // null: there are none.
  const char *multimodal_type = nullptr, *multimodal_class = nullptr;
  // Value of tie_word_embeddings for such a model if its config.json has none.
  bool multimodal_tied = true;
  Defaults defaults;  // transformers'
  // A field of config.json that, where it is present, is used instead of tie_word_embeddings.
  const char* tied_field = nullptr;
  Field hidden_dim = field::kHiddenDim;  // the width of the FFN
  // The field of config.json with the head size of layers without a window, and its default;
  // `head_dim` then is the size in layers with a window. In GGUF kHeadDim is the size without a
  // window. Null: all layers have one size.
  const char* full_head_dim = nullptr;
  int full_head_dim_default = 0;
  // GGUF may give each layer a different number of KV heads, and width of its FFN.
  bool uneven_layers = false;
  bool uneven_heads = false;  // GGUF may give each layer a different number of query heads
  // Layers may make values with the matrix of the keys: in GGUF, those that lack wv.
  bool value_may_be_key = false;
  bool latent = false;  // the model has LatentConfig; its GGUF sizes of values differ from head_dim
  // The base of RoPE of type "dynamic" may be multiplied by alpha^(d / (d - 2)), d dimensions of a
  // head, in place of a scaling by the length.
  bool rope_alpha = false;
  // RoPE may be "proportional": dimension j pairs with j + head_dim / 2, and only the first share
  // of the pairs is rotated.
  bool proportional_rope = false;
  const char* old_hidden_dim = nullptr;  // its field in config.json files that lack hidden_dim
  // GGUF files keep the rows of wq and wk in the order that pairs (2i, 2i+1) for RoPE.
  bool rope_interleaved = false;
  bool interleaved_in_folders = false;  // folders keep them in that order too
  bool pre_norm = true, post_norm = false;
  bool layer_norm = false;  // Config::layer_norm; GGUF has another key for the epsilon
  QkNorm qk_norm = QkNorm::NONE;
  bool qkv_bias = false;       // q, k and v always have biases
  bool bias_fields = false;    // config.json's attention_bias and mlp_bias tell which there are
  bool partial_rope = false;   // a part of each head may be rotated
  double partial_default = 1;  // config.json's partial_rotary_factor, if it is absent
  // Positions may have several parts, which are the same for text: rope.dimension_sections, and
  // mrope_section and mrope_interleaved of the RoPE parameters.
  bool position_parts = false;
  // Default of an original_max_position_embeddings outside the RoPE parameters, which overrides
  // theirs; 0: it may be in either place, and its default is n_ctx.
  int original_ctx_default = 0;
  bool yarn_truncated = true;  // RopeScaling::truncated in GGUF, which has no field for it
  // GGUF: with YaRN, rope.scaling.attn_factor is the whole attention factor, not a factor on the
  // usual one.
  bool whole_attn_factor = false;
  // Layers that have the window of the file's `sliding_window`. NEVER: none, and a window is
  // refused. UNUSED: none, and a window is refused only if config.json says that it is used
  // (`use_sliding_window`, by default false). ALWAYS: all. IF_USED: those that config.json names,
  // if that field is true. PERIOD: all except layers window_period, 2 * window_period, ..., counted
  // from 1.
  enum Window : uint8_t { NEVER, UNUSED, ALWAYS, IF_USED, PERIOD } window = NEVER;
  int window_period = 0, window_default = 0;  // the latter: transformers'
  bool full_first = false;  // PERIOD: the period begins with its layer without a window
  // Tells whether a layer has the window of PERIOD, with this period.
  bool in_period(int layer, uint64_t period) const {
    return (static_cast<uint64_t>(layer) + !full_first) % period != 0;
  }
  // A GGUF file may give all layers a window, whatever `window` says.
  bool any_window_in_gguf = false;
  // Layers no_rope_period, 2 * no_rope_period, ..., counted from 1, have no RoPE; 0: all have it.
  // config.json may give another period (no_rope_layer_interval) or the layers (no_rope_layers).
  int no_rope_period = 0;
  Activation activation = Activation::SILU;
  // Kind of the recurrent layers; NONE: there are none. config.json names them in layer_types with
  // one of the words below. GGUF gives them 0 KV heads or, with recurrent_period, lists them or
  // gives a period. `describe` may read other fields.
  Recurrence recurrence = Recurrence::NONE;
  bool one_part = false;  // a layer is attention, recurrent or an FFN, and only one of them
  const char *recurrent_word = nullptr, *recurrent_word_too = nullptr;
  bool calls_recurrent(std::string_view word) const {
    return (recurrent_word && word == recurrent_word) ||
           (recurrent_word_too && word == recurrent_word_too);
  }
  // The other layers attend: layers recurrent_period, 2 * recurrent_period, ..., counted from 1, if
  // the file does not name them; 0: it must. The file may have another period.
  int recurrent_period = 0;
  const TensorNames *hf_names = &kHuggingFaceNames, *gguf_names = &kGgufNames;
  const TensorNames* hf_names_too = nullptr;  // if a folder lacks the embedding of hf_names
  bool mxfp4 = false;                         // config.json may say that the experts are MXFP4
  std::span<const Field> fields = {};         // fields that `describe` reads
  // Fills in the fields that only this family has, after all others were read. window: the model's,
  // even if no layer has it; 0: none.
  void (*describe)(const Fields& fields, int window, Config* config) = nullptr;
  // Returns the values of `fields` in a GGUF file of this model. Throws RIFFLE_UNSUPPORTED, naming
  // `where`, if GGUF has no field for something.
  std::vector<std::pair<Field, float>> (*values)(const Config& config,
                                                 const std::string& where) = nullptr;
};

// Fills in c->layers: window and RoPE of each. windowed: [n_layers], or empty if the file does not
// say; window: tokens, 0: none.
void set_layers(const Family& family, int window, const std::vector<bool>& windowed, Config* c);

// Returns all families. Each file of this folder has one, or several that share their fields.
std::span<const Family* const> families();
// Find a family by general.architecture, or by model_type of config.json. Null: there is none.
const Family* family_of_architecture(std::string_view name);
const Family* family_of_model_type(std::string_view type);
// Finds a family by model_type of a config.json and of its text_config. If text_type is empty,
// transformers' default is taken.
const Family* family_of_multimodal_type(std::string_view type, std::string_view text_type);
// Returns what a family has that riffle lacks, for error texts: "llama4" (attention within chunks,
// which riffle lacks). Other names come back in quotation marks alone. name: a value of
// general.architecture or model_type.
std::string lacking_family(std::string_view name);
// Return the values that riffle knows, for error texts: "llama", "qwen2" or "qwen3".
std::string known_architectures();
std::string known_model_types();
std::string known_text_types(std::string_view multimodal_type);

}  // namespace riffle
