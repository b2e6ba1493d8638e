// Number of rounds and combinations that slow tests run: RIFFLE_TEST_ROUNDS is few (the default),
// most (as CI sets it) or all.
#pragma once
#include <cstdlib>
#include <string_view>

namespace riffle::test {

inline bool rounds_are(std::string_view wanted) {
  const char* rounds = std::getenv("RIFFLE_TEST_ROUNDS");
  return rounds && rounds == wanted;
}
inline bool all_rounds() { return rounds_are("all"); }
inline bool few_rounds() { return !all_rounds() && !rounds_are("most"); }

// Returns the number of threads for tests in which that number does not matter. With few rounds it
// is one: tests/run.sh then runs each program on one CPU, where two threads would wait for each
// other.
inline int usual_threads() { return few_rounds() ? 1 : 2; }

// Leaves out combinations that a test's loops make. With few rounds it keeps one of each n in a
// row: the first of the first n, the second of the next n, and so on, so that inner loops keep all
// their values.
class OneIn {
 public:
  explicit OneIn(int n) : n_(few_rounds() ? n : 1) {}
  // Returns whether the next combination is left out.
  bool skips() {
    const int i = made_++;
    return i % n_ != i / n_ % n_;
  }

 private:
  int n_, made_ = 0;
};

}  // namespace riffle::test
