// Reads both ends of every weight, so that the sanitizers see a view that leaves its file.
#pragma once
#include <iterator>

#include "model/model.h"

namespace riffle::test {

// Without rows the model has no such tensor.
inline void touch(const Tensor& t) {
  if (t.rows == 0) return;
  const auto* p = static_cast<const volatile uint8_t*>(t.data);
  (void)p[0];
  (void)p[t.bytes() - 1];
}

inline void touch(const ExpertWeights& e) {
  const Tensor* const all[] = {&e.w1, &e.w3, &e.w2, &e.b1, &e.b3, &e.b2};
  static_assert(sizeof e == std::size(all) * sizeof(Tensor), "a tensor is not touched");
  for (const Tensor* t : all) touch(*t);
}

inline void touch(const LayerWeights& w) {
  const Tensor* const all[] = {&w.attn_norm,
                               &w.ffn_norm,
                               &w.post_attn_norm,
                               &w.post_ffn_norm,
                               &w.wq,
                               &w.wk,
                               &w.wv,
                               &w.wo,
                               &w.wgate,
                               &w.wqkv,
                               &w.w13,
                               &w.w1,
                               &w.w3,
                               &w.w2,
                               &w.q_norm,
                               &w.k_norm,
                               &w.v_norm,
                               &w.output_scale,
                               &w.xielu,
                               &w.bq,
                               &w.bk,
                               &w.bv,
                               &w.bo,
                               &w.b1,
                               &w.b3,
                               &w.b2,
                               &w.sinks,
                               &w.router,
                               &w.router_bias,
                               &w.choice_bias,
                               &w.shared_gate,
                               &w.router_norm,
                               &w.expert_norm,
                               &w.ffn_out_norm,
                               &w.expert_out_norm,
                               &w.expert_scales,
                               &w.embedding_gate,
                               &w.embedding_out,
                               &w.embedding_norm,
                               &w.layer_projection};
  static_assert(sizeof w == std::size(all) * sizeof(Tensor) + sizeof w.experts + sizeof w.shared +
                                sizeof w.mix,
                "a tensor is not touched");
  for (const Tensor* t : all) touch(*t);
  for (const ExpertWeights& e : w.experts) touch(e);
  touch(w.shared);
  for (const Tensor& t : w.mix) touch(t);
}

inline void touch(const Model& model) {
  touch(model.weights.embedding);
  touch(model.weights.embedding_norm);
  touch(model.weights.output);
  touch(model.weights.final_norm);
  touch(model.weights.layer_embedding);
  touch(model.weights.layer_projection);
  touch(model.weights.layer_projection_norm);
  for (const LayerWeights& w : model.weights.layers) touch(w);
}

}  // namespace riffle::test
