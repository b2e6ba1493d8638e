// The number of guesses that pays: measured in tokens a second, step by step. Texts do not depend
// on it.
#pragma once
#include <array>
#include <cstdint>

#include "engine/plan/draft_plan.h"

namespace riffle {

class DraftPace {
 public:
  // always: at least one guess a step (draft MTP).
  explicit DraftPace(bool always) : fewest_(always ? 1 : 0) {}

  // Returns the number of guesses of the next step, of n sequences.
  int length(int64_t n_sequences);
  // The step took this long and gave this many tokens in all, with `length` guesses a sequence.
  void record(int length, double seconds, double tokens);

 private:
  // Steps of a trial of one length, and between two rounds of trials of the lengths near the best.
  static constexpr int kTrial = 8, kHold = 256;
  // Steps whose times count, by their median, since another program may delay a few; and steps
  // whose tokens count, by their mean.
  static constexpr int kTimes = 15;
  static constexpr double kOldest = 64;

  struct Rate {
    std::array<double, kTimes> seconds{};
    int64_t timed = 0;  // steps in all
    double tokens = 0, steps = 0;
    double per_second() const;
  };
  int best() const;
  void plan_trials();

  const int fewest_;
  int64_t n_sequences_ = 0;
  std::array<Rate, kMostGuesses + 1> rates_{};
  std::array<bool, kMostGuesses + 1> wanted_{};  // lengths still to be tried in this round
  int current_ = 0, left_ = 0;                   // the length in use, and the steps that it stays
  bool trying_ = false;
};

}  // namespace riffle
