// Many requests at once on a GPU: the texts are those that each gives alone.
#include "tests/engine/schedule/scheduled.h"
#include "tests/kernels/cuda/device.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions on_gpu(SelectorKind selector, int slots) {
  ContextOptions o = base(selector);
  o.device = DeviceKind::CUDA;
  o.slots = slots;
  return o;
}

}  // namespace

TEST_CASE("cuda: a scheduler gives every text as it is alone", "[cuda][scheduler]") {
  if (!cuda_ready()) return;
  const std::vector<Ask> asks = {ask(700, 1, 24), ask(65, 2, 40, 0.9f), ask(1500, 3, 12),
                                 ask(3, 4, 30),   ask(400, 5, 1),       ask(900, 6, 20, 1.2f),
                                 ask(130, 7, 0),  ask(64, 8, 33)};
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::DENSE})) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(on_gpu(selector, 0), a));
    for (const int slots : {400, 4000})
      for (const bool control : {true, false}) {
        INFO("selector " << selector << ", slots " << slots << ", control " << control);
        Runtime r(on_gpu(selector, slots));
        SchedulerOptions so = defaults();
        so.max_inject_tokens = 700;
        so.ws_control = control;
        if (control) so.working_set_steps = 12;  // else batches may hold more, if that is faster
        Run run(r, so);
        for (size_t i = 0; i < asks.size(); ++i) {
          run.submit(asks[i]);
          if (i % 3 == 2)
            for (int k = 0; k < 5; ++k) run.step();
        }
        run.finish();
        int64_t most = 0;
        for (const Iteration& it : run.iterations) {
          most = std::max(most, it.working_set);
          if (control && it.decode_rows > 1) CHECK(it.working_set <= it.available);
        }
        if (control) CHECK(most > 0);
        for (size_t i = 0; i < asks.size(); ++i) {
          INFO("request " << i);
          check_same(run.got[i + 1], want[i]);
        }
      }
  }
}

TEST_CASE(
    "cuda: of a prompt the device holds the layer that is read and the one on its way to the host",
    "[cuda][scheduler]") {
  if (!cuda_ready()) return;
  for (const int tokens : {2000, 1001}) {
    INFO("tokens " << tokens);
    Runtime r(on_gpu(psa_or_share(), 2000));
    Run run(r, defaults());
    run.submit(ask(100, 1, 40));
    run.submit(ask(tokens, 2, 4));
    run.finish();
    int64_t held = 0;
    for (const Iteration& it : run.iterations) held = std::max(held, it.prefill_kv_blocks);
    CHECK(held == 2 * ((tokens + 15) / 16) * model_number(r.model, "n_kv_heads"));
  }
}

TEST_CASE("cuda: prompts that begin alike are read once", "[cuda][scheduler][prefix]") {
  if (!cuda_ready()) return;
  const std::vector<int32_t> document = some_tokens(1200, 50);
  std::vector<Ask> asks;
  for (int i = 0; i < 6; ++i) {
    asks.push_back(ask(40 + 13 * i, 60 + i, 10));
    asks.back().prompt.insert(asks.back().prompt.begin(), document.begin(), document.end());
  }
  const ContextOptions o = on_gpu(psa_or_share(), 2000);
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(o, a));
  // A prompt's bits depend on where it is cut, so all but 48 tokens of the document are taken over.
  {
    Runtime r(o);
    Run run(r, defaults());
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) {
      INFO("request " << i);
      const Got& got = run.got[i + 1];
      check_same(got, want[i]);
      CHECK(got.status == RIFFLE_OK);
      CHECK(got.tokens.size() == 10);
      if (i == 0) CHECK(got.reused == 0);
      else CHECK(got.reused == document.size() / o.prefill_chunk * o.prefill_chunk);
    }
    const Stats stats = r.stats();
    CHECK(stats.host_kv_bytes == 0);
    CHECK(stats.prefill_tokens < 2 * document.size());
  }
}

TEST_CASE("cuda: requests wait or begin again where host memory is short",
          "[cuda][scheduler][memory]") {
  if (!cuda_ready()) return;
  check_short_memory(
      [](SelectorKind selector, bool pool) { return on_gpu(selector, pool ? 600 : 0); });
}
