// Reads both ends of every weight, so that the sanitizers see a view that leaves its file.
#pragma once
#include "model/model.h"

namespace riffle::test {

// Without rows the model has no such tensor.
inline void touch(const Tensor& t) {
  if (t.rows == 0) return;
  const auto* p = static_cast<const volatile uint8_t*>(t.data);
  (void)p[0];
  (void)p[t.bytes() - 1];
}

inline void touch(const Model& model) {
  touch(model.weights.embedding);
  touch(model.weights.output);
  touch(model.weights.final_norm);
  for (const LayerWeights& w : model.weights.layers) {
    for (const Tensor* t : {&w.attn_norm,
                            &w.ffn_norm,
                            &w.post_attn_norm,
                            &w.post_ffn_norm,
                            &w.q_norm,
                            &w.k_norm,
                            &w.wq,
                            &w.wk,
                            &w.wv,
                            &w.wo,
                            &w.w1,
                            &w.w3,
                            &w.w2,
                            &w.bq,
                            &w.bk,
                            &w.bv,
                            &w.bo,
                            &w.b1,
                            &w.b3,
                            &w.b2,
                            &w.router})
      touch(*t);
    for (const ExpertWeights& e : w.experts)
      for (const Tensor* t : {&e.w1, &e.w3, &e.w2}) touch(*t);
  }
}

}  // namespace riffle::test
