#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

namespace riffle {

Logprobs logprobs_of(std::span<const float> logits, int32_t token, int n_top) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  const double log_sum = max + std::log(sum);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - log_sum);
  };
  Logprobs out;
  out.of_token = logprob(token);
  // The best so far, best first. Ids rise, so an equal logit ranks after earlier ones.
  for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); ++id) {
    const float x = logits[static_cast<size_t>(id)];
    const bool full = static_cast<int>(out.top.size()) == n_top;
    if (full && (n_top == 0 || !(x > out.top.back().logprob))) continue;
    if (full) out.top.pop_back();
    const auto at = std::find_if(out.top.begin(), out.top.end(),
                                 [&](const riffle_logprob& other) { return x > other.logprob; });
    out.top.insert(at, {id, x});  // the logit, until all are found
  }
  for (riffle_logprob& one : out.top) one.logprob = logprob(one.token);
  return out;
}

}  // namespace riffle
