// A request that does not fit is refused with a clear text and changes nothing.
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/engine/test_model.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::string create_error(const ContextOptions& o, riffle_status expected) {
  riffle_model* model;
  riffle_context* context;
  char err[512] = "";
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
  CHECK(context_create(model, &o, &context, err, sizeof err) == expected);
  CHECK(context == nullptr);
  riffle_model_free(model);
  return err;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a pool too small for one iteration is refused with the number that works", "[limits]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.n_ctx = 1024;
  o.slots = 3;
  o.evict = EvictRule::FIFO;  // else its readers manage the pool, and none is too small
  const std::string text = create_error(o, RIFFLE_NO_SLOT);
  INFO(text);
  CHECK(has(text, "slots is 3"));
  const size_t at = text.rfind(' ');
  o.slots = std::stoll(text.substr(at));
  Runtime r(o);  // the number it named works
  riffle_session* s = r.session();
  const auto tokens = some_tokens(900, 1);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  for (int i = 0; i < 40; ++i) r.check(riffle_step(r.context, &s, &tokens[i + 1], 1));
}

TEST_CASE("a memory budget is kept, and one too small names the least that works", "[limits]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.n_ctx = 4096;
  o.gpu_mem = 10 << 20;
  const std::string text = create_error(o, RIFFLE_OUT_OF_MEMORY);
  INFO(text);
  const size_t open = text.find('('), close = text.find(" bytes)");
  REQUIRE(open != std::string::npos);
  REQUIRE(close != std::string::npos);
  o.gpu_mem = std::stoull(text.substr(open + 1, close - open - 1));
  {
    Runtime r(o);
    MemoryPlan plan{};
    CHECK(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
    CHECK(plan.total <= o.gpu_mem);
    CHECK(plan.min_gpu_mem == o.gpu_mem);
    CHECK(plan.total ==
          plan.weights + plan.activations + plan.digests + plan.prefill_kv + plan.pool);
    riffle_session* s = r.session();
    const auto tokens = some_tokens(500, 1);
    r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
    r.check(riffle_step(r.context, &s, &tokens[1], 1));
  }
  o.gpu_mem -= 1;
  create_error(o, RIFFLE_OUT_OF_MEMORY);
}

TEST_CASE("prompts that are empty, too long or out of the vocabulary change nothing", "[limits]") {
  ContextOptions o = options();
  o.n_ctx = 100;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(200, 1);
  CHECK(riffle_prefill(s, tokens.data(), 0, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_prefill(s, tokens.data(), 101, nullptr, nullptr) == RIFFLE_CONTEXT_FULL);
  CHECK(has(riffle_context_error(r.context), "101"));
  r.check(riffle_prefill(s, tokens.data(), 60, nullptr, nullptr));
  const auto before = r.logits(s);
  CHECK(riffle_prefill(s, tokens.data(), 41, nullptr, nullptr) == RIFFLE_CONTEXT_FULL);
  CHECK(riffle_prefill_to(s, tokens.data(), 101, nullptr, nullptr) == RIFFLE_CONTEXT_FULL);
  const int32_t bad[] = {5, 1 << 20};
  CHECK(riffle_prefill(s, bad, 2, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(has(riffle_context_error(r.context), "tokens[1]"));
  CHECK(riffle_session_length(s) == 60);
  CHECK(r.logits(s) == before);
  r.check(riffle_prefill(s, tokens.data(), 40, nullptr, nullptr));
  CHECK(riffle_step(r.context, &s, tokens.data(), 1) == RIFFLE_CONTEXT_FULL);
  GenerateOptions g;
  riffle_result result;
  r.check(generate(s, &g, nullptr, nullptr, &result));
  CHECK(result.finish == RIFFLE_FINISH_CONTEXT);
}

TEST_CASE("an aborted prefill leaves the session as it was", "[limits]") {
  for (bool emu : {false, true}) {
    ContextOptions o = options();
    o.n_ctx = 4096;
    if (emu) o.device = DeviceKind::EMU, o.slots = 100;
    Runtime r(o);
    riffle_session* s = r.session();
    const auto tokens = some_tokens(1000, 1), more = some_tokens(2000, 2),
               steps = some_tokens(3, 3);
    r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
    const auto before = r.logits(s);
    int calls = 0;
    const auto stop_in_third_layer = [](void* user, const riffle_progress* p) {
      ++*static_cast<int*>(user);
      return p->done < p->total * 0.4;
    };
    CHECK(riffle_prefill(s, more.data(), more.size(), stop_in_third_layer, &calls) ==
          RIFFLE_ABORTED);
    CHECK(calls > 5);
    CHECK(riffle_session_length(s) == 1000);
    CHECK(r.logits(s) == before);
    riffle_abort(r.context, true);
    CHECK(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr) == RIFFLE_ABORTED);
    // The KV is unharmed: the next step equals that of a session that was never disturbed.
    r.check(riffle_step(r.context, &s, &steps[0], 1));
    riffle_session* fresh = r.session(tokens);
    r.check(riffle_step(r.context, &fresh, &steps[0], 1));
    CHECK(r.logits(s) == r.logits(fresh));
  }
}

TEST_CASE("a token callback can abort, and the request does not outlive it", "[limits]") {
  ContextOptions o = options();
  o.n_ctx = 1024;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(50, 1);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  GenerateOptions g;
  g.ignore_eos = true;
  for (bool go_on : {true, false}) {
    struct User {
      riffle_context* context;
      bool go_on;
    } user{r.context, go_on};
    const auto abort = [](void* u, size_t, const riffle_token*) {
      riffle_abort(static_cast<User*>(u)->context, true);
      return static_cast<User*>(u)->go_on;
    };
    riffle_result result;
    r.check(generate(s, &g, abort, &user, &result));
    CHECK(result.finish == RIFFLE_FINISH_ABORTED);
    CHECK(result.n_tokens == 1);
    r.check(riffle_step(r.context, &s, &tokens[1], 1));  // not aborted
  }
}

TEST_CASE("more threads or slots than the machine gives are errors", "[limits]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.slots = INT32_MAX;
  CHECK(has(create_error(o, RIFFLE_OUT_OF_MEMORY), "this machine has"));
  o.slots = int64_t(1) << 40;
  CHECK(has(create_error(o, RIFFLE_BAD_ARGUMENT), "slots"));
}

TEST_CASE("another thread can stop a generation", "[limits]") {
  ContextOptions o = options();
  o.n_ctx = 4096;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(50, 1);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  GenerateOptions g;
  g.ignore_eos = true;
  std::atomic<int> seen{0};
  std::thread stopper([&] {
    while (seen < 3) std::this_thread::yield();
    riffle_abort(r.context, true);
  });
  riffle_result result;
  const auto count = [](void* user, size_t, const riffle_token*) {
    ++*static_cast<std::atomic<int>*>(user);
    return true;
  };
  r.check(generate(s, &g, count, &seen, &result));
  stopper.join();
  CHECK(result.finish == RIFFLE_FINISH_ABORTED);
  CHECK(result.n_tokens < 4000);
}
