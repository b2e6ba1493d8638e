// WorkingSet against the union of the last selections, taken anew after every step.
#include "kv/working_set.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <random>
#include <set>
#include <vector>

using riffle::WorkingSet;

namespace {

using Selection = std::vector<std::vector<int32_t>>;  // [row]: blocks, all different

class Brute {
 public:
  Brute(size_t n_rows, int window) : n_rows_(n_rows), window_(window) {}
  void step(const Selection& s) { steps_.push_back(s); }
  void clear() { steps_.clear(); }
  // Blocks of a row in the last `window` steps.
  int32_t size(size_t row) const { return size(row, window_); }
  int32_t size(size_t row, int steps) const {
    std::set<int32_t> all;
    const size_t first = steps_.size() > size_t(steps) ? steps_.size() - steps : 0;
    for (size_t i = first; i < steps_.size(); ++i)
      all.insert(steps_[i][row].begin(), steps_[i][row].end());
    return static_cast<int32_t>(all.size());
  }
  int64_t size() const {
    int64_t sum = 0;
    for (size_t r = 0; r < n_rows_; ++r) sum += size(r);
    return sum;
  }

 private:
  size_t n_rows_;
  int window_;
  std::vector<Selection> steps_;
};

Selection random_selection(std::mt19937& random, size_t n_rows, int blocks) {
  Selection out(n_rows);
  for (auto& row : out) {
    row.resize(blocks);
    std::iota(row.begin(), row.end(), 0);
    std::shuffle(row.begin(), row.end(), random);
    // None, one, all, some; blocks that many steps share, or not.
    const unsigned kind = random() % 8;
    const size_t n = kind == 0   ? 0
                     : kind == 1 ? 1
                     : kind == 2 ? size_t(blocks)
                                 : random() % (size_t(blocks) + 1);
    row.resize(n);
  }
  return out;
}

void add(WorkingSet& set, std::mt19937& random, const Selection& s) {
  std::vector<size_t> rows(s.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  for (size_t r : rows) set.add(r, s[r].data(), static_cast<int>(s[r].size()));
}

bool same(const WorkingSet& set, const Brute& brute, size_t n_rows) {
  for (size_t r = 0; r < n_rows; ++r) {
    const riffle::RowSets sizes = set.sizes(r);
    for (int i = 0; i < riffle::kWindows; ++i)
      if (sizes[i] != brute.size(r, riffle::window_steps(set.window(), i))) return false;
  }
  return set.size() == brute.size();
}

}  // namespace

TEST_CASE("a working set is the union of the last selections", "[kv][working_set]") {
  std::mt19937 random(11);
  for (int window : {1, 2, 3, 12, 40})
    for (int blocks : {1, 2, 17, 200})
      for (size_t n_rows : {size_t(1), size_t(3), size_t(10)}) {
        INFO("window " << window << " blocks " << blocks << " rows " << n_rows);
        WorkingSet set(n_rows, blocks, window);
        Brute brute(n_rows, window);
        CHECK(set.window() == window);
        int64_t position = 100, steps = 0;
        bool all_same = true;
        for (int i = 0; i < 100; ++i) {
          if (i == 45 || (i > 50 && random() % 20 == 0)) {
            set.clear();
            brute.clear();
            steps = 0;
            all_same &= set.size() == 0 && set.steps() == 0;
            if (random() % 2) position -= 7;  // cut, or at the same position again
          }
          const Selection s = random_selection(random, n_rows, blocks);
          set.begin_step(position++);
          add(set, random, s);
          brute.step(s);
          all_same &= same(set, brute, n_rows) && set.steps() == ++steps;
        }
        CHECK(all_same);
      }
}

TEST_CASE("a working set of one step is what it selected", "[kv][working_set]") {
  WorkingSet set(2, 10, 1);
  const int32_t a[] = {3, 1, 7}, b[] = {9, 3};
  set.begin_step(5);
  set.add(0, a, 3);
  CHECK(set.size() == 3);
  set.begin_step(6);
  CHECK(set.size() == 0);
  set.add(1, b, 2);
  CHECK(set.size() == 2);
  CHECK(set.sizes(0)[0] == 0);
  CHECK(set.sizes(1)[0] == 2);
}

TEST_CASE("the same block in every step counts once and leaves a window after its last",
          "[kv][working_set]") {
  const int window = 4;
  WorkingSet set(1, 3, window);
  const int32_t block = 2;
  int64_t position = 0;
  for (int i = 0; i < 25; ++i) {
    set.begin_step(++position);
    set.add(0, &block, 1);
    CHECK(set.size() == 1);
  }
  for (int i = 1; i <= window; ++i) {
    set.begin_step(++position);
    CHECK(set.size() == (i < window ? 1 : 0));
  }
}

TEST_CASE("a step that failed and is tried again is one step, with what both attempts selected",
          "[kv][working_set]") {
  std::mt19937 random(5);
  const size_t n_rows = 4;
  const int blocks = 30;
  for (int window : {1, 2, 5}) {
    INFO("window " << window);
    WorkingSet set(n_rows, blocks, window);
    Brute brute(n_rows, window);
    bool all_same = true;
    for (int position = 1; position <= 60; ++position) {
      Selection both(n_rows);
      const int attempts = random() % 4 == 0 ? 3 : 1;
      for (int i = 0; i < attempts; ++i) {
        Selection s = random_selection(random, n_rows, blocks);
        if (i + 1 < attempts) s[n_rows - 1].clear();  // it had not come so far
        set.begin_step(position);
        add(set, random, s);
        for (size_t r = 0; r < n_rows; ++r) both[r].insert(both[r].end(), s[r].begin(), s[r].end());
      }
      brute.step(both);
      all_same &= same(set, brute, n_rows);
    }
    CHECK(all_same);
  }
}
