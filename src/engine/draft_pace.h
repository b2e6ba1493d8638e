// The number of guesses that pays: measured in tokens a second, step by step. Texts do not depend
// on it.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

#include "engine/plan/draft_plan.h"

namespace riffle {

// The choice for steps of one number of sequences.
class DraftPace {
 public:
  // always: at least one guess a step (draft MTP).
  explicit DraftPace(bool always) : fewest_(always ? 1 : 0) {}

  // Returns the number of guesses of the next step.
  int length();
  // A step took this long and gave this many tokens in all, with `length` guesses a sequence.
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
  std::array<Rate, kMostGuesses + 1> rates_{};
  std::array<bool, kMostGuesses + 1> wanted_{};  // lengths still to be tried in this round
  int current_ = 0, left_ = 0;                   // the length in use, and the steps that it stays
  bool trying_ = false;
};

// The choices of an engine, and the measurement of its steps by what the engine counts. A step is
// measured when the next one begins, since its tokens ahead are accepted in between.
class DraftPaces {
 public:
  // The engine's decoded tokens, attempted steps, and seconds of both steps and guesses so far.
  struct Counts {
    uint64_t tokens = 0, steps = 0;
    double seconds = 0;
  };
  explicit DraftPaces(bool always) : always_(always) {}

  // Ends the measurement of the last step, if there was one since the last call and no other, and
  // returns the number of guesses of the next one.
  int begin(size_t n_sequences, const Counts& counts);
  // Leaves the step out that was begun last, since it will say nothing of its number of guesses.
  void leave_out() { measured_ = false; }

 private:
  static constexpr size_t kSeparate = 8;  // larger numbers of sequences share a choice

  const bool always_;
  std::array<std::optional<DraftPace>, kSeparate + 1> paces_;
  size_t of_ = 0;  // entry of the step under way
  int length_ = 0;
  bool measured_ = false;
  Counts at_;  // when the step began
};

}  // namespace riffle
