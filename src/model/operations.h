// Operations that a model needs, for measuring.
#pragma once
#include "model/model.h"

namespace riffle {

// A multiplication and an addition are two operations.
struct PromptOperations {
  double products = 0;  // with weights
  // Scores and sums of values: in layers without a window, and in those with one.
  double attention = 0, window_attention = 0;
};

// Counts the operations of a prefill of n tokens that returns the last token's logits. Not counted:
// the lookup of embeddings, recurrent states, norms and other operations on single values.
PromptOperations prompt_operations(const Model& model, int64_t n);

}  // namespace riffle
