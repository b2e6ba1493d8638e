// Distributions of the next token, kept in little memory to compare others with them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle::eval {

// Returns the token with the largest logit; the lowest id among equals.
int32_t best_token(const float* logits, int n_vocab);
// Throws std::runtime_error if the result is not finite.
double log_sum_exp(const float* logits, int n_vocab);

// The distributions of a document's dense answers are kept while every setting follows the answers.
// The logits of 64 tokens of ten questions with a vocabulary of 152,000 would take 390 MB. Here
// likely tokens keep their logits, and all others keep 16 bits of their log-probability. That
// changes a divergence by at most half a step of these bits, 1.5e-4, times the sum of the others'
// probabilities.
class Distribution {
 public:
  Distribution(const float* logits, int n_vocab);  // throws as log_sum_exp
  // Returns the Kullback-Leibler divergence of another distribution q from this one, p, in nats:
  // sum p log(p / q).
  double divergence(const float* logits) const;
  size_t bytes() const { return likely_.size() * sizeof(Likely) + rest_.size() * sizeof(uint16_t); }

 private:
  struct Likely {
    int32_t token;
    float logit;
  };
  double log_sum_;
  std::vector<Likely> likely_;
  std::vector<uint16_t> rest_;  // by token: distance of log p below kLikely, in steps; kNone:
                                // likely, or almost impossible
};

}  // namespace riffle::eval
