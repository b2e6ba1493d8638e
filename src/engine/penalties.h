// Biases, penalties and DRY of an answer: the effect of the tokens so far on the next token's
// logits.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/dry.h"
#include "kernels/common/logit_change.h"
#include "riffle.h"
#include "util/options.h"

namespace riffle {

// Throws RIFFLE_BAD_ARGUMENT, naming the value, unless each is in the range that riffle.h gives.
void check_penalties(const Sampling& sampling);

class Penalties {
 public:
  // prompt: the tokens before the answer. sampling is copied. tokenizer: gives the texts that DRY
  // needs; null: no texts.
  Penalties(const Sampling& sampling, std::span<const int32_t> prompt,
            const Tokenizer* tokenizer = nullptr);

  // Returns false if no logit changes now or after any token.
  bool any() const { return repeats() || counts() || !bias_.empty() || dry_.on(); }
  void take(int32_t token);  // a token of the answer
  // Returns the change of each token below n_ids whose logit changes now, once, by id.
  std::vector<LogitChange> changes(int n_ids) const;

 private:
  bool repeats() const { return repeat_penalty_ != 1 && last_n_ != 0; }
  bool counts() const { return frequency_penalty_ != 0 || presence_penalty_ != 0; }
  void remember(int32_t token);

  float repeat_penalty_, frequency_penalty_, presence_penalty_;
  int32_t last_n_;
  std::vector<riffle_logit_bias> bias_;
  std::deque<int32_t> last_;  // last tokens of prompt and answer, with repeat_penalty
  std::unordered_map<int32_t, int32_t> n_last_;       // count of each in last_
  std::unordered_map<int32_t, int32_t> n_in_answer_;  // for the other two penalties
  Dry dry_;
};

}  // namespace riffle
