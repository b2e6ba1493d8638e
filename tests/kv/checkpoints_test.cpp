// The lengths after which a sequence keeps the states of its recurrent layers.
#include "kv/checkpoints.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

using namespace riffle;

namespace {

std::vector<int64_t> kept(std::vector<Checkpoint>& all, int64_t n, int most) {
  Checkpoints::choose(all, n, most);
  std::erase_if(all, [](const Checkpoint& c) { return !c.keep; });
  std::vector<int64_t> lengths;
  for (const Checkpoint& c : all) lengths.push_back(c.n_tokens);
  return lengths;
}

// Returns how many tokens a cut to `to` reads again.
int64_t read_again(const std::vector<int64_t>& lengths, int64_t to) {
  int64_t best = 0;
  for (const int64_t length : lengths)
    if (length <= to) best = std::max(best, length);
  return to - best;
}

}  // namespace

TEST_CASE("checkpoints: the grid lists the lengths that are on it", "[kv][states]") {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const int64_t n = 1 + random() % (i % 2 ? 3000 : 300000), n0 = random() % n;
    std::vector<int64_t> want;
    for (int64_t m = Checkpoints::kApart; m < n; m += Checkpoints::kApart)
      if (m > n0 && Checkpoints::on_grid(m, n)) want.push_back(m);
    CHECK(Checkpoints::grid(n0, n) == want);
  }
}

TEST_CASE("checkpoints: a length that leaves the grid never comes back", "[kv][states]") {
  for (int64_t m = Checkpoints::kApart; m < 20000; m += Checkpoints::kApart) {
    bool was = true;
    for (int64_t n = m + 1; n < 40000; n += 37) {
      const bool is = Checkpoints::on_grid(m, n);
      CHECK((was || !is));
      was = is;
    }
  }
}

TEST_CASE("checkpoints: a cut reads less than twice its distance again", "[kv][states]") {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const int64_t n = 1 + random() % (i % 2 ? 5000 : 1100000);
    std::vector<int64_t> lengths = Checkpoints::grid(0, n);
    lengths.push_back(n);
    CHECK(lengths.size() <= 16);
    for (int k = 0; k < 200; ++k) {
      const int64_t distance = k < 100 ? k * n / 100 : random() % n;
      INFO(n << " tokens, cut by " << distance);
      CHECK(read_again(lengths, n - distance) <
            std::max<int64_t>(Checkpoints::kApart, 2 * distance));
    }
  }
}

// Random histories of prompts, steps and cuts never keep more than the limit, or a state off the
// grid, and never drop the end or the newest turn. With the highest limit and before any cut, they
// keep what a sequence that had dropped nothing would keep.
TEST_CASE("checkpoints: histories keep what the rule wants, within the limit", "[kv][states]") {
  std::mt19937 random(3);
  int compared = 0;
  for (int i = 0; i < 100; ++i) {
    const int most =
        i % 3 == 0 ? Checkpoints::kMost : Checkpoints::kFewest + static_cast<int>(random() % 13);
    std::vector<Checkpoint> states, all;  // all: nothing was dropped
    bool uncut = most == Checkpoints::kMost;
    int64_t n = 0;
    std::vector<int64_t> turns;
    for (int event = 0; event < 40; ++event) {
      const unsigned what = random() % 4;
      if (what == 0 && !states.empty()) {  // a cut to one of them
        n = states[random() % states.size()].n_tokens;
        std::erase_if(states, [&](const Checkpoint& c) { return c.n_tokens > n; });
        turns.clear();  // older ones may be gone
        uncut = false;
      } else if (what == 1) {  // steps
        for (int k = 0; k < 300; ++k) {
          states.push_back({++n});
          all.push_back({n});
          kept(states, n, most);
          Checkpoints::choose(all, n, most);
        }
      } else {  // a prompt
        const int64_t from = n;
        n += 1 + random() % 5000;
        std::vector<int64_t> lengths = Checkpoints::grid(from, n);
        const int64_t lead = n - Checkpoints::kLead;
        if (lead > from) lengths.push_back(lead);
        std::sort(lengths.begin(), lengths.end());
        lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
        for (const int64_t m : lengths)
          states.push_back({m, m == lead ? Checkpoint::LEAD : Checkpoint::OTHER});
        states.push_back({n, Checkpoint::TURN});
        const auto of_prompt = std::find_if(states.begin(), states.end(),
                                            [&](const Checkpoint& c) { return c.n_tokens > from; });
        all.insert(all.end(), of_prompt, states.end());
        turns.push_back(n);
      }
      const std::vector<int64_t> lengths = kept(states, n, most);
      CHECK(static_cast<int>(lengths.size()) <= most);
      if (n == 0) continue;
      CHECK(lengths.back() == n);
      if (uncut) {
        Checkpoints::choose(all, n, most);
        std::vector<int64_t> want;
        for (const Checkpoint& c : all)
          if (c.keep) want.push_back(c.n_tokens);
        CHECK(lengths == want);
        ++compared;
      }
      if (!turns.empty())
        CHECK(std::find(lengths.begin(), lengths.end(), turns.back()) != lengths.end());
      for (const Checkpoint& c : states)
        CHECK((c.kind != Checkpoint::OTHER || c.n_tokens == n ||
               Checkpoints::on_grid(c.n_tokens, n)));
    }
  }
  CHECK(compared > 100);
}

TEST_CASE("checkpoints: requests of a batch keep turns, their end and lengths near it",
          "[kv][states]") {
  std::vector<Checkpoint> states;
  for (const int64_t m : Checkpoints::grid(0, 20000)) states.push_back({m});
  states.push_back({19990, Checkpoint::TURN});
  states.push_back({20000});
  CHECK(kept(states, 20000, Checkpoints::kOfRequest) ==
        std::vector<int64_t>{18432, 19456, 19712, 19968, 19990, 20000});
}
