// Logits that are asked for late, against those of sessions that are asked after each step.
#pragma once
#include <catch2/catch.hpp>
#include <memory>
#include <stdexcept>
#include <vector>

#include "import/load_model.h"
#include "tests/engine/steps.h"
#include "tests/engine/working_sets.h"

namespace riffle::test {

// Three sessions, of which not all are in every step. Each is asked for its logits only at the end
// of some turns, and what it has answered stays as it is while others step.
inline void check_late_logits(const ContextOptions& o) {
  constexpr int kSessions = 3, kTurns = 24;
  Runtime late(o), soon(o);
  riffle_session *a[kSessions], *b[kSessions];
  std::vector<float> want[kSessions];
  const float* told[kSessions] = {};
  for (int i = 0; i < kSessions; ++i) {
    const auto prompt = some_tokens(60 + 90 * i, 20 + i);
    a[i] = late.session(prompt);
    b[i] = soon.session(prompt);
    want[i] = soon.logits(b[i]);
  }
  const auto check = [&](int i) {
    told[i] = riffle_logits(a[i]);
    REQUIRE(told[i]);
    CHECK(same_bits({{told[i], told[i] + late.vocab_size()}}, {want[i]}));
  };
  for (int turn = 0; turn < kTurns; ++turn) {
    INFO("turn " << turn);
    std::vector<riffle_session*> who, twins;
    std::vector<int32_t> tokens;
    for (int i = 0; i < kSessions; ++i) {
      if (turn % (i + 1) != 0) continue;
      who.push_back(a[i]), twins.push_back(b[i]);
      tokens.push_back(400 + 10 * turn + i);
      told[i] = nullptr;
    }
    late.check(riffle_step(late.context, who.data(), tokens.data(), who.size()));
    soon.check(riffle_step(soon.context, twins.data(), tokens.data(), twins.size()));
    for (int i = 0; i < kSessions; ++i)
      if (turn % (i + 1) == 0) want[i] = soon.logits(b[i]);
    for (int i = 0; i < kSessions; ++i)
      if (told[i]) CHECK(same_bits({{told[i], told[i] + late.vocab_size()}}, {want[i]}));
    if (turn % 5 == 4) check(turn / 5 % kSessions);
    if (turn == 11) {  // a prompt of another session between two steps, and one of its own
      const auto more = some_tokens(40, 7);
      late.check(riffle_prefill(a[2], more.data(), more.size(), nullptr, nullptr));
      soon.check(riffle_prefill(b[2], more.data(), more.size(), nullptr, nullptr));
      want[2] = soon.logits(b[2]);
      told[2] = nullptr;
    }
    if (turn == 17) {  // a session that ends while its logits are on the device
      riffle_session* const fork = late.session();
      const auto prompt = some_tokens(30, 8);
      late.check(riffle_prefill(fork, prompt.data(), prompt.size(), nullptr, nullptr));
      const int32_t token = 500;
      late.check(riffle_step(late.context, &fork, &token, 1));
      riffle_session_free(fork);
      late.sessions.pop_back();
    }
  }
  for (int i = 0; i < kSessions; ++i) check(i);
}

// A step that fails leaves the logits of the step before, though nobody has asked for them.
inline void check_logits_of_failed_step(const ContextOptions& options) {
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = options;
  o.n_sessions = 2;
  Engine engine(*model, planned(*model, o));
  std::unique_ptr<Sequence> s[2] = {engine.create(), engine.create()};
  Sequence* const both[] = {s[0].get(), s[1].get()};
  for (int i = 0; i < 2; ++i) engine.prefill(*s[i], some_tokens(80 + 50 * i, 3 + i), nullptr, {});
  const auto step = [&](int32_t token) {
    const int32_t tokens[] = {token, token + 1};
    engine.step(both, tokens);
  };
  for (int32_t token : {400, 410, 420}) step(token);
  const bool ask_before = GENERATE(false, true);
  std::vector<std::vector<float>> want, got;
  const auto keep = [&](std::vector<std::vector<float>>& to) {
    for (Sequence* each : both) {
      const auto row = engine.logits(*each);
      to.emplace_back(row.begin(), row.end());
    }
  };
  if (ask_before) keep(want);
  engine.set_row_report([](const riffle_session*, const Sequence&, int, int,
                           const RowReport&) { throw std::runtime_error("a report that fails"); },
                        false);
  CHECK_THROWS_AS(step(430), std::runtime_error);
  engine.set_row_report({}, false);
  keep(got);
  if (ask_before) CHECK(same_bits(got, want));
  // The same step again, and the same steps in sequences in which none has failed.
  step(430);
  std::vector<std::vector<float>> after, expected;
  keep(after);
  for (int i = 0; i < 2; ++i) {
    const auto twin = engine.create();
    Sequence* const one[] = {twin.get()};
    engine.prefill(*twin, some_tokens(80 + 50 * i, 3 + i), nullptr, {});
    for (int32_t token : {400, 410, 420}) {
      const int32_t next = token + i;
      engine.step(one, {&next, 1});
    }
    const auto before = engine.own_logits(*twin);
    CHECK(same_bits({got[i]}, {{before.begin(), before.end()}}));
    const int32_t next = 430 + i;
    engine.step(one, {&next, 1});
    const auto row = engine.logits(*twin);
    expected.emplace_back(row.begin(), row.end());
    engine.destroy(*twin);
  }
  CHECK(same_bits(after, expected));
  for (Sequence* each : both) engine.destroy(*each);
}

}  // namespace riffle::test
