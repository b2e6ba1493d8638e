// The bytes that a selector keeps of a sequence: the memory plan's figure against the selector's
// own.
#include <utility>

#include "select/selector.h"
#include "tests/engine/test_model.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

MemoryPlan plan_of(const Runtime& r, const ContextOptions& o) {
  MemoryPlan plan{};
  r.check(plan_memory(r.model, &o, &plan, nullptr, 0));
  return plan;
}

// Stats.index_bytes of a full session, less the digests of its full blocks, where the
// selection reads any.
uint64_t kept(const ContextOptions& o) {
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(o.n_ctx - 24, 3), steps = some_tokens(24, 4);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  for (int32_t t : steps) r.check(riffle_step(r.context, &s, &t, 1));
  Stats stats{};
  REQUIRE(session_get_stats(s, &stats) == RIFFLE_OK);
  const uint64_t heads = 8 * 2,
                 blocks = o.n_ctx / o.block_size;  // blocks of the shipped model; head_dim 64
  return stats.index_bytes - heads * blocks * riffle::digest_spec(o.selection).bytes(64);
}

}  // namespace

TEST_CASE("the plan's selector state is what a full session keeps", "[engine][model]") {
  OneIn one(3);
  std::vector<std::pair<SelectorKind, RankBy>> all;
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::TOPK}))
    all.push_back({selector, RankBy::CODES});
  for (const SelectorKind selector : all_here()) all.push_back({selector, RankBy::DIGESTS});
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
    for (const auto& [selector, rank] : all)
      for (const int n_ctx : {1024, 3088}) {
        if (one.skips()) continue;
        ContextOptions o = options();
        o.device = device;
        o.n_ctx = n_ctx;
        o.selection.selector = selector;
        o.selection.rank = rank;
        o.selection.select_tokens = 300;
        const Runtime r(o);
        const MemoryPlan plan = plan_of(r, o);
        const uint64_t have = kept(o), said = plan.selector_state;
        INFO("selector " << selector << ", rank " << rank << ", " << n_ctx << " tokens: planned "
                         << said << ", kept " << have);
        if (selector == SelectorKind::LFPS) {  // the tables; candidates depend on the text
          const uint64_t tables = uint64_t(8) * 2 * n_ctx * 2 * 4;
          CHECK(said >= tables);
          CHECK(said - tables <= 8 * 2 * 2048);  // the part that does not grow with the text
          CHECK(said <= have);
          CHECK(have <= 2 * said);
        } else {
          CHECK(said == have);
        }
        // The selector that auto stands for depends on the length.
        const bool codes = rank == RankBy::CODES || plan.selector == SelectorKind::TWILIGHT ||
                           plan.selector == SelectorKind::SHARE;
        const bool keeps = codes || plan.selector == SelectorKind::TOKENSELECT ||
                           plan.selector == SelectorKind::LFPS;
        CHECK((said > 0) == keeps);
        if (codes) {
          // 4 bits: d/2 + 4 bytes a token. 2 bits: d/4 + 2 bytes a token, and d + 4 a block.
          const bool four_bits = plan.selector == SelectorKind::TWILIGHT;
          const uint64_t heads = 8 * 2,
                         per_block = four_bits ? 16 * (64 / 2 + 4) : 16 * (64 / 4 + 2) + 64 + 4;
          const uint64_t blocks = n_ctx / 16,
                         whole_runs =
                             (blocks + 63) / 64 * 64;  // memory comes for 64 blocks at once
          CHECK(said == heads * per_block * whole_runs);
        }
        CHECK(plan.total ==
              plan.weights + plan.activations + plan.digests + plan.prefill_kv + plan.pool);
      }
}
