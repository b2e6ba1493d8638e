// Host memory that does not hold what all requests want.
#include "scheduled.h"

using namespace riffle::test;

TEST_CASE("scheduler: requests wait or begin again where host memory is short", "[scheduler][memory]") {
  check_short_memory([](riffle_selector selector, bool pool) {
    riffle_context_options o = base(selector);
    if (pool) o.device = RIFFLE_DEVICE_EMU, o.slots = 600;
    return o;
  });
}

TEST_CASE("scheduler: one that began again can be cancelled, and shows nothing twice", "[scheduler][memory]") {
  riffle_context_options o = base();
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

TEST_CASE("what would exceed host_mem is an error and changes nothing", "[memory]") {
  riffle_context_options o = base();
  o.n_ctx = 1024;
  o.host_mem = full_session_bytes(o) * 3 / 2;
  Runtime r(o), free(base());
  riffle_session *a = r.session(), *b = r.session(), *alone = free.session();
  const auto prompt = some_tokens(900, 1), other = some_tokens(800, 2), small = some_tokens(200, 3), steps = some_tokens(8, 4);
  r.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  const uint64_t held = host_kv_bytes(r);
  CHECK(riffle_prefill(b, other.data(), other.size(), nullptr, nullptr) == RIFFLE_OUT_OF_MEMORY);
  CHECK(std::string(riffle_context_error(r.context)).find("host_mem") != std::string::npos);
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
  riffle_context_options o = options();
  Runtime r(o);
  const auto planned = [&](riffle_plan& plan) {
    plan = {};
    plan.struct_size = sizeof plan;
    char err[512] = "";
    const riffle_status status = riffle_plan_memory(r.model, &o, &plan, err, sizeof err);
    return std::make_pair(status, std::string(err));
  };
  riffle_plan plan;
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
  CHECK(text.find("host_mem is ") != std::string::npos);
  CHECK(text.find(std::to_string(full)) != std::string::npos);
  // A default length gives way: to the longest multiple of 1024 tokens.
  o.n_ctx = 0;
  CHECK(planned(plan).first == RIFFLE_OK);
  CHECK(plan.n_ctx == 7168);
  CHECK(plan.host_kv <= o.host_mem);
  CHECK(std::string(plan.context_note).find("host_mem") != std::string::npos);
}
