// Requests that begin alike, for a model with recurrent layers: the common part is read once, and
// every answer is that of a session of its own.
#pragma once
#include "tests/engine/schedule/scheduled.h"

namespace riffle::test {

// o: for several sessions, with a prefill chunk that divides 640.
inline void check_scheduled_states(const ContextOptions& o, const std::string& model) {
  const auto known = [](std::vector<int32_t> tokens) {  // tokens of the tiny models
    for (int32_t& t : tokens) t = 20 + t % 280;
    return tokens;
  };
  const std::vector<int32_t> document = known(some_tokens(640, 50));
  std::vector<Ask> asks;
  for (int i = 0; i < 5; ++i) {
    asks.push_back(ask(30 + 17 * i, 60 + i, 12, i % 2 == 0 ? 0.f : 0.9f));
    std::vector<int32_t>& prompt = asks.back().prompt;
    prompt = known(prompt);
    prompt.insert(prompt.begin(), document.begin(), document.end());
  }
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(o, a, model));
  Runtime r(o, model);
  {
    Run run(r, defaults());
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) {
      INFO("request " << i);
      const Got& got = run.got[i + 1];
      check_same(got, want[i]);
      CHECK(got.tokens.size() == 12);
      if (i == 0) CHECK(got.reused == 0);
      else CHECK(got.reused / document.size() == 1);  // some_tokens begins with the same token
    }
  }
  const Stats stats = r.stats();
  CHECK(stats.host_kv_bytes == 0);
  CHECK(stats.prefill_tokens < 2 * document.size());
}

}  // namespace riffle::test
