// Batches against a simulated pool: each sequence's blocks come back after a fixed number of steps,
// the least recently used block leaves first, and a step's time is a linear function.
#include "engine/schedule/batch_control.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <list>
#include <numeric>
#include <random>
#include <unordered_map>

#include "tests/rounds.h"

using namespace riffle;

namespace {

struct Line {
  double fixed, row, load;
  double seconds(double rows, double loads) const { return fixed + row * rows + load * loads; }
};

// Each sequence reads `size` blocks a step. Most are those of the step before; of the others some
// were read a while ago, and some never.
class Play {
 public:
  Play(int n, int size, int64_t slots, Line line, double change)
      : size_(size), slots_(slots), line_(line), change_(change) {
    for (int i = 0; i < n; ++i) {
      sets_.emplace_back(1, kBlocks, 16);
      reads_.emplace_back(size);
      std::iota(reads_.back().begin(), reads_.back().end(), 0);
      steps_.push_back(0);
    }
  }
  // Rows a second over many steps with control, or always with the first `members`.
  double rate(BatchControl* control, size_t members, int steps) {
    double rows = 0, seconds = 0;
    for (int i = 0; i < steps; ++i) {
      Batch batch;
      // Prompts are read one by one.
      const size_t here = std::min(sets_.size(), 1 + static_cast<size_t>(i) / kArrival);
      if (control) batch = control->choose(window_sets(here), here, [&](size_t) { return slots_; });
      else
        for (size_t k = 0; k < std::min(here, members); ++k) batch.members.push_back(k);
      int64_t loads = 0;
      for (const size_t m : batch.members) loads += step(m);
      const auto n = static_cast<double>(batch.members.size());
      const double took = line_.seconds(n, static_cast<double>(loads));
      if (control) control->observe(n, static_cast<double>(loads), took);
      if (i >= steps / 2) rows += n, seconds += took;  // the later half
    }
    return rows / seconds;
  }

 private:
  static constexpr int kBlocks = 4000, kArrival = 10;
  std::vector<WindowSets> window_sets(size_t n) const {
    std::vector<WindowSets> out;
    for (size_t i = 0; i < n; ++i) {
      const WorkingSet& set = sets_[i];
      const RowSets sizes = set.sizes(0);
      std::copy(sizes.begin(), sizes.end(), out.emplace_back().begin());
    }
    return out;
  }
  int64_t step(size_t m) {
    std::vector<int32_t>& read = reads_[m];
    std::vector<char> in(kBlocks, 0);
    for (const int32_t b : read) in[b] = 1;
    for (int32_t& b : read) {
      if (std::uniform_real_distribution<>()(random_) >= change_) continue;
      // Near what it is: old blocks come back.
      const int32_t to = static_cast<int32_t>(
          (b + 1 + random_() % (random_() % 4 == 0 ? kBlocks : 2 * size_)) % kBlocks);
      if (in[to]) continue;
      in[b] = 0, in[to] = 1;
      b = to;
    }
    sets_[m].begin_step(++steps_[m]);
    sets_[m].add(0, read.data(), static_cast<int>(read.size()));
    int64_t loads = 0;
    for (const int32_t b : read) loads += touch(int64_t(m) * kBlocks + b);
    return loads;
  }
  bool touch(int64_t key) {
    if (const auto at = where_.find(key); at != where_.end()) {
      lru_.splice(lru_.end(), lru_, at->second);
      return false;
    }
    if (static_cast<int64_t>(lru_.size()) == slots_) {
      where_.erase(lru_.front());
      lru_.pop_front();
    }
    where_[key] = lru_.insert(lru_.end(), key);
    return true;
  }

  int size_;
  int64_t slots_;
  Line line_;
  double change_;
  std::mt19937 random_{5};
  std::vector<WorkingSet> sets_;
  std::vector<std::vector<int32_t>> reads_;
  std::vector<int64_t> steps_;
  std::list<int64_t> lru_;
  std::unordered_map<int64_t, std::list<int64_t>::iterator> where_;
};

// 300 blocks here are as 13,000 of 16 KiB: those that a step of 32,000 tokens reads of an 8B model.
constexpr double kBlockBytes = 16384 * 43;

}  // namespace

