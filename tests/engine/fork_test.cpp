// Forked sessions on the CPU devices: same bits as sessions of their own, blocks held once.
#include "tests/engine/forks.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions small(SelectorKind selector, int64_t slots) {
  ContextOptions o = small_options(selector, 512);
  o.n_threads = usual_threads();
  if (slots) o.device = DeviceKind::EMU, o.slots = slots;
  return o;
}

riffle_session* fork(Runtime& r, riffle_session* from, size_t n) {
  r.sessions.push_back(nullptr);
  r.check(riffle_session_fork(from, n, &r.sessions.back()));
  return r.sessions.back();
}

}  // namespace

TEST_CASE("a fork goes on as a session that read the same by itself", "[fork]") {
  OneIn one(3);
  for (SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::TWILIGHT,
             SelectorKind::TOKENSELECT, SelectorKind::SHARE}))
    for (const int64_t slots : {0, 16 + 7, 16 * 4}) {
      if (one.skips()) continue;
      if (!all_rounds() && slots == 16 * 4) continue;
      INFO("selector " << selector << ", " << slots << " slots");
      fork_cases(small(selector, slots), true);
    }
}

TEST_CASE("random histories of forked sessions are those of sessions of their own", "[fork]") {
  const int moves = all_rounds() ? 40 : 20;
  uint32_t seed = 0;
  for (SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TWILIGHT,
                                     SelectorKind::TOKENSELECT, SelectorKind::SHARE}))
    for (const int64_t slots : {0, 16 * 2 + 9, 16 * 8}) {
      ContextOptions o = small(selector, slots);
      if (seed % 2) o.evict = EvictRule::FIFO;
      INFO("selector " << selector << ", " << slots << " slots");
      Forks(o, ++seed).play(moves);
    }
  ContextOptions o = small(psa_or_share(), 160);
  o.pool_per_layer = true;
  Forks(o, ++seed).play(moves);
}

TEST_CASE("forks that read the same blocks in one step load them once", "[fork]") {
  ContextOptions o = small(SelectorKind::DENSE, 16 * 40);
  // The owner of the pool grants slots. In a pool that its readers manage, rows that miss the same
  // block in one step each take a slot, as on a GPU; from the next step on they find it.
  const bool granted = GENERATE(false, true);
  if (granted) o.evict = EvictRule::FIFO;
  Runtime r(o);
  riffle_session* s[3] = {r.session()};
  const auto prompt = some_tokens(16 * 12, 1);
  r.check(riffle_prefill(s[0], prompt.data(), prompt.size(), nullptr, nullptr));
  const uint64_t block = 16 * 4096;  // one block of all 8 layers and 2 heads
  CHECK(host_kv_bytes(r) == 12 * block);
  s[1] = fork(r, s[0], prompt.size());
  s[2] = fork(r, s[0], 16 * 8);
  CHECK(host_kv_bytes(r) == 12 * block);
  const int32_t next[3] = {500, 600, 700};
  r.check(riffle_step(r.context, s, next, 3));
  const Stats stats = r.stats();
  CHECK(stats.pool_lookups == (12 + 12 + 8) * 16);
  CHECK(stats.host_kv_bytes == (12 + 3) * block);
  CHECK(stats.loaded_bytes == (stats.pool_lookups - stats.pool_hits) * block / 16);
  if (granted) CHECK(stats.pool_hits == (12 + 8) * 16);
  r.check(riffle_step(r.context, s, next, 3));
  CHECK(r.stats().pool_hits - stats.pool_hits == stats.pool_lookups);
  CHECK(r.stats().loaded_bytes == stats.loaded_bytes);
}

TEST_CASE("what cannot be forked is refused, and changes nothing", "[fork]") {
  Runtime r(small(psa_or_share(), 0));
  riffle_session *s = r.session(), *none = s;
  const auto prompt = some_tokens(100, 1);
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  CHECK(riffle_session_fork(s, 101, &none) == RIFFLE_BAD_ARGUMENT);
  CHECK(none == nullptr);
  CHECK(std::string(riffle_context_error(r.context)).find("100") != std::string::npos);
  CHECK(riffle_session_fork(s, SIZE_MAX, &none) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_session_fork(s, 10, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_session_fork(nullptr, 0, &none) == RIFFLE_BAD_ARGUMENT);
  r.check(riffle_step(r.context, &s, &prompt[2], 1));
  riffle_session* fine = fork(r, s, 50);
  CHECK(riffle_session_length(fine) == 50);
  CHECK(riffle_step(r.context, &fine, &prompt[3], 1) == RIFFLE_OK);
}
