// Fields of a configuration, in either format.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "model/model.h"

namespace riffle {

inline constexpr int kMaxHeadDim = 4096;

// Fields of either format, by name: nothing if absent, RIFFLE_BAD_MODEL if of another type.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual const std::string& file() const = 0;
  virtual std::optional<uint64_t> integer(const std::string& key) const = 0;
  virtual std::optional<double> number(const std::string& key) const = 0;
};

struct Keys {
  std::string dim, hidden_dim, head_dim, n_layers, n_heads, n_kv_heads, vocab_size, n_ctx, norm_eps,
      rope_theta;
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

// 1 to max. fallback 0: the field is required.
int dimension(const Fields& fields, const std::string& key, int max, int fallback = 0);
// Above 0 and at most max. fallback 0: the field is required.
float positive(const Fields& fields, const std::string& key, double max, double fallback);
void read_dimensions(const Fields& fields, const Keys& keys, const Defaults& defaults, Config* c);

// Checks that factors are above 0. field: for error texts.
void check_factors(const std::vector<float>& factors, const std::string& file,
                   const std::string& field);

// Sets attention_factor by factor, or by what the file gives (0: nothing).
void finish_yarn(RopeScaling* scaling, double attention_factor, double mscale,
                 double mscale_all_dim);

}  // namespace riffle
