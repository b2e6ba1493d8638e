// What both formats share in reading a configuration.
#include "model/families/fields.h"

#include <algorithm>
#include <cmath>

#include "util/checked.h"
#include "util/error.h"

namespace riffle {

namespace {

constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 4096;
constexpr int kMaxDim = 1 << 20;
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxContext = 1 << 28;

}  // namespace

int dimension(const Fields& fields, const std::string& key, int max, int fallback) {
  const auto n = fields.integer(key);
  if (!n && fallback > 0) return fallback;
  if (!n || *n < 1 || *n > static_cast<uint64_t>(max)) {
    bad_model(fields.file(), key, n ? std::to_string(*n) : "none", "1 to " + std::to_string(max));
  }
  return static_cast<int>(*n);
}

float positive(const Fields& fields, const std::string& key, double max, double fallback) {
  const auto x = fields.number(key);
  if (!x && fallback > 0) return static_cast<float>(fallback);
  if (!x || !(*x > 0) || !(*x <= max) || !(static_cast<float>(*x) > 0)) {
    bad_model(fields.file(), key, x ? format("%g", *x) : "none",
              format("above 0 and at most %g", max));
  }
  return static_cast<float>(*x);
}

void read_dimensions(const Fields& fields, const Keys& keys, const Defaults& defaults, Config* c) {
  const std::string& file = fields.file();
  c->dim = dimension(fields, keys.dim, kMaxDim);
  c->hidden_dim = dimension(fields, keys.hidden_dim, kMaxDim);
  c->n_layers = dimension(fields, keys.n_layers, kMaxLayers);
  c->n_heads = dimension(fields, keys.n_heads, kMaxHeads, defaults.n_heads);
  c->n_kv_heads = dimension(fields, keys.n_kv_heads, kMaxHeads,
                            defaults.n_kv_heads > 0 ? defaults.n_kv_heads : c->n_heads);
  if (c->n_heads % c->n_kv_heads != 0) {
    bad_model(file, keys.n_kv_heads, std::to_string(c->n_kv_heads),
              "a divisor of " + keys.n_heads + " = " + std::to_string(c->n_heads));
  }
  const bool divided = !fields.integer(keys.head_dim) && defaults.head_dim == 0;
  if (divided && c->dim % c->n_heads != 0) {
    bad_model(file, keys.n_heads, std::to_string(c->n_heads),
              "a divisor of " + keys.dim + " = " + std::to_string(c->dim));
  }
  c->head_dim = dimension(fields, keys.head_dim, kMaxHeadDim,
                          defaults.head_dim > 0 ? defaults.head_dim : c->dim / c->n_heads);
  if (c->head_dim % 2 != 0)
    bad_model(file, keys.head_dim, std::to_string(c->head_dim), "an even number");
  if (static_cast<int64_t>(c->n_heads) * c->head_dim > kMaxDim) {
    bad_model(file, keys.head_dim, std::to_string(c->head_dim),
              "at most " + std::to_string(kMaxDim) + " together with " + keys.n_heads);
  }
  c->vocab_size = dimension(fields, keys.vocab_size, kMaxVocab, defaults.vocab_size);
  c->n_ctx = dimension(fields, keys.n_ctx, kMaxContext, defaults.n_ctx);
  c->norm_eps = c->post_norm_eps = positive(fields, keys.norm_eps, 1, defaults.norm_eps);
  c->ropes.resize(1);
  c->ropes[0].theta = positive(fields, keys.rope_theta, 1e15, defaults.rope_theta);
}

void check_factors(const std::vector<float>& factors, const std::string& file,
                   const std::string& field) {
  for (size_t i = 0; i < factors.size(); ++i)
    if (!(factors[i] > 0) || !(factors[i] < 1e9f)) {
      bad_model(file, field, format("%g at index %zu", factors[i], i),
                "values above 0 and below 1e9");
    }
}

void finish_yarn(RopeScaling* s, double attention_factor, double mscale, double mscale_all_dim) {
  // YaRN (arXiv 2309.00071, 3.4): attention grows a little sharper with the factor.
  const auto sharper = [&](double m) {
    return s->factor <= 1 ? 1.0 : 0.1 * m * std::log(static_cast<double>(s->factor)) + 1;
  };
  if (attention_factor > 0) s->attention_factor = static_cast<float>(attention_factor);
  else if (mscale > 0 && mscale_all_dim > 0)
    s->attention_factor = static_cast<float>(sharper(mscale) / sharper(mscale_all_dim));
  else s->attention_factor = static_cast<float>(sharper(1));
}

}  // namespace riffle
