// Sessions of models with recurrent layers: tokens that are computed ahead, and conversations.
#pragma once
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kv/checkpoints.h"
#include "tests/engine/session_files.h"
#include "tests/engine/window_model.h"

namespace riffle::test {

using Tokens = std::vector<int32_t>;

inline uint64_t tokens_read(const Runtime& r) { return r.stats().prefill_tokens; }

inline void prefill_to(Runtime& r, riffle_session* s, const Tokens& tokens) {
  r.check(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr));
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Steps that choose the likeliest token.
inline Tokens answer(Runtime& r, riffle_session* s, int n) {
  Tokens out;
  for (int i = 0; i < n; ++i) {
    const std::vector<float> row = r.logits(s);
    out.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    r.check(riffle_step(r.context, &s, &out.back(), 1));
  }
  return out;
}

// Checks that tokens computed ahead, accepted or not, give the bits of single steps, and that cuts
// and forks after them do too.
inline void check_tokens_ahead(ContextOptions o, const std::string& model, int rounds) {
  Runtime plain(o, model);
  o.lookup = 5;
  Runtime ahead(o, model);
  const Tokens text = ids(0, 1000);
  Engine& engine = *ahead.context->engine;
  std::mt19937 random(3);
  riffle_session *const a = ahead.session(ids(0, 200)), *const b = plain.session(ids(0, 200));
  Sequence* const s = a->sequence.get();
  size_t at = 200;
  for (int round = 0; round < rounds; ++round) {
    INFO("round " << round);
    const auto n = std::min<size_t>(random() % 5, engine.room_ahead(*s));
    const size_t good = n == 0 ? 0 : random() % (n + 1);
    std::vector<Sequence*> rows;
    Tokens next;
    for (size_t i = 0; i <= n; ++i) {
      rows.push_back(s);
      next.push_back(i <= good ? text[at + i] : (text[at + i] + 1) % 320);
    }
    const auto step = [&] {
      riffle_session* one = b;
      plain.check(riffle_step(plain.context, &one, &text[at++], 1));
      REQUIRE(ahead.logits(a) == plain.logits(b));
    };
    engine.step(rows, next);
    step();
    int32_t sampled = 0;
    for (size_t i = 1; i <= good; ++i) {
      REQUIRE(engine.accept(*s, text[at], sampled));
      step();
    }
    if (n > good) CHECK_FALSE(engine.accept(*s, text[at], sampled));
    if (round % 20 == 9) {  // a fork takes the newest state, with tokens that were accepted
      riffle_session *const c = fork_at(ahead, a, at), *const d = fork_at(plain, b, at);
      go_on_alike(ahead, c, plain, d, ids(900, 905));
    }
    if (round % 20 != 19) continue;
    // A cut drops tokens that were computed ahead and wait to be accepted.
    engine.step(std::vector<Sequence*>{s, s}, Tokens{text[at], text[at + 1]});
    const size_t cut = riffle_session_reach(a, at - 15);
    CHECK(cut > 0);
    CHECK(riffle_session_reach(b, at - 15) == cut);
    ahead.check(riffle_session_truncate(a, cut));
    plain.check(riffle_session_truncate(b, cut));
    REQUIRE(riffle_session_length(b) == cut);
    at = cut;
  }
}

// 20 turns: the first reads 30,000 tokens, each later one only its question. Then the end of the
// text changes, and once an earlier question.
inline void check_conversation(ContextOptions o, const std::string& model) {
  o.n_ctx = 32768;
  Runtime r(o, model);
  riffle_session* const s = r.session();
  const Tokens text = ids(0, 1000);
  Tokens all;
  while (all.size() < 30000) all = joined(all, Tokens(text.begin(), text.begin() + 750));
  uint64_t read = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const size_t asked = all.size() - riffle_session_length(s);
    prefill_to(r, s, all);
    read += asked;
    CHECK(tokens_read(r) == read);
    // The same prompt again, as after an answer that was not liked, reads nothing.
    const std::vector<float> want = r.logits(s);
    const Tokens first = answer(r, s, 9);
    prefill_to(r, s, all);
    CHECK(tokens_read(r) == read);
    CHECK(r.logits(s) == want);
    CHECK(answer(r, s, 9) == first);
    all = joined(all, first);
    all = joined(all, Tokens(text.begin() + 10 * turn, text.begin() + 10 * turn + 17));
  }
  // A template that drops an answer's reasoning prints the end of its prompt differently: only
  // tokens near this end are read again.
  for (int turn = 0; turn < 5; ++turn) {
    prefill_to(r, s, all);
    answer(r, s, 20);
    const uint64_t before = tokens_read(r);
    all.resize(all.size() - 7);
    all = joined(all, Tokens(text.begin() + 20 * turn, text.begin() + 20 * turn + 30));
    prefill_to(r, s, all);
    CHECK(tokens_read(r) - before >= 30);
    CHECK(tokens_read(r) - before <= 30 + Checkpoints::kLead);
  }
  // An earlier question is asked differently: only what follows it is read.
  const uint64_t before = tokens_read(r);
  Tokens other(all.begin(), all.begin() + static_cast<int64_t>(all.size()) - 60);
  const size_t kept = riffle_session_reach(s, other.size());
  CHECK(kept + 100 > other.size());
  prefill_to(r, s, joined(other, ids(0, 5)));
  CHECK(tokens_read(r) - before == other.size() + 5 - kept);
}

}  // namespace riffle::test
