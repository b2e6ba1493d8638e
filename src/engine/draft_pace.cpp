#include "engine/draft_pace.h"

#include <algorithm>

namespace riffle {

double DraftPace::Rate::per_second() const {
  const auto n = static_cast<size_t>(std::min<int64_t>(timed, kTimes));
  std::array<double, kTimes> sorted = seconds;
  std::sort(sorted.begin(), sorted.begin() + n);
  return n == 0 ? 0 : tokens / steps / sorted[n / 2];
}

int DraftPace::best() const {
  int best = fewest_;
  double most = 0;
  for (int i = fewest_; i <= kMostGuesses; ++i) {
    if (const double rate = rates_[i].per_second(); rate > most) most = rate, best = i;
  }
  return best;
}

// The first round tries all lengths; later ones the best, its neighbours and the fewest.
void DraftPace::plan_trials() {
  const int at = best();
  for (int i = fewest_; i <= kMostGuesses; ++i)
    wanted_[i] = rates_[i].steps == 0 || std::abs(i - at) <= 1 || i == fewest_;
}

int DraftPace::length() {
  if (left_-- > 0) return current_;
  const auto next = [&] { return std::find(wanted_.begin(), wanted_.end(), true); };
  if (next() == wanted_.end() && !trying_) plan_trials(), trying_ = true;
  if (const auto it = next(); it != wanted_.end()) {
    current_ = static_cast<int>(it - wanted_.begin());
    *it = false;
    left_ = kTrial - 1;
  } else {
    current_ = best();
    trying_ = false;
    left_ = kHold - 1;
  }
  return current_;
}

void DraftPace::record(int length, double seconds, double tokens) {
  Rate& r = rates_[length];
  if (r.steps >= kOldest) {
    const double keep = (kOldest - 1) / r.steps;
    r.tokens *= keep, r.steps *= keep;
  }
  r.seconds[r.timed++ % kTimes] = std::max(seconds, 1e-9);
  r.tokens += tokens;
  r.steps += 1;
}

int DraftPaces::begin(size_t n_sequences, const Counts& now) {
  if (measured_ && now.steps == at_.steps + 1 && now.tokens > at_.tokens)
    paces_[of_]->record(length_, now.seconds - at_.seconds,
                        static_cast<double>(now.tokens - at_.tokens));
  of_ = std::min(n_sequences, kSeparate);
  if (!paces_[of_]) paces_[of_].emplace(always_);
  length_ = paces_[of_]->length();
  measured_ = true;
  at_ = now;
  return length_;
}

}  // namespace riffle
