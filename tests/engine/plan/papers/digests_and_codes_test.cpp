// Contexts whose digests or key codes have to fit as well; notices and errors name psa, which has
// no key codes.
#include <cstdio>

#include "import/load_model.h"
#include "tests/engine/plan/context_length.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("a default context is the longest whose digests and key codes fit gpu_mem",
          "[limits][context]") {
  ContextOptions o = options();
  o.device = DeviceKind::EMU;
  o.selection.selector = SelectorKind::PSA;  // each session has digests of its own
  check_default_length_in_budget(o);
  o.block_size = 64;
  o.pool_per_layer = true;
  o.selection.selector = SelectorKind::TWILIGHT;
  check_default_length_in_budget(o);
}

TEST_CASE("a context that key codes shorten names them, and what would hold more",
          "[limits][context]") {
  const auto model = load_model(shipped_model(), {});
  ContextOptions o = options();
  o.n_sessions = 1;
  o.block_size = 64;  // digests take as many bytes for a block of any size
  const auto planned = [&](SelectorKind selector, RankBy rank, uint64_t memory) {
    o.selection.selector = selector;
    o.selection.rank = rank;
    ResolvedOptions r = resolve_options(model->config, o);
    return plan_with(*model, r, memory);
  };
  const uint64_t memory = 200 << 20;
  const MemoryPlan plan = planned(SelectorKind::SHARE, RankBy::DIGESTS, memory);
  const MemoryPlan psa = planned(SelectorKind::PSA, RankBy::DIGESTS, memory);
  REQUIRE(plan.n_ctx < psa.n_ctx);
  REQUIRE(psa.n_ctx < model->config.n_ctx);
  const MemoryPlan as_auto = planned(SelectorKind::AUTO, RankBy::DIGESTS, memory);
  CHECK(as_auto.n_ctx == plan.n_ctx);
  CHECK(std::string(as_auto.context_note) == plan.context_note);
  const std::string more = "would hold " + std::to_string(psa.n_ctx) + " tokens";
  char taken[64];
  o.n_ctx = plan.n_ctx;
  const MemoryPlan digests = planned(SelectorKind::PSA, RankBy::DIGESTS, memory);
  o.n_ctx = 0;
  std::snprintf(taken, sizeof taken, "take %.1f MiB more memory than digests",
                double(plan.selector_state - digests.digests) / (1 << 20));
  CHECK_THAT(plan.context_note, Catch::Contains("key codes of selector share") &&
                                    Catch::Contains(taken) && Catch::Contains("(selector psa, ") &&
                                    Catch::Contains(more));
  CHECK_THAT(psa.context_note, !Catch::Contains("key codes"));
  CHECK_THAT(planned(SelectorKind::DENSE, RankBy::DIGESTS, memory).context_note,
             !Catch::Contains("key codes"));
  // Where only the ranking needs them, the ranking is named.
  const MemoryPlan ranked = planned(SelectorKind::PSA, RankBy::CODES, memory);
  CHECK(ranked.n_ctx < psa.n_ctx);
  CHECK_THAT(ranked.context_note, Catch::Contains("(rank digests, ") && Catch::Contains(more));
  // In blocks of 16 tokens digests take nearly as much memory as key codes. Lengths are multiples
  // of 1,024 tokens, and other memory differs between machines. So share and psa may get the same
  // length; the note names key codes only if share's is shorter.
  o.block_size = 16;
  const MemoryPlan small = planned(SelectorKind::SHARE, RankBy::DIGESTS, memory);
  CHECK(small.n_ctx < model->config.n_ctx);
  const bool shortened = small.n_ctx < planned(SelectorKind::PSA, RankBy::DIGESTS, memory).n_ctx;
  CHECK((std::string(small.context_note).find("key codes") != std::string::npos) == shortened);
  o.block_size = 64;
  // Nothing is said where all fits, or where both come to the same length: a gpu_mem that holds no
  // key codes, on emu.
  CHECK(std::string(planned(SelectorKind::SHARE, RankBy::DIGESTS, uint64_t(1) << 40).context_note)
            .empty());
  o.device = DeviceKind::EMU;
  o.gpu_mem = 60 << 20;
  const MemoryPlan emu = planned(SelectorKind::SHARE, RankBy::DIGESTS, uint64_t(1) << 40);
  CHECK_THAT(emu.context_note, Catch::Contains("gpu-mem") && !Catch::Contains("key codes"));
}

TEST_CASE("errors about key codes name the lengths and selectors that fit", "[limits][context]") {
  Config config;
  config.n_ctx = 32768, config.n_layers = 1, config.n_heads = config.n_kv_heads = 1,
  config.head_dim = 64;
  config.layers.resize(1);
  ContextOptions o = options();
  o.selection.selector = SelectorKind::SHARE;
  // Bytes a token with key codes and without.
  const auto ways = [&](int64_t budget, int coded, int plain) {
    const std::string text = ways_out(resolve_options(config, o), [=](const ResolvedOptions& r) {
      const bool codes = make_selector(r.options.selection)->reads_codes();
      return int64_t(r.options.n_ctx) * r.options.n_sessions * (codes ? coded : plain) <= budget;
    });
    return name_settings(text, nullptr);
  };
  const std::string psa = "selector psa (without key codes; it may lose answers)";
  CHECK(ways(32768 * 10, 20, 10) == "; these fit: ctx up to 16384, or " + psa);
  CHECK(ways(32768 * 10 - 1, 20, 10) == "; these fit: ctx up to 15360");
  CHECK(ways(32768 * 10, 2000, 10) == "; these fit: " + psa);
  CHECK(ways(1024 * 20, 20, 20) == "; these fit: ctx up to 1024");
  CHECK(ways(1024 * 20 - 1, 20, 20).empty());
  o.n_sessions = 5;
  CHECK(ways(32768 * 50, 20, 10) == "; these fit: ctx up to 16384, or sessions up to 2, or " + psa);
  o.n_sessions = 1;
  o.selection.selector = SelectorKind::AUTO;  // stands for share in a context of this length
  CHECK(ways(32768 * 10, 20, 10) == "; these fit: ctx up to 16384, or " + psa);
  o.selection.selector = SelectorKind::TOPK;
  CHECK(ways(32768 * 10, 20, 10).empty());  // it has no key codes, so it is not they
  o.selection.rank = RankBy::CODES;
  CHECK_THAT(ways(32768 * 10, 20, 10), Catch::Contains("or rank digests (without"));
  o.selection.selector = SelectorKind::TWILIGHT;
  CHECK_THAT(ways(32768 * 10, 20, 10), Catch::Contains("or " + psa));
  // The length is that of the context, not the trained one.
  o.n_ctx = 5000;
  CHECK_THAT(ways(5000 * 20 - 1, 20, 20), Catch::Contains("ctx up to 4096"));
}
