#include "model/operations.h"

#include <algorithm>

namespace riffle {
namespace {

double values(const Tensor& t) { return static_cast<double>(t.rows) * static_cast<double>(t.cols); }
double values(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += values(t);
  return sum;
}
double values(const ExpertWeights& w) { return values(w.w1) + values(w.w3) + values(w.w2); }

// The numbers of weights that a layer multiplies a token by: to make keys and values or a recurrent
// state, and for all else.
struct LayerProducts {
  double kept, others;
};
LayerProducts products_of(const Config& c, const LayerWeights& l, bool value_is_key) {
  LayerProducts w{values(l.wk) + (value_is_key ? 0 : values(l.wv)) + values(l.mix),
                  values(l.wq) + values(l.wq_a) + values(l.k_b) + values(l.v_b) + values(l.wo) +
                      values(l.wgate) + values(l.w1) + values(l.w3) + values(l.w2) +
                      values(l.router) + values(l.shared) + values(l.shared_gate) +
                      values(l.embedding_gate) + values(l.embedding_out) +
                      values(l.layer_projection)};
  if (!l.experts.empty()) w.others += c.experts.n_used * values(l.experts[0]);
  return w;
}

// Returns the pairs of a query and a key that it sees, for the last `rows` of n tokens.
double pairs(int64_t n, int64_t rows, int window) {
  const auto sees = static_cast<double>(window > 0 ? std::min<int64_t>(window, n) : n);
  const auto tokens = static_cast<double>(n);
  if (rows < n)
    return static_cast<double>(rows) * sees;  // rows is 1: all keys that the last token sees
  return tokens * sees - sees * (sees - 1) / 2;
}

}  // namespace

PromptOperations prompt_operations(const Model& model, int64_t n) {
  const Config& c = model.config;
  PromptOperations out;
  if (n < 1) return out;
  const int last = c.last_keeper();
  for (int i = 0; i < c.n_layers; ++i) {
    const LayerWeights& l = model.weights.layers[i];
    const LayerProducts w = products_of(c, l, c.layers[i].value_is_key);
    // From Config::last_keeper on, only the last token's output is needed.
    const int64_t rows = i < last ? n : 1;
    out.products += 2 * (w.kept * static_cast<double>(i <= last ? n : 1) +
                         w.others * static_cast<double>(rows));
    if (!c.attends(i)) continue;
    const int dims = c.latent ? c.latent.query_dim() + c.latent.value_dim : 2 * c.head_size(i);
    const int window = c.layers[i].window;
    (window > 0 ? out.window_attention : out.attention) +=
        2.0 * c.heads(i) * dims * pairs(n, rows, window);
  }
  out.products += 2 * values(model.weights.output);
  return out;
}

}  // namespace riffle
