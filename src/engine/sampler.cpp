#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "kernels/common/splitmix64.h"
#include "util/error.h"
#include "util/settings.h"

namespace riffle {
namespace {

uint64_t rotate_left(uint64_t x, int k) { return x << k | x >> (64 - k); }

// exp(logit - max), where both may be infinite.
double weight_of(float logit, float max, double temperature = 1) {
  return logit == max ? 1 : std::exp((static_cast<double>(logit) - max) / temperature);
}

[[noreturn]] void not_finite(const std::string& found) {
  throw Error(RIFFLE_BAD_MODEL,
              "the logits are not finite: found " + found +
                  ", expected finite numbers; compare the checksum of the model file, which may be "
                  "damaged; if it is intact, activations overflow");
}

// Returns the lowest id of the largest logit. Throws if a logit is NaN.
int index_of_max(const float* logits, int n) {
  constexpr int kLanes = 16;  // independent maxima, so that the compiler can use vectors
  float lanes[kLanes];
  int unordered[kLanes] = {};
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; j++) {
      const float x = logits[i + j];
      lanes[j] = x > lanes[j] ? x : lanes[j];
      unordered[j] |= x != x;
    }
  }
  float max = *std::max_element(lanes, lanes + kLanes);
  bool nan = std::any_of(unordered, unordered + kLanes, [](int x) { return x != 0; });
  for (; i < n; i++) {
    max = std::max(max, logits[i]);
    nan |= std::isnan(logits[i]);
  }
  if (nan) {
    const auto at = std::find_if(logits, logits + n, [](float x) { return std::isnan(x); });
    not_finite(format("not a number for token %d", static_cast<int>(at - logits)));
  }
  return static_cast<int>(std::find(logits, logits + n, max) - logits);
}

}  // namespace

Random::Random(uint64_t seed) {
  for (uint64_t& word : state_) word = splitmix64_next(seed);
}

