// Log-probabilities of tokens.
#pragma once
#include <span>
#include <vector>

#include "riffle.h"

namespace riffle {

// Log probabilities of `token` and of the n_top most probable ids, best first, equal ones by id:
// natural logarithms of the softmax over the logits, computed in double.
struct Logprobs {
  float of_token = 0;
  std::vector<riffle_logprob> top;
};
Logprobs logprobs_of(std::span<const float> logits, int32_t token, int n_top);

}  // namespace riffle
