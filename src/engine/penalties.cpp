#include "engine/penalties.h"

#include <algorithm>
#include <cmath>

#include "util/error.h"
#include "util/settings.h"

namespace riffle {

void check_penalties(const Sampling& s) {
  check_answer_setting("sampling.repeat_penalty", s.repeat_penalty);
  check_answer_setting("sampling.repeat_last_n", s.repeat_last_n);
  check_answer_setting("sampling.frequency_penalty", s.frequency_penalty);
  check_answer_setting("sampling.presence_penalty", s.presence_penalty);
  check_dry(s);
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < s.logit_bias.size(); ++i) {
    const auto& [token, bias] = s.logit_bias[i];
    if (token < 0)
      fail(RIFFLE_BAD_ARGUMENT, "logit_bias[%zu]: token is %d, expected 0 or more", i, token);
    if (!(std::fabs(bias) <= RIFFLE_MAX_LOGIT_BIAS) && bias != -INFINITY)
      fail(RIFFLE_BAD_ARGUMENT, "logit_bias[%zu]: bias is %g, expected %g to %g, or -infinity", i,
           bias, -RIFFLE_MAX_LOGIT_BIAS, RIFFLE_MAX_LOGIT_BIAS);
    tokens.push_back(token);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice != tokens.end())
    fail(RIFFLE_BAD_ARGUMENT, "logit_bias: token %d occurs more than once, expected once", *twice);
  check_answer_setting("sampling.top_logprobs", s.top_logprobs);
}

Penalties::Penalties(const Sampling& s, std::span<const int32_t> prompt, const Tokenizer* tokenizer)
    : repeat_penalty_(s.repeat_penalty),
      frequency_penalty_(s.frequency_penalty),
      presence_penalty_(s.presence_penalty),
      last_n_(s.repeat_last_n),
      bias_(s.logit_bias),
      dry_(s, prompt, tokenizer) {
  if (!repeats()) return;
  if (last_n_ > 0 && prompt.size() > static_cast<size_t>(last_n_))
    prompt = prompt.last(static_cast<size_t>(last_n_));
  for (const int32_t token : prompt) remember(token);
}

void Penalties::remember(int32_t token) {
  ++n_last_[token];
  if (last_n_ < 0) return;  // none is forgotten
  last_.push_back(token);
  if (last_.size() <= static_cast<size_t>(last_n_)) return;
  const auto oldest = n_last_.find(last_.front());
  if (--oldest->second == 0) n_last_.erase(oldest);
  last_.pop_front();
}

void Penalties::take(int32_t token) {
  if (repeats()) remember(token);
  if (counts()) ++n_in_answer_[token];
  dry_.take(token);
}

std::vector<LogitChange> Penalties::changes(int n_ids) const {
  std::vector<LogitChange> all;
  all.reserve(bias_.size() + n_last_.size() + n_in_answer_.size());
  for (const auto& [token, bias] : bias_) all.push_back({token, bias, 1, 0});
  for (const auto& [token, n] : n_last_) all.push_back({token, 0, repeat_penalty_, 0});
  for (const auto& [token, n] : n_in_answer_)
    all.push_back({token, 0, 1, static_cast<float>(n) * frequency_penalty_ + presence_penalty_});
  if (dry_.on())
    for (const auto& [token, penalty] : dry_.penalties()) all.push_back({token, 0, 1, penalty});
  std::sort(all.begin(), all.end(),
            [](const LogitChange& a, const LogitChange& b) { return a.token < b.token; });
  // Merges the changes of each token; each of the four sources has it at most once.
  size_t kept = 0;
  for (const LogitChange& c : all) {
    if (c.token >= n_ids) break;
    if (kept > 0 && all[kept - 1].token == c.token) {
      LogitChange& both = all[kept - 1];
      both.bias += c.bias;
      both.divide *= c.divide;
      both.minus += c.minus;
    } else {
      all[kept++] = c;
    }
  }
  all.resize(kept);
  return all;
}

}  // namespace riffle
