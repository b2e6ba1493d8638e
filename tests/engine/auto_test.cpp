// Selector auto: dense for short sessions, share for long ones, by the plan's numbers.
#include "engine/plan/auto_selector.h"
#include "import/load_model.h"
#include "tests/engine/auto_steps.h"
#include "tests/engine/tiny_checkpoint.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions auto_options(int n_ctx) {
  ContextOptions o = options();
  o.n_ctx = n_ctx;
  o.n_threads = usual_threads();
  o.selection.selector = SelectorKind::AUTO;
  o.selection.share = 0.02f;
  return o;
}

// The shipped model has 16 heads of all layers, so 64 blocks of 16 tokens of each take 1,024 slots.
ContextOptions pooled(int64_t slots) {
  ContextOptions o = auto_options(4096);
  o.device = DeviceKind::EMU;
  o.slots = slots;
  return o;
}

}  // namespace

TEST_CASE("auto is the default", "[auto]") {
  Selection s;
  CHECK(s.selector == SelectorKind::AUTO);
}

TEST_CASE("auto has dense's bits below a length and share's from it on",
          "[auto][invariance][long]") {
  ContextOptions o = pooled(1024 + 16);
  check_auto(o, 1024);
  o.n_threads = 3;
  o.kv_type = KvKind::F32;
  o.selection.dense_layers = 1;
  if (!few_rounds()) check_auto(o, 1024);
  const ContextOptions cpu = auto_options(6144);
  const Runtime r(cpu);
  check_auto(cpu, plan_of(r.model, cpu).everything_below);
}

TEST_CASE("auto reads and counts what it stands for", "[auto]") {
  struct Seen {
    bool everything = true;
    int64_t index_bytes = 0;
  } seen;
  const auto see = [&](const riffle_session*, const Sequence&, int, int, const RowReport& row) {
    seen.everything &= row.n_read == row.n_blocks && row.tokens_read == row.n_tokens;
    seen.index_bytes += row.index_bytes;
  };
  Runtime r(pooled(1024 + 16));
  riffle_session* s[2] = {r.session(), r.session()};
  const auto prompt = some_tokens(1500, 3);
  r.check(riffle_prefill(s[0], prompt.data(), 1000, nullptr, nullptr));
  r.check(riffle_prefill(s[1], prompt.data(), 1500, nullptr, nullptr));
  const int32_t tokens[2] = {500, 600};
  r.context->engine->set_row_report(see, true);
  r.check(riffle_step(r.context, s, tokens, 1));
  CHECK(seen.everything);
  CHECK(seen.index_bytes == 0);
  r.check(riffle_step(r.context, s, tokens, 2));  // the second one selects
  CHECK_FALSE(seen.everything);
  CHECK(seen.index_bytes > 0);
  Stats stats{};
  r.check(session_get_stats(s[0], &stats));
  CHECK(stats.kv_tokens_read == stats.kv_tokens_total);
  CHECK(stats.index_bytes_read == 0);
}

TEST_CASE("the plan says what auto stands for", "[auto][limits]") {
  Runtime r(auto_options(1024));
  const auto planned = [&](const ContextOptions& o) { return plan_of(r.model, o); };
  const MemoryPlan short_one = planned(auto_options(1024));
  CHECK(short_one.selector == SelectorKind::DENSE);
  CHECK(short_one.selector_state == 0);
  CHECK(short_one.everything_below >= 1024);
  CHECK_THAT(short_one.selector_note, Catch::StartsWith("selector auto: dense"));
  CHECK(riffle_context_notice(r.context) == std::string(short_one.selector_note));

  ContextOptions o = auto_options(16384);
  const MemoryPlan long_one = planned(o);
  CHECK(long_one.selector == SelectorKind::SHARE);
  CHECK(long_one.everything_below == short_one.everything_below);
  CHECK_THAT(long_one.selector_note, Catch::StartsWith("selector auto: share; sessions below ") &&
                                         Catch::EndsWith(" tokens are read whole"));
  o.selection.selector = SelectorKind::SHARE;
  CHECK(planned(o).selector_state == long_one.selector_state);
  CHECK(planned(o).selector == SelectorKind::SHARE);
  CHECK(std::string(planned(o).selector_note).empty());

  // A pool that holds less of each session, none of it, and all.
  CHECK(planned(pooled(1024 + 16)).selector_note ==
        std::string("selector auto: share; sessions below 1,024 tokens are read whole"));
  o = pooled(2 * 1024 + 16);
  o.n_sessions = 2;
  CHECK(planned(o).everything_below == 1024);
  o.n_sessions = 3;
  CHECK(planned(o).everything_below == 0);
  CHECK(planned(o).selector_note == std::string("selector auto: share"));
  o = pooled(1024);
  o.n_ctx = 1024;
  CHECK(planned(o).selector == SelectorKind::DENSE);
  o.slots = 1023;
  CHECK(planned(o).selector == SelectorKind::SHARE);
  // A pool holds no more than the context, whose length need be no multiple of anything.
  o = pooled(0);
  for (const int n_ctx : {500, 1500, 3000, 3072}) {
    o.n_ctx = n_ctx;
    CHECK(planned(o).selector == SelectorKind::DENSE);
    CHECK(planned(o).everything_below == short_one.everything_below);
  }
  o.n_ctx = 3073;
  CHECK(planned(o).selector == SelectorKind::SHARE);

  // The smallest budget that works is one with which auto is share.
  o = pooled(0);
  o.n_ctx = 1024;
  CHECK(planned(o).selector == SelectorKind::DENSE);
  o.gpu_mem = planned(o).min_gpu_mem;
  CHECK(planned(o).selector == SelectorKind::SHARE);
  CHECK(planned(o).min_gpu_mem == o.gpu_mem);
  o.gpu_mem -= 1;
  MemoryPlan plan{};
  CHECK(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OUT_OF_MEMORY);
}

