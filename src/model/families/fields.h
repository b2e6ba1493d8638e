// Fields of a model's configuration, under one name for both formats: GGUF metadata and
// config.json.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace riffle {

// The name of a field in both formats: GGUF's key without "ARCHITECTURE.", and config.json's. A key
// that GGUF has without an architecture begins with a dot here. Null: the format has no such field,
// or another field gives it.
struct Field {
  const char *gguf, *json;
};

// Fields that every family has; kAll lists them.
namespace field {
inline constexpr Field kDim = {"embedding_length", "hidden_size"},
                       kHiddenDim = {"feed_forward_length", "intermediate_size"},
                       kLayers = {"block_count", "num_hidden_layers"},
                       kHeads = {"attention.head_count", "num_attention_heads"},
                       kKvHeads = {"attention.head_count_kv", "num_key_value_heads"},
                       kHeadDim = {"attention.key_length", "head_dim"},
                       kVocab = {"vocab_size", "vocab_size"},
                       kContext = {"context_length", "max_position_embeddings"},
                       kNormEps = {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
                       kRopeBase = {"rope.freq_base", "rope_theta"},
                       kWindow = {"attention.sliding_window", "sliding_window"},
                       kWindowed = {"attention.sliding_window_pattern", "layer_types"},
                       // Layers without experts in Qwen's mixtures.
    kExpertStep = {nullptr, "decoder_sparse_step"}, kDenseLayers = {nullptr, "mlp_only_layers"},
                       // Layers with and without experts in newer mixtures.
    kFfnTypes = {nullptr, "mlp_layer_types"},
                       kLeadingDense = {"leading_dense_block_count", "first_k_dense_replace"},
                       // The number of experts, and its name in transformers 5.
    kExperts = {"expert_count", "num_experts"}, kExpertsNow = {nullptr, "num_local_experts"},
                       // False: no RoPE. Only some families have it.
    kRotated = {"rope.scaling.finetuned", nullptr};
inline constexpr Field kAll[] = {kDim,   kHiddenDim, kLayers,  kHeads,    kKvHeads, kHeadDim,
                                 kVocab, kContext,   kNormEps, kRopeBase, kWindow,  kWindowed};
}  // namespace field

// Reads fields of a file. A function returns nothing if the field is absent, and throws
// RIFFLE_BAD_MODEL if the field has another type. A reader is given names as the file spells them;
// a Field has the name for each reader's format.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual const std::string& file() const = 0;
  virtual bool is_json() const = 0;
  // Returns the file's name of the field. Empty: the format has no such field.
  virtual std::string name_of(const Field& field) const = 0;

  virtual std::optional<uint64_t> integer(const std::string& name) const = 0;
  virtual std::optional<double> number(const std::string& name) const = 0;
  virtual std::optional<bool> boolean(const std::string& name) const = 0;
  virtual std::optional<std::string> string(const std::string& name) const = 0;
  virtual std::vector<int64_t> integers(const std::string& name) const = 0;  // absent: empty
  virtual std::vector<double> numbers(const std::string& name) const = 0;    // likewise
  virtual std::vector<bool> booleans(const std::string& name) const = 0;
  virtual std::vector<std::string> strings(const std::string& name) const = 0;
  virtual bool has(const std::string& name) const = 0;  // a field of any type
  virtual bool is_boolean(const std::string& name) const = 0;

  std::optional<uint64_t> integer(const Field& field) const {
    return known(field) ? integer(name_of(field)) : std::nullopt;
  }
  std::optional<double> number(const Field& field) const {
    return known(field) ? number(name_of(field)) : std::nullopt;
  }
  std::optional<bool> boolean(const Field& field) const {
    return known(field) ? boolean(name_of(field)) : std::nullopt;
  }
  std::optional<std::string> string(const Field& field) const {
    return known(field) ? string(name_of(field)) : std::nullopt;
  }
  std::vector<int64_t> integers(const Field& field) const {
    return known(field) ? integers(name_of(field)) : std::vector<int64_t>();
  }
  std::vector<double> numbers(const Field& field) const {
    return known(field) ? numbers(name_of(field)) : std::vector<double>();
  }
  std::vector<bool> booleans(const Field& field) const {
    return known(field) ? booleans(name_of(field)) : std::vector<bool>();
  }
  std::vector<std::string> strings(const Field& field) const {
    return known(field) ? strings(name_of(field)) : std::vector<std::string>();
  }
  bool has(const Field& field) const { return known(field) && has(name_of(field)); }

 private:
  bool known(const Field& field) const { return is_json() ? field.json : field.gguf; }
};

struct Defaults {
  int n_ctx;  // 0: required
  int vocab_size;
  double norm_eps, rope_theta;
  int n_kv_heads = 0;  // 0: as many as heads
  int head_dim = 0;    // 0: dim / n_heads
  bool tied = false;   // config.json: the output is the embedding
  int n_heads = 0;     // 0: required
};

// Reads an integer from 1 to max. fallback 0: the field is required.
int dimension(const Fields& fields, const std::string& name, int max, int fallback = 0);
// Read a number above 0 and at most max. fallback 0: the field is required.
float positive(const Fields& fields, const std::string& name, double max, double fallback);
float positive(const Fields& fields, const Field& field, double max, double fallback);
// Reads a size of heads: even, and not too large together with c.n_heads. fallback 0: the field is
// required.
int head_dimension(const Fields& fields, const std::string& name, int fallback, const Config& c);
// Reads the numbers that every family has. hidden_dim: the width of the FFN.
void read_dimensions(const Fields& fields, const Field& hidden_dim, const Defaults& defaults,
                     Config* c);

// Refuses a number of KV heads that does not divide c.n_heads. found: the number, for error texts.
void check_kv_heads(const Fields& fields, const Field& field, int64_t n, const std::string& found,
                    const Config& c);

// Returns "1 entry" or "3 entries".
std::string entries_text(size_t n);
// Refuses a list of n entries that is not one per layer.
void require_one_per_layer(const Fields& fields, const Field& field, size_t n, const Config& c);

// Sets the number of query heads of each layer; empty: the file has one for all. Each must be a
// multiple of the layer's KV heads.
void set_heads(const Fields& fields, const Field& field, const std::vector<int64_t>& heads,
               Config* c);

// Gives layers with a window ropes[1], and the others ropes[0]. The base of ropes[1] is that of
// rope_parameters, else that of the field, else the fallback. Refuses a GGUF file that has the
// field and no window.
void set_local_rope(const Fields& fields, const Field& base, double fallback, Config* c);

// Refuses a GGUF file without the field, for fields whose usual default is not the family's.
// expected: a description of the field.
void require_in_gguf(const Fields& fields, const Field& field, const char* expected);
// Refuses a GGUF file without a window above 0.
void require_window_in_gguf(const Fields& fields, int window, const char* expected);

// The divisor that GGUF files give to the frequencies of pairs that are not rotated.
inline constexpr float kNoTurn = 1e30f;
// Returns the factors of a head's pairs, of which the first `share` is rotated.
std::vector<float> proportional_factors(int head_dim, double share);
// Checks that factors are above 0 and at most kNoTurn. field: for error texts.
void check_factors(const std::vector<float>& factors, const std::string& file,
                   const std::string& field);

// Sets attention_factor from factor, or to the file's value (0: it has none).
void finish_yarn(RopeScaling* scaling, double attention_factor, double mscale,
                 double mscale_all_dim);

}  // namespace riffle
