// DRY ("don't repeat yourself"): penalises tokens that would continue a repetition of earlier text.
// Described in riffle.h. Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents
// looping" (text-generation-webui, pull request 5677); parameters and order are llama.cpp's.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"
#include "util/options.h"

namespace riffle {

// Throws RIFFLE_BAD_ARGUMENT, naming the value, unless each is in the range that riffle.h gives.
void check_dry(const Sampling& sampling);

class Dry {
 public:
  // prompt: the tokens before the answer. Texts of tokens come from the tokenizer; without one
  // (null) there are no breakers. sampling is copied.
  Dry(const Sampling& sampling, std::span<const int32_t> prompt, const Tokenizer* tokenizer);

  bool on() const { return multiplier_ > 0 && last_n_ != 0; }
  void take(int32_t token);  // a token of the answer
  // Returns by how much each token's logit falls now.
  std::unordered_map<int32_t, float> penalties() const;

 private:
  std::string text_of(int32_t token) const;
  bool ends_breaker(size_t at) const;  // tokens_[at], after the tokens before it
  bool has_breaker(int32_t token) const;

  float multiplier_, base_;
  int32_t allowed_length_, last_n_;
  const Tokenizer* tokenizer_;
  std::vector<std::string> breakers_;
  size_t longest_breaker_ = 0;
  std::vector<int32_t> tokens_;  // the last ones of prompt and answer: last_n, if there, or more
  size_t since_breaker_ = 0;     // tokens since the last breaker
};

}  // namespace riffle