uint64_t Random::next() {
  const uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = rotate_left(state_[3], 45);
  return result;
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

void check_sampling(float temperature, int top_k, float top_p, float min_p) {
  check_answer_setting("sampling.temperature", temperature);
  check_answer_setting("sampling.top_k", top_k);
  check_answer_setting("sampling.top_p", top_p);
  check_answer_setting("sampling.min_p", min_p);
}

void check_xtc(const Xtc& xtc) {
  check_answer_setting("sampling.xtc_probability", xtc.probability);
  check_answer_setting("sampling.xtc_threshold", xtc.threshold);
}

Sampler::Sampler(uint64_t seed, float temperature, int top_k, float top_p, float min_p, Xtc xtc)
    : random_(seed),
      temperature_(temperature),
      top_p_(top_p),
      min_p_(min_p),
      top_k_(std::max(top_k, 0)),
      xtc_(xtc) {
  check_sampling(temperature, top_k, top_p, min_p);
  check_xtc(xtc);
}

SampleRequest Sampler::request() {
  const bool drawn = temperature_ > 0 && top_k_ != 1;
  SampleRequest r;
  r.temperature = static_cast<float>(temperature_);
  r.top_k = top_k_;
  r.top_p = static_cast<float>(top_p_);
  r.min_p = static_cast<float>(min_p_);
  r.random = drawn ? random_.uniform() : 0;
  // The draw that switches XTC on is made here, so all devices decide alike.
  if (drawn && xtc_.on() && random_.uniform() < static_cast<double>(xtc_.probability))
    r.xtc_threshold = xtc_.threshold;
  return r;
}

int Sampler::sample(const float* logits, int n, const SampleRequest& request) {
  if (n < 1) fail(RIFFLE_BAD_ARGUMENT, "%d logits to sample from, expected at least 1", n);
  if (request.allowed || request.n_changes > 0) logits = changed(logits, n, request);
  const int best = index_of_max(logits, n);
  const float max = logits[best];
  if (max == -std::numeric_limits<float>::infinity()) {
    if (request.allowed || request.n_changes > 0)
      fail(RIFFLE_BAD_ARGUMENT,
           "no token can be drawn: logit_bias forbids all tokens that the grammar or the model "
           "allows");
    not_finite(format("-infinity for all %d tokens", n));
  }
  if (temperature_ == 0 || top_k_ == 1) return best;
  collect(logits, n);
  if (top_p_ < 1) cut_top_p(max);
  if (min_p_ > 0) cut_min_p(max);
  float top = max;
  if (request.xtc_threshold <= 0.5f) top = exclude_top(max, request.xtc_threshold);
  return draw(top, request.random);
}

// Returns the logits after the request's changes, with -inf where a token is not allowed. NaN
// stays: it is an error at any place.
const float* Sampler::changed(const float* logits, int n, const SampleRequest& request) {
  changed_.assign(logits, logits + n);
  for (int i = 0; i < request.n_changes; i++) {
    const LogitChange& c = request.changes[i];
    if (c.token < n) changed_[c.token] = changed_logit(changed_[c.token], c);
  }
  const uint32_t* allowed = request.allowed;
  for (int i = 0; allowed && i < n; i++) {
    const bool keep = (allowed[i / 32] >> (i % 32) & 1) != 0 || std::isnan(changed_[i]);
    if (!keep) changed_[i] = -std::numeric_limits<float>::infinity();
  }
  return changed_.data();
}

// Fills candidates_ with the tokens that pass top_k. Leaves out -inf, which weighs nothing.
void Sampler::collect(const float* logits, int n) {
  candidates_.clear();
  candidates_.reserve(n);
  if (top_k_ == 0 || top_k_ >= n) {
    for (int i = 0; i < n; i++) {
      if (logits[i] > -std::numeric_limits<float>::infinity())
        candidates_.push_back({logits[i], i});
    }
    return;
  }
  // A heap of the best k so far with the worst of them on top. Ids rise, so an equal logit never
  // displaces one.
  for (int i = 0; i < n; i++) {
    const bool full = static_cast<int>(candidates_.size()) == top_k_;
    if (!(logits[i] > (full ? candidates_.front().logit : -std::numeric_limits<float>::infinity())))
      continue;
    if (full) {
      std::pop_heap(candidates_.begin(), candidates_.end(), before);
      candidates_.pop_back();
    }
    candidates_.push_back({logits[i], i});
    std::push_heap(candidates_.begin(), candidates_.end(), before);
  }
  // The order of a heap is the standard library's choice; a seed must mean the same everywhere.
  std::sort(candidates_.begin(), candidates_.end(), before);
}

// Keeps the head of the ranking that covers top_p. Ranks in growing pieces, since the head is
// usually short.
void Sampler::cut_top_p(float max) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight_of(candidate.logit, max);
  const double enough = top_p_ * total;
  double covered = 0;
  for (size_t begin = 0, end; begin < candidates_.size(); begin = end) {
    end = std::min(candidates_.size(), std::max<size_t>(128, 4 * begin));
    const auto first = candidates_.begin() + begin, last = candidates_.begin() + end;
    if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), before);
    std::sort(first, last, before);
    for (size_t i = begin; i < end; i++) {
      covered += weight_of(candidates_[i].logit, max);
      if (covered >= enough) {
        candidates_.resize(i + 1);
        return;
      }
    }
  }
}

void Sampler::cut_min_p(float max) {
  std::erase_if(candidates_,
                [&](const Candidate& c) { return !(weight_of(c.logit, max) >= min_p_); });
}

// XTC. Returns the largest logit that is left.
float Sampler::exclude_top(float max, double threshold) {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += weight_of(candidate.logit, max);
  std::optional<Candidate> last;  // in rank, of the candidates that reach the threshold
  for (const Candidate& candidate : candidates_)
    if (weight_of(candidate.logit, max) >= threshold * total && (!last || before(*last, candidate)))
      last = candidate;
  if (!last) return max;
  std::erase_if(candidates_, [&](const Candidate& c) { return before(c, *last); });
  return last->logit;
}

// The order of candidates_ follows only from the logits, so the seed decides. top: the largest of
// their logits; relative to it no weight is lost if temperature is small.
int Sampler::draw(float top, double random) {
  double total = 0;
  for (const Candidate& candidate : candidates_)
    total += weight_of(candidate.logit, top, temperature_);
  const double target = random * total;
  double covered = 0;
  int chosen = candidates_[0].id;
  for (const Candidate& candidate : candidates_) {
    const double weight = weight_of(candidate.logit, top, temperature_);
    covered += weight;
    if (weight > 0) chosen = candidate.id;  // kept in case rounding leaves the sum below target
    if (covered > target) break;
  }
  return chosen;
}

}  // namespace riffle
