// Distributions of the next token: kept in little room, to compare others with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace riffle::eval {

// The largest logit, the lowest id among equals.
int32_t best_token(const float* logits, int n_vocab);
// Throws std::runtime_error if it is not finite.
double log_sum_exp(const float* logits, int n_vocab);

// A document's dense answers are kept while every setting follows them: 64 tokens of ten questions
// at a vocabulary of 152,000 are 390 MB of logits. Here likely tokens keep their logits and all
// others 16 bits of their log-probability each. That moves a divergence by at most half a step of
// these, 1.5e-4, times the probability that the others have together.
class Distribution {
 public:
  Distribution(const float* logits, int n_vocab);  // throws as log_sum_exp
  // Kullback-Leibler divergence of another distribution q from this one, p, in nats: sum p log(p /
  // q).
  double divergence(const float* logits) const;
  size_t bytes() const { return likely_.size() * sizeof(Likely) + rest_.size() * sizeof(uint16_t); }

 private:
  struct Likely {
    int32_t token;
    float logit;
  };
  double log_sum_;
  std::vector<Likely> likely_;
  std::vector<uint16_t> rest_;  // by token: how far log p is below kLikely, in steps; kNone:
                                // likely, or next to impossible
};

}  // namespace riffle::eval
