#include "model/fingerprint.h"

#include <algorithm>

#include "model/named_tensors.h"
#include "text/tokenizer.h"
#include "util/checksum.h"

namespace riffle {

static void add_text(Checksum& sum, const std::string& text) {
  sum.add_value(text.size());
  sum.add(text.data(), text.size());
}

uint64_t weights_fingerprint(const Model& model) {
  constexpr int64_t kSample = 512, kSamples = 4;
  const Config& c = model.config;
  Checksum sum;
  add_text(sum, c.architecture);
  for (const int value : {c.dim, c.hidden_dim, c.head_dim, c.n_layers, c.n_heads, c.n_kv_heads,
                          c.vocab_size, c.experts.n, c.experts.n_used, c.experts.hidden_dim})
    sum.add_value(value);
  sum.add_value(c.norm_eps);
  if (c.experts.shared_scale != 1) sum.add_value(c.experts.shared_scale);
  if (const LatentConfig& l = c.latent) {
    for (const int value : {l.kv_rank, l.q_rank, l.nope_dim, l.rope_dim, l.value_dim})
      sum.add_value(value);
    for (const float value : {l.query_scale, c.layer_norm_eps}) sum.add_value(value);
  }
  for (const LayerConfig& layer : c.layers) {
    sum.add_value(layer.window);
    sum.add_value(layer.rope);
    if (layer.n_kv_heads > 0) sum.add_value(layer.n_kv_heads);
    if (layer.head_dim > 0) sum.add_value(layer.head_dim);
  }
  // Nothing changes the tensors through these names.
  for (const NamedTensor& t : named_tensors(const_cast<Model&>(model))) {
    add_text(sum, t.name);
    sum.add_value(t.tensor->type);
    sum.add_value(t.tensor->rows);
    sum.add_value(t.tensor->cols);
    sum.add_value(t.tensor->seed);
    sum.add_value(t.tensor->scale);
    if (t.tensor->seed != 0 || !t.tensor->data) continue;  // a synthetic one, with or without bytes
    const int64_t bytes = t.tensor->bytes(), sample = std::min(bytes, kSample);
    for (int64_t i = 0; i < kSamples; ++i)
      sum.add(static_cast<const char*>(t.tensor->data) + (bytes - sample) * i / (kSamples - 1),
              sample);
  }
  return sum.value();
}

uint64_t tokenizer_fingerprint(const Model& model) {
  if (!model.tokenizer) return 0;
  Checksum sum;
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    const char* piece = model.tokenizer->piece(id);
    add_text(sum, piece ? piece : "");
  }
  sum.add_value(model.tokenizer->rules_hash());
  sum.add_value(model.tokenizer->bos_id());
  sum.add_value(model.tokenizer->eos_id());
  return sum.value();
}

}  // namespace riffle