TEST_CASE("the time of a step is found from steps", "[batch_control]") {
  const Line line{4e-3, 3e-4, 4e-7};
  StepTime time(16384 / 25e9);
  std::mt19937 random(2);
  for (int i = 0; i < 400; ++i) {
    const double rows = 1 + random() % 16, loads = rows * (random() % 2000);
    time.observe(rows, loads, line.seconds(rows, loads));
  }
  for (const double rows : {1.0, 8.0, 16.0})
    for (const double loads : {0.0, 3000.0, 20000.0}) {
      INFO("rows " << rows << ", loads " << loads);
      CHECK(time.seconds(rows, loads) == Approx(line.seconds(rows, loads)).epsilon(0.06));
    }
}

TEST_CASE("steps of one size leave a time that is no nonsense for others", "[batch_control]") {
  StepTime time(16384 / 25e9);
  for (int i = 0; i < 100; ++i) time.observe(4, 5000, 8e-3);
  CHECK(time.seconds(4, 5000) == Approx(8e-3).epsilon(0.01));
  CHECK(time.seconds(4, 10000) > time.seconds(4, 5000));
  CHECK(time.seconds(8, 10000) < 2 * time.seconds(4, 5000));
  CHECK(time.seconds(1, 0) > 0);
}

TEST_CASE("the batch that is chosen makes nearly the most rows a second of all batch sizes",
          "[batch_control]") {
  riffle::test::OneIn one(3);
  struct Case {
    const char* what;
    int64_t slots;
    Line line;
    double change;
  };
  // 16 sequences that read 300 blocks a step each.
  const double load = kBlockBytes / 50e9;
  const Case cases[] = {
      {"everything fits", 100000, {4e-3, 2e-4, load}, 0.2},
      {"a third fits", 2400, {4e-3, 2e-4, load}, 0.2},
      {"most fit", 4500, {4e-3, 2e-4, load}, 0.2},
      {"the link is slow", 2400, {4e-3, 2e-4, 8 * load}, 0.2},
      {"the link is fast", 2400, {4e-3, 2e-4, load / 4}, 0.2},
      {"the model is large", 2400, {4e-2, 2e-4, load}, 0.2},
      {"loads cost next to nothing", 1200, {2e-2, 1e-4, load / 1000}, 0.2},
      {"blocks hardly change", 3000, {4e-3, 2e-4, load}, 0.02},
      {"blocks change a lot", 3000, {4e-3, 2e-4, load}, 0.6},
  };
  for (const Case& c : cases) {
    if (one.skips()) continue;
    INFO(c.what);
    double best = 0, worst = 1e300;
    for (size_t n = 1; n <= 16; ++n) {
      const double rate = Play(16, 300, c.slots, c.line, c.change).rate(nullptr, n, 400);
      best = std::max(best, rate);
      worst = std::min(worst, rate);
    }
    BatchControl control(16, false, kBlockBytes);
    const double rate = Play(16, 300, c.slots, c.line, c.change).rate(&control, 0, 400);
    CAPTURE(best, worst);
    CHECK(rate > 0.8 * best);
  }
}

TEST_CASE("a batch: the first always, no more than asked for, and a fixed window fits",
          "[batch_control]") {
  std::mt19937 random(9);
  for (int round = 0; round < 2000; ++round) {
    const size_t n = random() % 12;
    std::vector<WindowSets> sets(n);
    for (WindowSets& s : sets) {
      int64_t size = random() % 5000;
      for (int64_t& v : s) v = size, size -= random() % (size + 1);
    }
    const int64_t slots = 1 + random() % 20000;
    const size_t most = 1 + random() % 12;
    const bool fixed = random() % 2;
    BatchControl control(1 + static_cast<int>(random() % 64), fixed, kBlockBytes);
    for (int i = random() % 4; i > 0; --i)
      control.observe(1 + random() % 8, random() % 9000, 1e-3 * (random() % 50));
    const Batch batch = control.choose(sets, most, [&](size_t) { return slots; });
    CHECK(batch.members.empty() == sets.empty());
    if (sets.empty()) continue;
    REQUIRE(batch.members.front() == 0);
    REQUIRE(batch.members.size() <= most);
    REQUIRE(std::is_sorted(batch.members.begin(), batch.members.end()));
    int64_t sum = 0;
    for (const size_t m : batch.members) sum += sets[m][0];
    if (fixed && batch.members.size() > 1) REQUIRE(sum <= slots);
    if (fixed) REQUIRE(batch.working_set == sum);
  }
}
