// Many requests at once on a GPU: the texts are those that each gives alone.
#include "../engine/scheduled.h"
#include "device.h"

using namespace riffle::test;

namespace {

riffle_context_options on_gpu(riffle_selector selector, int slots) {
  riffle_context_options o = base(selector);
  o.device = RIFFLE_DEVICE_CUDA;
  o.slots = slots;
  return o;
}

}  // namespace

TEST_CASE("cuda: a scheduler gives every text as it is alone", "[cuda][scheduler]") {
  if (!cuda_ready()) return;
  const std::vector<Ask> asks = {ask(700, 1, 24), ask(65, 2, 40, 0.9f), ask(1500, 3, 12), ask(3, 4, 30), ask(400, 5, 1),
                                 ask(900, 6, 20, 1.2f), ask(130, 7, 0), ask(64, 8, 33)};
  for (const riffle_selector selector : {RIFFLE_SELECTOR_PSA, RIFFLE_SELECTOR_DENSE}) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(on_gpu(selector, 0), a));
    for (const int slots : {400, 4000})
      for (const bool control : {true, false}) {
        INFO("selector " << selector << ", slots " << slots << ", control " << control);
        Runtime r(on_gpu(selector, slots));
        riffle_scheduler_options so = defaults();
        so.max_inject_tokens = 700;
        so.no_ws_control = !control;
        so.no_prefix_reuse = true;  // a prompt cut at other places may differ in its last bits there
        Run run(r, so);
        for (size_t i = 0; i < asks.size(); ++i) {
          run.submit(asks[i]);
          if (i % 3 == 2)
            for (int k = 0; k < 5; ++k) run.step();
        }
        run.finish();
        int64_t most = 0;
        for (const riffle_iteration& it : run.iterations) {
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

TEST_CASE("cuda: prompts that begin alike are read once", "[cuda][scheduler][prefix]") {
  if (!cuda_ready()) return;
  const std::vector<int32_t> document = some_tokens(1200, 50);
  Runtime r(on_gpu(RIFFLE_SELECTOR_PSA, 2000));
  Run run(r, defaults());
  for (int i = 0; i < 6; ++i) {
    Ask a = ask(40 + 13 * i, 60 + i, 10);
    a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
    run.submit(a);
  }
  run.finish();
  for (uint64_t id = 1; id <= 6; ++id) {
    CHECK(run.got[id].status == RIFFLE_OK);
    CHECK(run.got[id].tokens.size() == 10);
    CHECK(run.got[id].reused >= (id == 1 ? 0 : document.size()));
  }
  riffle_stats stats{};
  stats.struct_size = sizeof stats;
  r.check(riffle_get_stats(r.context, &stats));
  CHECK(stats.host_kv_bytes == 0);
  CHECK(stats.prefill_tokens < 2 * document.size());
}
