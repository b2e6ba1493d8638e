// Selector auto on a GPU: the bits of dense below a length and of share from it on, whatever other
// sessions take part in a step.
#include "tests/engine/auto_steps.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// A pool of 1,024 tokens of each of n sessions, plus the slots that prompts take.
ContextOptions small(int n_sessions) {
  ContextOptions o = options();
  o.device = DeviceKind::CUDA;
  o.n_ctx = 4096;
  o.n_sessions = n_sessions;
  o.slots = int64_t{n_sessions} * 16 * 64 + 16;
  o.selection.selector = SelectorKind::AUTO;
  o.selection.share = 0.02f;
  return o;
}

}  // namespace

TEST_CASE("cuda: auto has dense's bits below a length and share's from it on", "[cuda][auto]") {
  if (skip()) return;
  ContextOptions o = small(1);
  check_auto(o, 1024);
  o.kv_type = KvKind::F32;
  o.selection.dense_layers = 1;
  check_auto(o, 1024);
}

// More rows than run together: shorter rings, and CTAs that fetch for rows whose turn is to come.
TEST_CASE("cuda: auto in a step of many sessions, short and long", "[cuda][auto]") {
  if (skip()) return;
  constexpr int kSessions = 60, kBelow = 1024;
  ContextOptions o = small(kSessions);
  Runtime r(o);
  REQUIRE(plan_of(r.model, o).everything_below == kBelow);
  std::vector<riffle_session*> sessions;
  std::vector<ByHand> by_hand;  // twins of every tenth session, from a long one on
  const auto length = [](int i) {
    return i % 4 == 0 ? kBelow + 13 * i : i == 1 ? kBelow - 4 : 90 + 7 * i;
  };
  for (int i = 0; i < kSessions; ++i) {
    const auto prompt = some_tokens(length(i), 300 + static_cast<uint32_t>(i));
    sessions.push_back(r.session());
    r.check(riffle_prefill(sessions.back(), prompt.data(), prompt.size(), nullptr, nullptr));
    if (i < 10) by_hand.emplace_back(o, kBelow, prompt);
  }
  for (const int32_t token : some_tokens(8, 71)) {
    const std::vector<int32_t> tokens(kSessions, token);
    r.check(riffle_step(r.context, sessions.data(), tokens.data(), kSessions));
    for (size_t i = 0; i < by_hand.size(); ++i) {
      INFO("session " << i << " of " << riffle_session_length(sessions[i]) << " tokens");
      REQUIRE(same_bits({r.logits(sessions[i])}, {by_hand[i].step(token)}));
    }
  }
}

TEST_CASE("cuda: what auto stands for counts as the plan says", "[cuda][auto][limits]") {
  if (skip()) return;
  ContextOptions o = small(1);
  o.slots = 0;
  o.n_ctx = 16384;
  Runtime r(o);
  const MemoryPlan dense = plan_of(r.model, o);
  CHECK(dense.selector == SelectorKind::DENSE);
  CHECK(dense.everything_below == 16384);
  CHECK(dense.digests < 1 << 20);
  o.n_ctx = 16384 + 1024;
  const MemoryPlan share = plan_of(r.model, o);
  CHECK(share.selector == SelectorKind::SHARE);
  CHECK(share.selector_note ==
        std::string("selector auto: share; sessions below 16,384 tokens are read whole"));
  o.selection.selector = SelectorKind::SHARE;
  CHECK(plan_of(r.model, o).digests == share.digests);
  if (!host_decides_here()) return;
  // The host may decide residency of what AUTO reads whole, but not of what it selects.
  o.selection.selector = SelectorKind::AUTO;
  o.residency = ResidencyKind::HOST;
  riffle_context* context = nullptr;
  CHECK(context_create(r.model, &o, &context, nullptr, 0) == RIFFLE_UNSUPPORTED);
  o.n_ctx = 8192;
  r.check(context_create(r.model, &o, &context, nullptr, 0));
  riffle_context_free(context);
}
