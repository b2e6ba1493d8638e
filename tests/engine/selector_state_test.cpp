// The bytes that a selector keeps of a sequence: the memory plan's figure against the selector's
// own.
#include <utility>

#include "select/selector.h"
#include "tests/engine/test_model.h"

using namespace riffle::test;

namespace {

riffle_plan plan_of(const Runtime& r, const riffle_context_options& o) {
  riffle_plan plan{};
  plan.struct_size = sizeof plan;
  r.check(riffle_plan_memory(r.model, &o, &plan, nullptr, 0));
  return plan;
}

// riffle_stats.index_bytes of a full session, less the digests of its full blocks, where the
// selection reads any.
uint64_t kept(const riffle_context_options& o) {
  Runtime r(o);
  riffle_session* s = r.session();
  const auto tokens = some_tokens(o.n_ctx - 24, 3), steps = some_tokens(24, 4);
  r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
  for (int32_t t : steps) r.check(riffle_step(r.context, &s, &t, 1));
  riffle_stats stats{};
  stats.struct_size = sizeof stats;
  REQUIRE(riffle_session_get_stats(s, &stats) == RIFFLE_OK);
  const uint64_t heads = 8 * 2,
                 blocks = o.n_ctx / o.block_size;  // blocks of the shipped model; head_dim 64
  return stats.index_bytes - heads * blocks * riffle::digest_spec(o.selection).bytes(64);
}

}  // namespace

TEST_CASE("the plan's selector state is what a full session keeps", "[engine][model]") {
  std::vector<std::pair<riffle_selector, riffle_rank>> all = {
      {RIFFLE_SELECTOR_PSA, RIFFLE_RANK_CODES}, {RIFFLE_SELECTOR_TOPK, RIFFLE_RANK_CODES}};
  for (int selector = RIFFLE_SELECTOR_DENSE; selector <= RIFFLE_SELECTOR_AUTO; ++selector)
    all.push_back({static_cast<riffle_selector>(selector), RIFFLE_RANK_DIGESTS});
  for (const riffle_device device : {RIFFLE_DEVICE_CPU, RIFFLE_DEVICE_EMU})
    for (const auto& [selector, rank] : all)
      for (const int n_ctx : {1024, 3088}) {
        riffle_context_options o = options();
        o.device = device;
        o.n_ctx = n_ctx;
        o.selection.selector = selector;
        o.selection.rank = rank;
        o.selection.select_tokens = 300;
        const Runtime r(o);
        const riffle_plan plan = plan_of(r, o);
        const uint64_t have = kept(o), said = plan.selector_state;
        INFO("selector " << selector << ", rank " << rank << ", " << n_ctx << " tokens: planned "
                         << said << ", kept " << have);
        if (selector == RIFFLE_SELECTOR_LFPS) {  // the tables; candidates depend on the text
          const uint64_t tables = uint64_t(8) * 2 * n_ctx * 2 * 4;
          CHECK(said >= tables);
          CHECK(said - tables <= 8 * 2 * 2048);  // the part that does not grow with the text
          CHECK(said <= have);
          CHECK(have <= 2 * said);
        } else {
          CHECK(said == have);
        }
        // The selector that auto stands for depends on the length.
        const bool codes = rank == RIFFLE_RANK_CODES || plan.selector == RIFFLE_SELECTOR_TWILIGHT ||
                           plan.selector == RIFFLE_SELECTOR_SHARE;
        const bool keeps = codes || plan.selector >= RIFFLE_SELECTOR_TWILIGHT;
        CHECK((said > 0) == keeps);
        if (codes) {
          // d/2 + 4 bytes a token; the mean value of a block
          const uint64_t heads = 8 * 2, per_block = 16 * (64 / 2 + 4) + 64 * 2;
          const uint64_t blocks = n_ctx / 16,
                         whole_runs =
                             (blocks + 63) / 64 * 64;  // memory comes for 64 blocks at once
          CHECK(said == heads * (per_block * whole_runs + 64 * 4));  // and the mean of all values
        }
        CHECK(plan.total ==
              plan.weights + plan.activations + plan.digests + plan.prefill_kv + plan.pool);
      }
}

TEST_CASE("lfps keeps what a follow-up prompt found until the second step after it",
          "[engine][model]") {
  riffle_context_options o = options();
  o.n_ctx = 3088;
  o.selection.selector = RIFFLE_SELECTOR_LFPS;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto bytes = [&] {
    riffle_stats stats{};
    stats.struct_size = sizeof stats;
    REQUIRE(riffle_session_get_stats(s, &stats) == RIFFLE_OK);
    return stats.index_bytes;
  };
  const auto tokens = some_tokens(2060, 3);
  const uint64_t tables = uint64_t(8) * 2 * 2000 * 2 * 4;
  r.check(riffle_prefill(s, tokens.data(), 2000, nullptr, nullptr));
  const auto step = [&] { r.check(riffle_step(r.context, &s, &tokens[1], 1)); };
  step(), step();
  const uint64_t before = bytes();
  r.check(riffle_prefill(s, tokens.data() + 2000, 20, nullptr, nullptr));
  CHECK(bytes() >= before + tables);
  step();
  CHECK(bytes() >= before + tables);
  step();
  CHECK(bytes() < before + tables / 2);
  // Steps of another selector are as sure to stay, once a block is full.
  r.check(riffle_prefill(s, tokens.data() + 2020, 20, nullptr, nullptr));
  CHECK(bytes() >= before + tables);
  o.selection.selector = RIFFLE_SELECTOR_DENSE;
  r.check(riffle_set_selection(r.context, &o.selection));
  for (int i = 0; i < o.block_size; ++i) step();
  CHECK(bytes() < before + tables / 2);
}
