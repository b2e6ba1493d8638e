// Operations that a model needs, for measuring.
#pragma once
#include "model/model.h"

namespace riffle {

// A multiplication and an addition are two operations.
struct PromptOperations {
  double products = 0;   // with weights
  double attention = 0;  // scores and sums of values, of the keys that each query sees
};

// Counts what reading n tokens needs until the logits of the last one. Not counted: the lookup of
// embeddings, recurrent states, norms and other operations on single values.
PromptOperations prompt_operations(const Model& model, int64_t n);

}  // namespace riffle
