// Selectors that rank blocks (psa, topk), in whole runs: read at their most generous they are
// dense, and neither a change of digests nor tokens computed ahead change what they read.
#include <cmath>

#include "tests/engine/lookups.h"
#include "tests/engine/steps.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("digests rebuilt on held KV are those of a session made with them", "[invariance]") {
  const auto prompt = some_tokens(1100, 27), steps = some_tokens(20, 28);
  for (BlockDigest digest : {BlockDigest::MEAN, BlockDigest::QUEST})
    for (StopRule stop : {StopRule::PAPER, StopRule::VETO}) {
      ContextOptions o = selective(SelectorKind::PSA);
      o.selection.epsilon = 0.6f;
      Runtime changed(o);
      riffle_session* s = changed.session(prompt);
      o.selection.digest = digest;
      o.selection.stop = stop;
      changed.check(set_selection(changed.context, &o.selection));
      Runtime made(o);
      riffle_session* t = made.session(prompt);
      for (int32_t token : steps) {
        changed.check(riffle_step(changed.context, &s, &token, 1));
        made.check(riffle_step(made.context, &t, &token, 1));
        REQUIRE(changed.logits(s) == made.logits(t));
      }
    }
}

TEST_CASE("psa at epsilon 1 is dense", "[invariance][arithmetic]") {
  const auto prompt = some_tokens(900, 5), steps = some_tokens(5, 6);
  Runtime r(selective(SelectorKind::DENSE));
  const auto dense = run(r, r.session(), prompt, steps);
  Selection s = selective(SelectorKind::PSA).selection;
  s.epsilon = 1;
  r.check(set_selection(r.context, &s));
  CHECK(same_bits(run(r, r.session(), prompt, steps), dense));
  s = selective(SelectorKind::PSA).selection;
  s.epsilon = 0.5f;
  s.dense_layers = 1000;
  r.check(set_selection(r.context, &s));
  CHECK(same_bits(run(r, r.session(), prompt, steps), dense));
}

TEST_CASE("topk at budget 1 is dense in another order of blocks", "[invariance][arithmetic]") {
  const auto prompt = some_tokens(900, 5), steps = some_tokens(5, 6);
  ContextOptions o = selective(SelectorKind::DENSE);
  o.kv_type = KvKind::F32;  // else a changed last bit may round an activation otherwise
  Runtime r(o);
  const auto dense = run(r, r.session(), prompt, steps);
  Selection s = selective(SelectorKind::TOPK).selection;
  s.budget = 1;
  r.check(set_selection(r.context, &s));
  const auto topk = run(r, r.session(), prompt, steps);
  for (size_t i = 0; i < dense.size(); ++i)
    for (size_t v = 0; v < dense[i].size(); ++v)
      REQUIRE(std::fabs(topk[i][v] - dense[i][v]) <= 1e-3f);
}

TEST_CASE("ranking by codes and the tests of psa see each token's own blocks",
          "[lookup][arithmetic]") {
  for (const StopRule stop : {StopRule::PAPER, StopRule::BOUND, StopRule::VETO})
    for (const RankBy rank : {RankBy::DIGESTS, RankBy::CODES}) {
      ContextOptions off = options();
      off.n_ctx = 1024;
      off.n_threads = usual_threads();
      off.selection.selector = SelectorKind::PSA;
      off.selection.microbatch = 4;
      off.selection.budget = 0.3f;
      off.selection.stop = stop;
      off.selection.rank = rank;
      ContextOptions on = off;
      on.lookup = 15;
      Runtime a(off), b(on);
      const auto prompt = quoting_prompt(31);
      CHECK(same_answer(answer(b, prompt, answer_of(60)), answer(a, prompt, answer_of(60))));
      CHECK(b.stats().lookup_accepted > 3);
    }
}

TEST_CASE("a selection that outgrows the pool is refused and the session goes on", "[limits]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.n_ctx = 1024;
  o.slots = 30;
  o.evict = EvictRule::FIFO;  // else its readers manage the pool, and none is too small
  o.selection.selector = SelectorKind::PSA;  // its microbatches must fit the pool
  o.selection.microbatch = 4;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(600, 1);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  const auto before = r.logits(s);
  Selection big = o.selection;
  big.microbatch = 64;
  r.check(set_selection(r.context, &big));
  CHECK(riffle_step(r.context, &s, &tokens[1], 1) == RIFFLE_NO_SLOT);
  CHECK_THAT(riffle_context_error(r.context), Catch::Contains("30 slots"));
  CHECK(riffle_session_length(s) == 600);
  CHECK(r.logits(s) == before);
  r.check(set_selection(r.context, &o.selection));
  r.check(riffle_step(r.context, &s, &tokens[1], 1));
}
