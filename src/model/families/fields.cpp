// The part of configuration reading that both formats share.
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

[[noreturn]] void not_a_divisor(const Fields& fields, const Field& field, const std::string& found,
                                const Field& of, int value) {
  bad_model(fields.file(), fields.name_of(field), found,
            "a divisor of " + fields.name_of(of) + " = " + std::to_string(value));
}

}  // namespace

int dimension(const Fields& fields, const std::string& name, int max, int fallback) {
  const auto n = fields.integer(name);
  if (!n && fallback > 0) return fallback;
  if (!n || *n < 1 || *n > static_cast<uint64_t>(max)) {
    bad_model(fields.file(), name, n ? std::to_string(*n) : "none", "1 to " + std::to_string(max));
  }
  return static_cast<int>(*n);
}

float positive(const Fields& fields, const std::string& name, double max, double fallback) {
  const auto x = fields.number(name);
  if (!x && fallback > 0) return static_cast<float>(fallback);
  if (!x || !(*x > 0) || !(*x <= max) || !(static_cast<float>(*x) > 0)) {
    bad_model(fields.file(), name, x ? format("%g", *x) : "none",
              format("above 0 and at most %g", max));
  }
  return static_cast<float>(*x);
}

float positive(const Fields& fields, const Field& field, double max, double fallback) {
  return positive(fields, fields.name_of(field), max, fallback);
}

int head_dimension(const Fields& fields, const std::string& name, int fallback, const Config& c) {
  const int d = dimension(fields, name, kMaxHeadDim, fallback);
  if (d % 2 != 0) bad_model(fields.file(), name, std::to_string(d), "an even number");
  if (static_cast<int64_t>(c.n_heads) * d > kMaxDim)
    bad_model(
        fields.file(), name, std::to_string(d),
        "at most " + std::to_string(kMaxDim) + " together with " + fields.name_of(field::kHeads));
  return d;
}

void read_dimensions(const Fields& fields, const Field& hidden_dim, const Defaults& defaults,
                     Config* c) {
  const auto size = [&](const Field& field, int max, int fallback = 0) {
    return dimension(fields, fields.name_of(field), max, fallback);
  };
  c->dim = size(field::kDim, kMaxDim);
  c->hidden_dim = size(hidden_dim, kMaxDim);
  c->n_layers = size(field::kLayers, kMaxLayers);
  c->n_heads = size(field::kHeads, kMaxHeads, defaults.n_heads);
  c->n_kv_heads =
      size(field::kKvHeads, kMaxHeads, defaults.n_kv_heads > 0 ? defaults.n_kv_heads : c->n_heads);
  check_kv_heads(fields, field::kKvHeads, c->n_kv_heads, std::to_string(c->n_kv_heads), *c);
  const bool divided = !fields.integer(field::kHeadDim) && defaults.head_dim == 0;
  if (divided && c->dim % c->n_heads != 0)
    not_a_divisor(fields, field::kHeads, std::to_string(c->n_heads), field::kDim, c->dim);
  c->head_dim = head_dimension(fields, fields.name_of(field::kHeadDim),
                               defaults.head_dim > 0 ? defaults.head_dim : c->dim / c->n_heads, *c);
  c->vocab_size = size(field::kVocab, kMaxVocab, defaults.vocab_size);
  c->n_ctx = size(field::kContext, kMaxContext, defaults.n_ctx);
  c->norm_eps = c->post_norm_eps = positive(fields, field::kNormEps, 1, defaults.norm_eps);
  c->ropes.resize(1);
  c->ropes[0].theta = positive(fields, field::kRopeBase, 1e15, defaults.rope_theta);
}

void check_kv_heads(const Fields& fields, const Field& field, int64_t n, const std::string& found,
                    const Config& c) {
  if (n < 1 || c.n_heads % n != 0) not_a_divisor(fields, field, found, field::kHeads, c.n_heads);
}

std::string entries_text(size_t n) { return std::to_string(n) + (n == 1 ? " entry" : " entries"); }

void require_one_per_layer(const Fields& fields, const Field& field, size_t n, const Config& c) {
  if (n != static_cast<size_t>(c.n_layers))
    bad_model(fields.file(), fields.name_of(field), entries_text(n),
              std::to_string(c.n_layers) + ", one per layer");
}

void set_heads(const Fields& fields, const Field& field, const std::vector<int64_t>& heads,
               Config* c) {
  if (heads.empty()) return;
  require_one_per_layer(fields, field, heads.size(), *c);
  for (int l = 0; l < c->n_layers; ++l) {
    const int kv_heads = c->kv_heads(l);
    if (heads[l] < 1 || heads[l] > kMaxHeads || heads[l] * c->head_size(l) > kMaxDim ||
        heads[l] % kv_heads != 0)
      bad_model(fields.file(), fields.name_of(field),
                std::to_string(heads[l]) + " in layer " + std::to_string(l),
                format("a multiple of the layer's %d KV heads, at most %d", kv_heads, kMaxHeads));
    c->layers[l].n_heads = static_cast<int>(heads[l]);
  }
}

void set_local_rope(const Fields& fields, const Field& base, double fallback, Config* c) {
  const bool windows =
      std::ranges::any_of(c->layers, [](const LayerConfig& layer) { return layer.window > 0; });
  if (!fields.is_json() && !windows && fields.has(base))
    bad_model(fields.file(), fields.name_of(field::kWindow), "none or 0",
              "the window's tokens, since " + fields.name_of(base) + " is there");
  if (c->ropes.size() == 1) c->ropes.push_back({});
  if (c->ropes[1].theta == 0) c->ropes[1].theta = positive(fields, base, 1e15, fallback);
  for (LayerConfig& layer : c->layers) layer.rope = layer.window > 0 ? 1 : 0;
}

void require_in_gguf(const Fields& fields, const Field& field, const char* expected) {
  if (!fields.is_json() && !fields.has(field))
    bad_model(fields.file(), fields.name_of(field), "none", expected);
}

void require_window_in_gguf(const Fields& fields, int window, const char* expected) {
  if (!fields.is_json() && window == 0)
    bad_model(fields.file(), fields.name_of(field::kWindow), "none or 0", expected);
}

std::vector<float> proportional_factors(int head_dim, double share) {
  const int pairs = head_dim / 2;
  std::vector<float> factors(pairs, kNoTurn);
  std::fill_n(factors.begin(), static_cast<int>(share * pairs), 1.0f);
  return factors;
}

void check_factors(const std::vector<float>& factors, const std::string& file,
                   const std::string& field) {
  for (size_t i = 0; i < factors.size(); ++i)
    if (!(factors[i] > 0) || !(factors[i] <= kNoTurn)) {
      bad_model(file, field, format("%g at index %zu", factors[i], i),
                "values above 0 and at most 1e30");
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