TEST_CASE("auto can be chosen later, and left again", "[auto]") {
  ContextOptions o = pooled(1024 + 16);
  o.selection.selector = SelectorKind::DENSE;
  Runtime r(o);
  CHECK(std::string(riffle_context_notice(r.context)).empty());
  o.selection.selector = SelectorKind::AUTO;
  r.check(set_selection(r.context, &o.selection));
  CHECK(riffle_context_notice(r.context) ==
        std::string("selector auto: share; sessions below 1,024 tokens are read whole"));
  const auto prompt = some_tokens(1020, 9), steps = some_tokens(8, 10);
  riffle_session* s = r.session(prompt);
  ByHand by_hand(o, 1024, prompt);
  for (const int32_t token : steps) {
    r.check(riffle_step(r.context, &s, &token, 1));
    REQUIRE(same_bits({r.logits(s)}, {by_hand.step(token)}));
  }
  o.selection.selector = SelectorKind::SHARE;
  r.check(set_selection(r.context, &o.selection));
  CHECK(std::string(riffle_context_notice(r.context)).empty());
}

TEST_CASE("a GPU's pool says how much auto reads whole", "[auto][limits]") {
  const auto model = riffle::load_model(shipped_model(), {});
  riffle::ResolvedOptions r = riffle::resolve_options(model->config, auto_options(32768));
  r.has_pool = r.device_memory = true;
  r.layout.block_size = 32;
  const int64_t heads = 16, blocks = 16384 / 32;
  const auto below = [&](int64_t slots, int64_t lent, int sessions) {
    r.slots = slots;
    r.lent_slots = lent;
    r.options.n_sessions = sessions;
    return riffle::everything_below(model->config, r);
  };
  CHECK(below(heads * blocks, 0, 1) == 16384);
  CHECK(below(100 * heads * blocks, 0, 1) == 16384);
  CHECK(below(heads * blocks - 1, 0, 1) == 15360);
  CHECK(below(heads * blocks, 1, 1) == 15360);
  CHECK(below(heads * blocks + 1000, 1000, 1) == 16384);
  CHECK(below(heads * blocks, 0, 4) == 4096);
  CHECK(below(heads * blocks, 0, 17) == 0);
  CHECK(below(10, 20, 1) == 0);
  r.options.n_ctx = 500;  // 16 blocks
  CHECK(below(heads * 16, 0, 1) == 16384);
  CHECK(below(heads * 16 - 1, 0, 1) == 0);
}

// Six of gemma3's seven layers have a window of 64.
TEST_CASE("auto takes a quarter of the share if most layers, but not all, have windows",
          "[auto][window]") {
  const TempDir temp;
  const std::string path = tiny_folder(tiny_checkpoint("gemma3"), temp);
  std::vector<int32_t> prompt(900), steps(12);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = 20 + static_cast<int32_t>(i * i % 199);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = 20 + static_cast<int32_t>(7 * i % 199);
  ContextOptions o = pooled(40);
  o.n_ctx = 2048;  // the trained length
  const auto logits = [&](SelectorKind selector, float share) {
    o.selection.selector = selector;
    o.selection.share = share;
    Runtime r(o, path);
    if (selector == SelectorKind::AUTO)
      CHECK(riffle_context_notice(r.context) ==
            std::string(
                "selector auto: share of 0.02, a quarter, since most layers have sliding windows"));
    return run(r, r.session(), prompt, steps);
  };
  const auto of_auto = logits(SelectorKind::AUTO, 0.08f);
  CHECK(same_bits(of_auto, logits(SelectorKind::SHARE, 0.02f)));
  CHECK_FALSE(same_bits(of_auto, logits(SelectorKind::SHARE, 0.08f)));

  // Chosen later, after share, the factor counts once.
  o.selection.selector = SelectorKind::SHARE;
  o.selection.share = 0.08f;
  Runtime later(o, path);
  Selection wanted = o.selection;
  for (int i = 0; i < 2; ++i) {
    wanted.selector = SelectorKind::SHARE;
    later.check(set_selection(later.context, &wanted));
    wanted.selector = SelectorKind::AUTO;
    later.check(set_selection(later.context, &wanted));
  }
  CHECK(same_bits(of_auto, run(later, later.session(), prompt, steps)));

  // A window as long as the context does not count. If every layer has a window, the share stays.
  ResolvedOptions r{};
  r.options.n_ctx = 4096;
  Config config;
  config.layers.resize(4);
  CHECK(auto_share(config, r) == 1);
  config.layers[0].window = config.layers[1].window = 512;
  CHECK(auto_share(config, r) == 1);
  config.layers[2].window = 4096;
  CHECK(auto_share(config, r) == 1);
  config.layers[2].window = 4095;
  CHECK(auto_share(config, r) == 0.25f);
  config.layers[3].window = 1;
  CHECK(auto_share(config, r) == 1);
}
