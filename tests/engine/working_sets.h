// Decodes several sequences and holds the working sets that the engine reports against unions of
// the blocks that its row reports list.
#pragma once
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <vector>

#include "engine/engine.h"
#include "model/model.h"
#include "tests/engine/test_model.h"

namespace riffle::test {

struct WorkingSetPlay {
  ContextOptions options;
  int window = 5;
  bool reports = true, coverage = false;
  int turns = 44;
  // A step fails in this layer, when it is reported, and is tried again; -1: none does.
  int fails_in_layer = -1;
};

inline ResolvedOptions planned(const Model& model, const ContextOptions& options) {
  ResolvedOptions resolved = resolve_options(model.config, options);
  MemoryPlan plan{};
  plan_memory(model, resolved, plan);
  return resolved;
}

// Three sequences, of which not all are in every step, are cut and prefilled meanwhile, and
// counting is changed and interrupted. Returns the working set of each sequence after each
// turn.
class WorkingSetRun {
 public:
  WorkingSetRun(const Model& model, const WorkingSetPlay& play)
      : play_(play), engine_(model, planned(model, play.options)) {
    const Config& c = model.config;
    for (int layer = 0; layer < c.n_layers; ++layer) {
      first_row_.push_back(rows_);
      rows_ += c.kv_heads(layer);
    }
    first_row_.push_back(rows_);
    vocab_ = c.vocab_size;
  }
  ~WorkingSetRun() {
    for (auto& one : all_) engine_.destroy(*one->sequence);
  }

  std::vector<int64_t> run() {
    for (int n : {700, 270, 80}) begin(n);
    count(play_.window);
    std::vector<int64_t> out;
    for (int turn = 0; turn < play_.turns; ++turn) {
      INFO("turn " << turn);
      if (turn == 11) cut(0, 1);  // inside a block, at the place of a step that was
      if (turn == 14) cut(1, 100);
      if (turn == 17) prefill(2, 1);  // one token, as a step would
      if (turn == 18) prefill(0, 40);
      if (turn == 24) count(play_.window + 3);
      if (turn == 34) count(0);
      if (turn == 36) count(1);
      if (turn == 40) count(play_.window);
      std::vector<int> who{0};
      if (turn % 2 == 0 || turn > 37) who.push_back(1);
      if (turn % 3 == 0) who.push_back(2);
      if (play_.fails_in_layer >= 0 && turn % 7 == 5) fail({0});
      step(who);
      for (const auto& one : all_) out.push_back(size_of(*one->sequence));
    }
    CHECK(compared_ > 0);
    return out;
  }

 private:
  using Blocks = std::vector<std::set<int32_t>>;  // [row]
  struct One {
    std::unique_ptr<Sequence> sequence;
    std::vector<Blocks> steps,
        failed;  // reads since counting began; reads of failed attempts at the same steps
    std::vector<RowSets> reported;  // [row], of the last step
    Blocks now;
    uint32_t token = 0;
  };
  struct Failure : std::runtime_error {
    Failure() : std::runtime_error("a report that fails") {}
  };

  // Returns the size over the whole window; -1: there is none.
  static int64_t size_of(const Sequence& s) { return s.working_sets ? (*s.working_sets)[0] : -1; }

  void begin(int n) {
    all_.push_back(std::make_unique<One>());
    all_.back()->sequence = engine_.create();
    CHECK(size_of(*all_.back()->sequence) == -1);
    prefill(static_cast<int>(all_.size()) - 1, n);
  }
  void forget(One& one) {
    one.steps.clear();
    one.failed.clear();
  }
  void count(int window) {
    window_ = window;
    engine_.set_working_set(window);
  }
  void cut(int i, int64_t n) {
    Sequence& s = *all_[i]->sequence;
    engine_.truncate(s, s.kv.n_tokens - n);
    CHECK(size_of(s) == -1);
    forget(*all_[i]);
  }
  void prefill(int i, int n) {
    Sequence& s = *all_[i]->sequence;
    std::vector<int32_t> tokens = some_tokens(n, 60 + i);
    for (int32_t& t : tokens) t %= vocab_;
    engine_.prefill(s, tokens, nullptr, {});
    CHECK(size_of(s) == -1);
    forget(*all_[i]);
  }

