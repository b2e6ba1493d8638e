// Many requests whose steps compute tokens ahead: the texts are those that each gives alone
// without.
#include "tests/engine/lookups.h"
#include "tests/engine/schedule/scheduled.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

static std::vector<Ask> quoting_asks() {
  std::vector<Ask> asks = {ask(700, 1, 24), ask(65, 2, 40, 0.9f), ask(3, 4, 30), ask(130, 7, 0)};
  for (int i = 0; i < 4; ++i) {
    asks.push_back(ask(1, 20 + i, 40 + 7 * i, i == 2 ? 0.7f : 0));
    asks.back().prompt = quoting_prompt(31 + i, 40 + 9 * i);
  }
  asks[4].options.ignore_eos = false;
  return asks;
}

TEST_CASE("scheduler: texts are the same with tokens computed ahead", "[scheduler][lookup]") {
  const std::vector<Ask> asks = quoting_asks();
  for (const SelectorKind selector : here({SelectorKind::SHARE, SelectorKind::PSA})) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(base(selector), a));
    struct Variant {
      int slots, max_tokens, lookup;
    };
    for (const Variant& v : {Variant{0, 0, 8}, Variant{300, 0, 15}, Variant{900, 5, 8}}) {
      INFO("selector " << selector << ", " << v.slots << " slots, " << v.max_tokens << " tokens");
      ContextOptions o = base(selector);
      o.lookup = v.lookup;
      if (v.slots) o.device = DeviceKind::EMU, o.slots = v.slots;
      Runtime r(o);
      SchedulerOptions so = defaults();
      so.max_tokens = v.max_tokens;
      Run run(r, so);
      for (const Ask& a : asks) run.submit(a);
      uint64_t computed = 0;
      for (bool more = true; more;) {
        more = run.step();
        const Stats s = r.stats();
        const uint64_t now = s.decode_tokens + s.lookup_proposed - s.lookup_accepted;
        if (v.max_tokens) CHECK(now - computed <= static_cast<uint64_t>(v.max_tokens));
        computed = now;
        REQUIRE(run.iterations.size() < 20000);
      }
      int64_t stepped = 0;
      for (const Iteration& it : run.iterations) stepped += it.decode_rows;
      for (size_t i = 0; i < asks.size(); ++i) {
        INFO("request " << i);
        check_same(run.got[i + 1], want[i]);
      }
      const Stats s = r.stats();
      CHECK(stepped == static_cast<int64_t>(s.decode_tokens - s.lookup_accepted));
      CHECK(s.lookup_accepted > 5);
      CHECK(s.lookup_accepted < s.lookup_proposed);
    }
  }
}

TEST_CASE("scheduler: a request that begins again computes ahead and gives the same text",
          "[scheduler][lookup]") {
  const std::vector<Ask> asks = quoting_asks();
  ContextOptions o = base(psa_or_share());
  o.n_ctx = 800;
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(o, a));
  o.lookup = 8;
  o.host_mem = full_session_bytes(o);
  Runtime r(o);
  Run run(r, defaults());
  for (const Ask& a : asks) run.submit(a);
  run.finish();
  for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
  CHECK(r.stats().lookup_accepted > 5);
}
