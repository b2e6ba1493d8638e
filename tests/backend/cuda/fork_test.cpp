// Forked sessions on a GPU: same bits as sessions of their own that went through the same prompts,
// steps and cuts.
#include <algorithm>

#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/forks.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions small(SelectorKind selector) {
  ContextOptions o = small_options(selector, 1024);
  o.device = DeviceKind::CUDA;
  return o;
}

const std::vector<SelectorKind> kSelectors =
    here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::TWILIGHT,
          SelectorKind::TOKENSELECT, SelectorKind::SHARE});
// Selectors that run where the host decides residency.
const std::vector<SelectorKind> kHosted =
    host_decides_here() ? here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK})
                        : std::vector<SelectorKind>();

}  // namespace

TEST_CASE("cuda: a fork goes on as a session that read the same by itself", "[cuda][fork]") {
  if (skip()) return;
  for (SelectorKind selector : kSelectors)
    for (const int64_t slots : {0, 40, 600}) {
      INFO("selector " << selector << ", " << slots << " slots");
      ContextOptions o = small(selector);
      o.slots = slots;
      fork_cases(o, false);
    }
  for (SelectorKind selector : kHosted) {
    INFO("selector " << selector << ", the host decides");
    ContextOptions o = small(selector);
    o.residency = ResidencyKind::HOST;
    o.slots = 120;
    fork_cases(o, false);
  }
}

TEST_CASE("cuda: random histories of forked sessions are those of sessions of their own",
          "[cuda][fork]") {
  if (skip()) return;
  uint32_t seed = 100;
  for (SelectorKind selector : kSelectors)
    for (const int64_t slots : {16, 120, 3000}) {
      INFO("selector " << selector << ", " << slots << " slots");
      ContextOptions o = small(selector);
      o.slots = slots;
      Forks(o, ++seed).play(150);
    }
  for (SelectorKind selector : kHosted)
    for (const bool pin : {true, false}) {
      INFO("selector " << selector << ", the host decides, pin " << pin);
      ContextOptions o = small(selector);
      o.residency = ResidencyKind::HOST;
      o.pin = pin;
      o.slots = 120;
      Forks(o, ++seed).play(150);
    }
}

TEST_CASE("cuda: forks find their donor's blocks in the device's pool", "[cuda][fork]") {
  if (skip()) return;
  ContextOptions o = small(SelectorKind::DENSE);
  o.slots = 3000;
  Runtime r(o);
  const auto counted = [&](const riffle_session* s) {
    Stats stats{};
    r.check(session_get_stats(s, &stats));
    return stats;
  };
  const auto fork = [&](const riffle_session* from, size_t n) {
    r.sessions.push_back(nullptr);
    r.check(riffle_session_fork(from, n, &r.sessions.back()));
    return r.sessions.back();
  };
  const auto step = [&](riffle_session* s) {
    const int32_t token = 500;
    r.check(riffle_step(r.context, &s, &token, 1));
  };
  const auto free = [&](riffle_session* s) {
    r.sessions.erase(std::find(r.sessions.begin(), r.sessions.end(), s));
    riffle_session_free(s);
  };
  riffle_session* donor = r.session();
  const auto prompt = some_tokens(16 * 12 + 3, 1);
  r.check(riffle_prefill(donor, prompt.data(), prompt.size(), nullptr, nullptr));
  riffle_session *before = fork(donor, prompt.size()), *other = fork(donor, 16 * 8);
  step(donor);
  const uint64_t heads = 16;  // 8 layers, 2 KV heads
  CHECK(counted(donor).pool_lookups == 12 * heads);
  CHECK(counted(donor).pool_hits == 0);
  riffle_session* after = fork(donor, 16 * 12);
  riffle_session* child = fork(after, 16 * 12);  // a fork of a fork
  for (riffle_session* s : {before, after, child}) {
    step(s);
    CHECK(counted(s).pool_lookups == 12 * heads);
    CHECK(counted(s).pool_hits == 12 * heads);
  }
  free(donor);  // its forks keep what they share in the pool
  step(other);
  CHECK(counted(other).pool_lookups == 8 * heads);
  CHECK(counted(other).pool_hits == 8 * heads);
  // A cut into what others find under this name, and something else written there: under a name of
  // its own.
  r.check(riffle_session_truncate(after, 16 * 5 + 7));
  r.check(riffle_prefill(after, prompt.data(), 16 * 6, nullptr,
                         nullptr));  // 11 full blocks, 5 of them shared
  step(after);
  CHECK(counted(after).pool_lookups == (12 + 11) * heads);
  CHECK(counted(after).pool_hits == (12 + 5) * heads);
  step(child);
  CHECK(counted(child).pool_hits == 2 * 12 * heads);
  for (riffle_session* s : {before, after, child, other}) free(s);
  // Whoever is called by the same names next finds nothing of that.
  riffle_session* fresh = r.session(prompt);
  step(fresh);
  CHECK(counted(fresh).pool_hits == 0);
}