  void attempt(const std::vector<int>& who, int fails_in_layer) {
    std::vector<Sequence*> sequences;
    std::vector<int32_t> tokens, sampled(who.size());
    std::map<const Sequence*, One*> of;
    for (int i : who) {
      One& one = *all_[i];
      sequences.push_back(one.sequence.get());
      tokens.push_back((400 + static_cast<int32_t>((one.token * 37 + i * 11) % 5000)) % vocab_);
      of[one.sequence.get()] = &one;
      one.now.assign(rows_, {});
      one.reported.assign(rows_, {-1});
    }
    const auto see = [&](const riffle_session*, const Sequence& s, int layer, int head,
                         const RowReport& r) {
      One& one = *of.at(&s);
      const int row = first_row_[layer] + head;
      one.now[row].insert(r.blocks, r.blocks + r.n_read);
      REQUIRE(static_cast<int>(one.now[row].size()) == r.n_read);
      one.reported[row] = r.working_sets;
      if (layer == fails_in_layer && row + 1 == first_row_[layer + 1]) throw Failure();
    };
    if (play_.reports) engine_.set_row_report(see, play_.coverage);
    engine_.step(sequences, tokens, nullptr, sampled.data());
  }

  void fail(const std::vector<int>& who) {
    const int64_t before = size_of(*all_[who[0]]->sequence),
                  length = all_[who[0]]->sequence->kv.n_tokens;
    CHECK_THROWS_AS(attempt(who, play_.fails_in_layer), Failure);
    CHECK(size_of(*all_[who[0]]->sequence) == before);
    REQUIRE(all_[who[0]]->sequence->kv.n_tokens == length);
    for (int i : who) failed_[i] = all_[i]->now;
  }

  void step(const std::vector<int>& who) {
    attempt(who, -1);
    for (int i : who) {
      One& one = *all_[i];
      ++one.token;
      if (window_ != windows_[i]) forget(one);
      windows_[i] = window_;
      one.steps.push_back(one.now);
      one.failed.push_back(failed_.count(i) ? failed_[i] : Blocks(rows_));
      failed_.erase(i);
      compare(i);
    }
  }

  void compare(int i) {
    const One& one = *all_[i];
    INFO("sequence " << i << " of " << one.sequence->kv.n_tokens << " tokens, window " << window_);
    if (window_ == 0) {
      CHECK(size_of(*one.sequence) == -1);
      return;
    }
    if (!play_.reports) {
      ++compared_;
      CHECK(size_of(*one.sequence) > 0);
      return;
    }
    for (int k = 0; k < kWindows; ++k)
      CHECK(compare_window(one, k) == (*one.sequence->working_sets)[k]);
    ++compared_;
  }
  // Reports of one window against unions; their sum.
  int64_t compare_window(const One& one, int k) {
    const int window = window_steps(window_, k);
    INFO("steps " << window);
    int64_t sum = 0, wrong = 0;
    const size_t n = one.steps.size(), first = n > size_t(window) ? n - window : 0;
    for (int row = 0; row < rows_; ++row) {
      std::set<int32_t> all, most;
      for (size_t t = first; t < n; ++t) {
        all.insert(one.steps[t][row].begin(), one.steps[t][row].end());
        most.insert(one.failed[t][row].begin(), one.failed[t][row].end());
      }
      most.insert(all.begin(), all.end());
      const int32_t got = one.reported[row][k];
      sum += got;
      if (got >= static_cast<int32_t>(all.size()) && got <= static_cast<int32_t>(most.size()))
        continue;
      if (wrong++ == 0)
        WARN("row " << row << ": " << got << " blocks reported, " << all.size() << " to "
                    << most.size() << " expected");
    }
    CHECK(wrong == 0);
    return sum;
  }

  WorkingSetPlay play_;
  Engine engine_;
  int rows_ = 0, vocab_ = 0, window_ = 0;
  std::vector<int> first_row_;  // [layer], and at the end the number of all rows
  int64_t compared_ = 0;
  std::vector<std::unique_ptr<One>> all_;
  std::map<int, Blocks> failed_;
  std::map<int, int> windows_;
};

inline std::vector<int64_t> play(const Model& model, const WorkingSetPlay& p) {
  return WorkingSetRun(model, p).run();
}

}  // namespace riffle::test
