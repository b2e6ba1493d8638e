#include "engine/layer_ops.h"

namespace riffle {

void LayerOps::output(const float* x, int64_t n, Phase phase, float* logits) {
  const int64_t vocab_size = model_.config.vocab_size;
  Linear out;
  out.x = x;
  out.n = n;
  out.norm = &model_.weights.final_norm;
  out.outs[0] = {&model_.weights.output, logits, vocab_size};
  out.phase = phase;
  device_.linear(out);
  if (const float cap = model_.config.logit_softcap; cap > 0)
    device_.softcap(logits, n * vocab_size, cap);
}

void LayerOps::norm_embeddings(float* x, int64_t n) {
  if (const Tensor& weight = model_.weights.embedding_norm; weight.data)
    device_.norm_heads(x, n, 1, weight);
}

void LayerOps::norm_qk(float* x, int64_t n, int64_t width, const Tensor& weight) {
  if (!weight.data) return;
  device_.norm_heads(x, n, static_cast<int>(width / weight.cols), weight);
}

void LayerOps::mix_in(const LayerWeights& w, const float* x, int64_t n, Phase phase, float* out) {
  Linear in;
  in.x = x;
  in.n = n;
  in.norm = &w.attn_norm;
  in.n_outs = 0;
  in.phase = phase;
  const int64_t width = recurrent_in(model_.config);
  for (size_t i = 0; i < w.mix.size(); ++i) {
    if (mix_[i].role != MixTensor::PRODUCT) continue;
    in.outs[in.n_outs++] = {&w.mix[i], out, width};
    out += w.mix[i].rows;
  }
  device_.linear(in);
}

LinearOut LayerOps::query_product(const LayerWeights& w, int layer, const ForwardBuffers& b) const {
  const Config& c = model_.config;
  const int64_t width = c.q_width(layer);
  if (const LatentConfig& l = c.latent; l && l.q_rank > 0)
    return {&w.wq_a, b.q.as<float>(), l.q_rank};
  else if (l) return {&w.wq, b.att.as<float>(), int64_t(c.n_heads) * l.query_dim()};
  if (!c.query_gate) return {&w.wq, b.q.as<float>(), width, &w.bq};
  return {&w.wq, b.both.as<float>(), 2 * width, &w.bq};
}

void LayerOps::take_queries(int layer, int64_t n, const ForwardBuffers& b) {
  const Config& c = model_.config;
  if (c.query_gate)
    device_.split_heads(b.both.as<float>(), n, c.heads(layer), c.head_size(layer), b.q.as<float>(),
                        b.gate.as<float>());
}

LinearOut LayerOps::key_product(const LayerWeights& w, int layer, const ForwardBuffers& b) const {
  const Config& c = model_.config;
  return {&w.wk, b.k.as<float>() + c.latent.kv_rank, c.kv_width(layer), &w.bk};
}

LinearOut LayerOps::value_product(const LayerWeights& w, int layer, const ForwardBuffers& b) const {
  const Config& c = model_.config;
  return {&w.wv, b.v.as<float>(), c.latent ? c.latent.kv_rank : c.kv_width(layer), &w.bv};
}

void LayerOps::finish_keys(const LayerWeights& w, int layer, int64_t n, const ForwardBuffers& b) {
  const int64_t width = model_.config.kv_width(layer);
  if (model_.config.latent)
    return device_.norm_rows(b.v.as<float>(), n, w.kv_a_norm, b.k.as<float>(), width);
  if (!model_.config.norm_after_rope) norm_qk(b.k.as<float>(), n, width, w.k_norm);
  norm_qk(b.v.as<float>(), n, width, w.v_norm);
}

void LayerOps::latent_queries(const LayerWeights& w, int layer, int64_t n, Phase phase,
                              const ForwardBuffers& b, bool rotated_only) {
  const Config& c = model_.config;
  const LatentConfig& l = c.latent;
  float *const q = b.q.as<float>(), *const raw = b.att.as<float>();
  const int64_t raw_width = int64_t(c.n_heads) * l.query_dim(), width = c.q_width(layer);
  if (l.q_rank > 0) {
    device_.norm_heads(q, n, 1, w.q_a_norm);
    Linear product;
    product.x = q;
    product.n = n;
    product.phase = phase;
    product.outs[0] = {&w.wq, raw, raw_width};
    device_.linear(product);
  }
  device_.multiply_heads({&w.k_b, raw, raw_width, l.query_dim(), q, width, c.head_size(layer), n,
                          l.rope_dim, phase, rotated_only});
  if (!rotated_only) device_.scale(q, n * width, l.query_scale);
}

float* LayerOps::attended(const LayerWeights& w, int layer, int64_t n, Phase phase,
                          const ForwardBuffers& b) {
  const Config& c = model_.config;
  if (!c.latent) return b.att.as<float>();
  const int value_dim = c.latent.value_dim;
  device_.multiply_heads({&w.v_b, b.att.as<float>(), c.q_width(layer), c.head_size(layer),
                          b.q.as<float>(), int64_t(c.n_heads) * value_dim, value_dim, n, 0, phase});
  return b.q.as<float>();
}

void LayerOps::attend(Step& step, int layer, const ForwardBuffers& b, float* x, int64_t n) {
  const Config& c = model_.config;
  const LayerWeights& w = model_.weights.layers[layer];
  Linear qkv;
  qkv.x = x;
  qkv.n = n;
  qkv.norm = &w.attn_norm;
  const bool own_kv = c.layers[layer].kv_source < 0;
  qkv.n_outs = 0;
  qkv.outs[qkv.n_outs++] = query_product(w, layer, b);
  if (own_kv) {
    qkv.outs[qkv.n_outs++] = key_product(w, layer, b);
    qkv.outs[qkv.n_outs++] = value_product(w, layer, b);
  }
  device_.linear(qkv);
  if (c.latent) {
    latent_queries(w, layer, n, Phase::Decode, b);
  } else {
    take_queries(layer, n, b);
    if (!c.norm_after_rope) norm_qk(b.q.as<float>(), n, c.q_width(layer), w.q_norm);
  }
  if (own_kv) finish_keys(w, layer, n, b);
  step.append(layer, b.q.as<float>(), own_kv ? b.k.as<float>() : nullptr,
              own_kv ? b.v.as<float>() : nullptr);
  step.attend(layer, b.q.as<float>(), b.att.as<float>());
  finish_layer(w, attended(w, layer, n, Phase::Decode, b), b.q.as<float>(),
               c.query_gate ? b.gate.as<float>() : nullptr, x, n, Phase::Decode,
               [&] { step.add_layer_embedding(layer, x); });
}

void LayerOps::finish_layer(const LayerWeights& w, float* attended, float* queries,
                            const float* gates, float* x, int64_t n, Phase phase,
                            const std::function<void()>& add_embedding) {
  if (gates) device_.sigmoid_gate(attended, gates, n * w.wo.cols);
  if (w.wgate.rows > 0) {
    Linear gate;
    gate.x = x;
    gate.n = n;
    gate.norm = &w.attn_norm;
    gate.outs[0] = {&w.wgate, queries, w.wgate.rows};
    gate.phase = phase;
    device_.linear(gate);
    if (model_.config.softplus_gate)
      device_.softplus_gate(attended, queries, n * w.wgate.rows, w.wo.cols / w.wgate.rows);
    else device_.sigmoid_gate(attended, queries, n * w.wgate.rows);
  }
  // The FFN goes first, while x is still the input of attention.
  const bool parallel = model_.config.parallel_ffn && w.has_ffn();
  if (parallel) device_.ffn(w, x, n, phase);
  Linear out;
  out.x = attended;
  out.n = n;
  out.outs[0] = {&w.wo, x, model_.config.dim, &w.bo};
  out.post_norm = &w.post_attn_norm;
  out.add = true;
  out.phase = phase;
  device_.linear(out);
  if (w.has_ffn() && !parallel) device_.ffn(w, x, n, phase);
  if (w.embedding_gate.rows > 0) add_embedding();
  if (const void* scale = w.output_scale.data)
    device_.scale(x, n * model_.config.dim, *static_cast<const float*>(scale));
}

}  // namespace riffle