TEST_CASE("cuda: forks that miss the same blocks in the same steps", "[cuda][fork]") {
  if (skip()) return;
  const auto prompt = some_tokens(600, 1);
  for (SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::SHARE,
                                     SelectorKind::TOKENSELECT}))
    for (const auto& [n_forks, n_steps, slots] :
         {std::tuple<int, int, int64_t>{8, 60, 16},
          {8, 60, 300},
          {8, 60, 700},
          {8, 60, 4000},
          {40, 12, 16},
          {40, 12, 700},
          {40, 12, 4000}}) {  // 40: more rows than run together, so blocks are also fetched ahead
      INFO("selector " << selector << ", " << n_forks << " forks, " << slots << " slots");
      ContextOptions o = small(selector);
      o.slots = slots;
      Runtime r(o), alone(o);
      riffle_session* donor = r.session(prompt);
      std::vector<riffle_session*> forks = {donor}, own;  // the donor steps with its forks
      for (int i = 0; i <= n_forks; ++i) {
        const size_t length = prompt.size() - static_cast<size_t>(i % 8) * 16;
        if (i > 0) {
          r.sessions.push_back(nullptr);
          r.check(riffle_session_fork(donor, length, &r.sessions.back()));
          forks.push_back(r.sessions.back());
        }
        own.push_back(alone.session());
        alone.check(riffle_prefill(own[i], prompt.data(), prompt.size(), nullptr, nullptr));
        alone.check(riffle_session_truncate(own[i], length));
      }
      for (int t = 0; t < n_steps; ++t) {
        // The same token: they ask for nearly the same blocks.
        const std::vector<int32_t> next(forks.size(), 400 + t);
        r.check(riffle_step(r.context, forks.data(), next.data(), next.size()));
        for (size_t i = 0; i < forks.size(); ++i) {
          alone.check(riffle_step(alone.context, &own[i], &next[i], 1));
          REQUIRE(r.logits(forks[i]) == alone.logits(own[i]));
        }
      }
    }
}

TEST_CASE("cuda: a fork that finds no device memory leaves its donor as it was",
          "[cuda][fork][memory]") {
  if (skip()) return;
  ContextOptions o = small(psa_or_share());
  o.gpu_mem = least_memory(o);
  Runtime r(o);
  ContextOptions roomy = o;
  roomy.gpu_mem = 0;
  Runtime alone(roomy);
  riffle_session *s = r.session(), *a = alone.session();
  const auto prompt = some_tokens(500, 1), tokens = some_tokens(20, 2);
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  alone.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  r.check(riffle_step(r.context, &s, &prompt[1], 1));  // takes what a step needs
  alone.check(riffle_step(alone.context, &a, &prompt[1], 1));
  std::vector<riffle_session*> forks;
  riffle_status status = RIFFLE_OK;
  Stats before{};
  while (forks.size() < 2000 && status == RIFFLE_OK) {
    before = r.stats();
    riffle_session* one = nullptr;
    status = riffle_session_fork(s, 333, &one);
    if (one) forks.push_back(one);
  }
  CHECK(status == RIFFLE_OUT_OF_MEMORY);
  const Stats after = r.stats();
  CHECK(after.host_kv_bytes == before.host_kv_bytes);
  CHECK(after.device_bytes == before.device_bytes);
  for (const int32_t t : tokens) {
    r.check(riffle_step(r.context, &s, &t, 1));
    alone.check(riffle_step(alone.context, &a, &t, 1));
    REQUIRE(r.logits(s) == alone.logits(a));
  }
  for (riffle_session* one : forks) riffle_session_free(one);
}
