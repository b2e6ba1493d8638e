// A long prompt that was stopped: what was read is kept, and nothing depends on where it stopped.
#include "tests/engine/window_model.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Stops a prompt when this share of it is read.
struct StopAt {
  double share;
  double most = 0;
  static bool callback(void* user, const riffle_progress* p) {
    auto& self = *static_cast<StopAt*>(user);
    CHECK(p->done >= self.most);
    self.most = p->done;
    return p->done < self.share * p->total;
  }
};

riffle_status read_to(Runtime& r, riffle_session* s, const std::vector<int32_t>& tokens,
                      double share) {
  StopAt stop{share};
  const riffle_status status =
      riffle_prefill_to(s, tokens.data(), tokens.size(), StopAt::callback, &stop);
  CHECK((status == RIFFLE_ABORTED || status == RIFFLE_OK));
  if (status == RIFFLE_OK) r.check(status);
  return status;
}

}  // namespace

TEST_CASE("a stopped prompt keeps what was read and goes on to the same logits", "[prefill]") {
  OneIn one(2);
  const auto tokens = some_tokens(4500, 3);
  const std::pair<DeviceKind, KvKind> kinds[] = {{DeviceKind::CPU, KvKind::F32},
                                                 {DeviceKind::CPU, KvKind::F16},
                                                 {DeviceKind::EMU, KvKind::Q8}};
  for (const auto& [device, kv] : kinds) {
    if (one.skips()) continue;
    ContextOptions o = options();
    o.device = device;
    o.kv_type = kv;
    o.n_ctx = 8192;
    Runtime r(o);
    INFO(device << " " << kv);
    riffle_session* whole = r.session(tokens);
    riffle_session* s = r.session();
    CHECK(read_to(r, s, tokens, 0.2) == RIFFLE_ABORTED);
    CHECK(riffle_session_length(s) == 0);  // in the first piece
    CHECK(read_to(r, s, tokens, 0.55) == RIFFLE_ABORTED);
    const size_t half = riffle_session_length(s);
    CHECK((half >= 2048 && half <= 2250));
    CHECK(r.logits(s) == r.logits(r.session({tokens.begin(), tokens.begin() + half})));
    r.check(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr));
    CHECK(riffle_session_length(s) == tokens.size());
    CHECK(r.logits(s) == r.logits(whole));
    for (const int32_t token : {5, 6, 7}) {
      r.check(riffle_step(r.context, &s, &token, 1));
      r.check(riffle_step(r.context, &whole, &token, 1));
      CHECK(r.logits(s) == r.logits(whole));
    }
  }
}

TEST_CASE("an error in a later piece keeps the pieces before it", "[prefill]") {
  const int n_tokens = few_rounds() ? 5200 : 9000;
  const auto tokens = some_tokens(n_tokens, 3);
  ContextOptions o = options();
  o.n_ctx = 16384;
  MemoryPlan plan{};
  {
    const Runtime r(o);
    REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
  }
  o.n_ctx = n_tokens;
  o.host_mem = plan.host_kv * (n_tokens + 100) / 16384;
  Runtime r(o);
  riffle_session* other = r.session(some_tokens(n_tokens / 3, 4));
  riffle_session* s = r.session();
  CHECK(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr) ==
        RIFFLE_OUT_OF_MEMORY);
  const size_t n = riffle_session_length(s);
  CHECK((n >= 2048 && n < tokens.size()));
  CHECK(r.logits(s) != r.logits(other));
  riffle_session_truncate(other, 0);
  r.check(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr));
}

TEST_CASE("windows: pieces are no ends of prompts", "[prefill][window]") {
  const TempDir temp;
  ContextOptions o = sparse(SelectorKind::SHARE);
  o.n_ctx = 8192;
  Runtime r(o, mistral(temp, 64));
  std::vector<int32_t> tokens = ids(0, 500);
  while (tokens.size() < 5000) tokens.push_back(tokens[tokens.size() - 499]);
  riffle_session* whole = r.session(tokens);
  riffle_session* s = r.session({tokens.begin(), tokens.begin() + 300});
  const std::vector<int32_t> longer(tokens.begin(), tokens.end() - 100);
  r.check(riffle_prefill_to(s, longer.data(), longer.size(), nullptr, nullptr));
  CHECK(riffle_session_reach(s, 300) == 300);
  CHECK(read_to(r, s, tokens, 2) == RIFFLE_OK);
  CHECK(r.logits(s) == r.logits(whole));
  // Stopped and read on.
  riffle_session* t = r.session({tokens.begin(), tokens.begin() + 300});
  CHECK(read_to(r, t, tokens, 0.7) == RIFFLE_ABORTED);
  CHECK(riffle_session_length(t) > 2048);
  CHECK(riffle_session_reach(t, 300) == 300);
  CHECK(read_to(r, t, tokens, 2) == RIFFLE_OK);
  CHECK(r.logits(t) == r.logits(whole));
}
