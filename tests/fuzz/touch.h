// Reads both ends of every weight, so that the sanitizers see a view that leaves its file.
#pragma once
#include "model/model.h"

namespace riffle::test {

inline void touch(const Tensor& t) {
  const auto* p = static_cast<const volatile uint8_t*>(t.data);
  (void)p[0];
  (void)p[t.bytes() - 1];
}

inline void touch(const Model& model) {
  touch(model.weights.embedding);
  touch(model.weights.output);
  touch(model.weights.final_norm);
  for (const LayerWeights& w : model.weights.layers) {
    for (const Tensor* t :
         {&w.attn_norm, &w.wq, &w.wk, &w.wv, &w.wo, &w.ffn_norm, &w.w1, &w.w3, &w.w2})
      touch(*t);
  }
}

}  // namespace riffle::test
