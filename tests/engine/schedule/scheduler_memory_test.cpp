// Host memory that does not hold what all requests want.
#include "tests/engine/schedule/scheduled.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("scheduler: requests wait or begin again where host memory is short",
          "[scheduler][memory]") {
  check_short_memory([](SelectorKind selector, bool pool) {
    ContextOptions o = base(selector);
    if (pool) o.device = DeviceKind::EMU, o.slots = 600;
    return o;
  });
}

TEST_CASE("scheduler: one that began again can be cancelled, and shows nothing twice",
          "[scheduler][memory]") {
  ContextOptions o = base();
  o.n_ctx = 1024;
  o.host_mem = full_session_bytes(o);
  const Ask first = ask(300, 1, 700), second = ask(300, 2, 700, 0.8f);
  const Got want = alone(o, second);
  Runtime r(o);
  Run run(r, defaults());
  run.submit(first);
  run.submit(second);
  bool began_again = false;
  while (!began_again) {
    REQUIRE(run.got[1].ends == 0);
    run.step();
    began_again = run.got[2].tokens.size() > 0 && run.iterations.back().n_waiting == 1;
  }
  const size_t shown = run.got[2].tokens.size();
  run.r.check(riffle_scheduler_cancel(run.scheduler, 2));
  CHECK(run.got[2].result.finish == RIFFLE_FINISH_ABORTED);
  CHECK(run.got[2].result.n_tokens == static_cast<int32_t>(shown));
  CHECK(std::equal(run.got[2].tokens.begin(), run.got[2].tokens.end(), want.tokens.begin()));
  run.finish();
  CHECK(run.got[1].ends == 1);
  CHECK(run.got[1].status == RIFFLE_OK);
}

TEST_CASE("scheduler: beginnings in common outlive a shortage of memory",
          "[scheduler][memory][prefix]") {
  ContextOptions o = base();
  o.n_ctx = 1024;
  o.host_mem = full_session_bytes(o);
  const std::vector<int32_t> document = some_tokens(300, 50);
  const auto about = [&](int more, uint32_t seed) {
    Ask a = ask(more, seed, 2);
    a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
    return a;
  };
  const auto play = [&](const std::vector<Ask>& asks) {
    Runtime r(o);
    SchedulerOptions so = defaults();
    so.max_seqs = 4;
    Run run(r, so);
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) {
      INFO("request " << i);
      check_same(run.got[i + 1], alone(o, asks[i]));
    }
    return run.got;
  };
  // The third does not fit next to the first, which grows. The second is finished by then and is
  // not given up for it.
  auto got = play({ask(20, 1, 600), about(1, 2), about(450, 3)});
  CHECK(got[3].reused >= document.size());
  // The third does not fit next to the first even without the second, which the last one needs.
  got = play({ask(380, 1, 40), about(1, 2), ask(640, 3, 2), about(20, 4)});
  CHECK(got[3].began > got[1].began);
  CHECK(got[4].reused >= document.size());
}

TEST_CASE("scheduler: prompts on several documents by turns read each of them once",
          "[scheduler][memory][prefix]") {
  ContextOptions o = base();
  for (const bool limited : {true, false}) {
    o.n_ctx = 1024;
    o.host_mem = limited ? 4 * full_session_bytes(base()) : 0;
    Runtime r(o);
    SchedulerOptions so = defaults();
    so.max_seqs = 1;
    Run run(r, so);
    for (uint32_t i = 0; i < 9; ++i) {
      Ask a = ask(20, 70 + i, 2);
      const std::vector<int32_t> document = some_tokens(300, 50 + i % 3);
      a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
      run.submit(a);
    }
    run.finish();
    for (uint64_t id = 1; id <= 9; ++id) {
      INFO("request " << id << ", limited " << limited);
      CHECK(run.got[id].status == RIFFLE_OK);
      // Without a limit no more than max_seqs hold KV.
      CHECK(run.got[id].reused >= (limited && id > 3 ? 300u : 0u));
      if (!limited || id <= 3) CHECK(run.got[id].reused == 0);
    }
    CHECK(host_kv_bytes(r) == 0);
  }
}

TEST_CASE("what would exceed host_mem is an error and changes nothing", "[memory]") {
  ContextOptions o = base();
  o.n_ctx = 1024;
  o.host_mem = full_session_bytes(o) * 3 / 2;
  Runtime r(o), free(base());
  riffle_session *a = r.session(), *b = r.session(), *alone = free.session();
  const auto prompt = some_tokens(900, 1), other = some_tokens(800, 2), small = some_tokens(200, 3),
             steps = some_tokens(8, 4);
  r.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  const uint64_t held = host_kv_bytes(r);
  CHECK(riffle_prefill(b, other.data(), other.size(), nullptr, nullptr) == RIFFLE_OUT_OF_MEMORY);
  CHECK(std::string(riffle_context_error(r.context)).find("host-mem") != std::string::npos);
  CHECK(host_kv_bytes(r) == held);
  CHECK(riffle_session_length(b) == 0);
  r.check(riffle_prefill(b, small.data(), small.size(), nullptr, nullptr));
  free.check(riffle_prefill(alone, small.data(), small.size(), nullptr, nullptr));
  CHECK(r.logits(b) == free.logits(alone));
  for (const int32_t t : steps) {
    r.check(riffle_step(r.context, &b, &t, 1));
    free.check(riffle_step(free.context, &alone, &t, 1));
    CHECK(r.logits(b) == free.logits(alone));
  }
  CHECK(host_kv_bytes(r) <= o.host_mem);
}

TEST_CASE("host_mem is part of the memory plan", "[limits][context][memory]") {
  ContextOptions o = options();
  Runtime r(o);
  const auto planned = [&](MemoryPlan& plan) {
    plan = {};
    char err[512] = "";
    const riffle_status status = plan_memory(r.model, &o, &plan, err, sizeof err);
    return std::make_pair(status, std::string(err));
  };
  MemoryPlan plan;
  o.n_ctx = 8192;
  REQUIRE(planned(plan).first == RIFFLE_OK);
  const uint64_t full = plan.host_kv;
  o.host_mem = full;
  o.n_sessions = 200;  // they share it
  CHECK(planned(plan).first == RIFFLE_OK);
  o.host_mem = full - 1;
  const auto [status, text] = planned(plan);
  INFO(text);
  CHECK(status == RIFFLE_OUT_OF_MEMORY);
  CHECK(text.find("host-mem is ") != std::string::npos);
  CHECK(text.find(std::to_string(full)) != std::string::npos);
  // A default length gives way: to the longest multiple of 1024 tokens.
  o.n_ctx = 0;
  CHECK(planned(plan).first == RIFFLE_OK);
  CHECK(plan.n_ctx == 7168);
  CHECK(plan.host_kv <= o.host_mem);
  CHECK(std::string(plan.context_note).find("host-mem") != std::string::npos);
}
