// Chooses the next token from the logits.
#pragma once
#include <cstdint>
#include <vector>

#include "backend/sample_request.h"

namespace riffle {

// Pseudo-random numbers that are the same on every platform: xoshiro256** seeded by SplitMix64.
// Source: Blackman & Vigna, "Scrambled Linear Pseudorandom Number Generators" (ACM TOMS 47, 2021).
class Random {
 public:
  explicit Random(uint64_t seed);
  uint64_t next();
  double uniform();  // in [0,1), a multiple of 2^-53

 private:
  uint64_t state_[4];
};

// Throws RIFFLE_BAD_ARGUMENT, naming the value, unless all are in the ranges of util/settings.h.
void check_sampling(float temperature, int top_k, float top_p, float min_p);

// Exclude top choices: acts on a draw with this probability.
struct Xtc {
  float probability = 0, threshold = 0.1f;
  bool on() const { return probability > 0 && threshold <= 0.5f; }
};
// Throws RIFFLE_BAD_ARGUMENT, naming the value, unless both members are in range.
void check_xtc(const Xtc& xtc);

// A request's changes are added to the logits first. A token that the request does not allow counts
// as one whose logit is -inf.
//
// Let p be the softmax of the logits at temperature 1. The candidates are the tokens that pass
// these filters, in this order:
//   top_k  the k largest; 0: all
//   top_p  the fewest of the largest that make up top_p of the tokens that top_k left, at least
//          one; 1: all
//   min_p  p at least min_p times the largest p; 0: all
//   XTC    acts on some draws. Let q be the softmax over the tokens that min_p left. If two or
//          more tokens have q >= threshold, XTC drops all of these but the last in rank
// One is drawn with probability proportional to exp(logit / temperature). Equal logits rank by id,
// lowest first. temperature 0 takes the first in rank.
class Sampler {
 public:
  // Throws as check_sampling and check_xtc.
  Sampler(uint64_t seed, float temperature, int top_k, float top_p, float min_p, Xtc xtc = {});

  // logits: n values. -inf is never drawn. Throws RIFFLE_BAD_MODEL if one is NaN or none is above
  // -inf, RIFFLE_BAD_ARGUMENT if n < 1. Allocates only if n is larger than in any call before.
  // Requires: at least one token is allowed.
  int sample(const float* logits, int n) { return sample(logits, n, request()); }
  // Do the same in two steps: request takes the next random number, and a second one if XTC is on;
  // sample draws with them.
  SampleRequest request();
  int sample(const float* logits, int n, const SampleRequest& request);

 private:
  struct Candidate {
    float logit;
    int id;
  };
  static bool before(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
  const float* changed(const float* logits, int n, const SampleRequest& request);
  void collect(const float* logits, int n);
  void cut_top_p(float max);
  void cut_min_p(float max);
  float exclude_top(float max, double threshold);
  int draw(float top, double random);

  Random random_;
  double temperature_, top_p_, min_p_;
  int top_k_;
  Xtc xtc_;
  std::vector<Candidate> candidates_;
  std::vector<float> changed_;
};

}  // namespace riffle
