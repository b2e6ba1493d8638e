// The same bits for any pool size, eviction policy, thread count, look-ahead, chunk, batch and
// device.
#include <map>

#include "tests/engine/steps.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("logits do not depend on where the KV is, on threads, chunks or look-ahead",
          "[invariance][long]") {
  OneIn one(2);
  const auto prompt = some_tokens(1500, 7),
             steps = some_tokens(40, 8);  // crosses block boundaries while decoding
  for (SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK})) {
    if (!all_rounds() && selector == SelectorKind::TOPK) continue;
    INFO("selector " << selector);
    std::vector<std::vector<float>> reference;
    {
      Runtime r(selective(selector));
      reference = run(r, r.session(), prompt, steps);
    }
    std::map<std::string, ContextOptions> variants;
    const auto add = [&](const char* name, auto&& change) {
      change(variants[name] = selective(selector));
    };
    add("one thread, or two", [](auto& o) { o.n_threads = 3 - usual_threads(); });
    add("three threads", [](auto& o) { o.n_threads = 3; });
    add("prefill in chunks of 100", [](auto& o) { o.prefill_chunk = 100; });
    add("prefill in chunks of 1000", [](auto& o) { o.prefill_chunk = 1000; });
    add("emu, all slots", [](auto& o) { o.device = DeviceKind::EMU; });
    add("emu, fewest slots", [](auto& o) { o.device = DeviceKind::EMU, o.slots = 16 + 7; });
    add("emu, 60 slots, FIFO",
        [](auto& o) { o.device = DeviceKind::EMU, o.slots = 60, o.evict = EvictRule::FIFO; });
    add("emu, per layer",
        [](auto& o) { o.device = DeviceKind::EMU, o.slots = 160, o.pool_per_layer = true; });
    add("emu, look-ahead 2, 3 threads", [](auto& o) {
      o.device = DeviceKind::EMU, o.slots = 90, o.selection.lookahead = 2, o.n_threads = 3;
    });
    for (const auto& [name, o] : variants) {
      if (one.skips()) continue;
      INFO(name);
      Runtime r(o);
      CHECK(same_bits(run(r, r.session(), prompt, steps), reference));
    }
  }
}

TEST_CASE("selections by codes do not depend on threads that share a row", "[invariance][long]") {
  // A row has several parts, two with few rounds.
  const auto prompt = some_tokens(few_rounds() ? 3000 : 5000, 57), steps = some_tokens(20, 58);
  const auto selectors = here({SelectorKind::SHARE, SelectorKind::PSA, SelectorKind::TOPK});
  for (const SelectorKind selector : selectors) {
    INFO("selector " << selector);
    if (!all_rounds() && selector == SelectorKind::TOPK) continue;
    if (few_rounds() && selector == SelectorKind::PSA) continue;
    ContextOptions o = selective(selector);
    o.n_ctx = 6144;
    o.selection.rank = RankBy::CODES;
    o.n_threads = 1;
    Runtime one(o);
    const auto reference = run(one, one.session(), prompt, steps);
    o.n_threads = 5;
    Runtime five(o);
    CHECK(same_bits(run_first_of_three(five, prompt, steps), reference));
    o.device = DeviceKind::EMU, o.n_threads = 3, o.slots = 400;
    Runtime pooled(o);
    CHECK(same_bits(run(pooled, pooled.session(), prompt, steps), reference));
  }
}

TEST_CASE("the pool gives the same bits for every block size and KV type", "[invariance]") {
  OneIn one(2);
  const auto prompt = some_tokens(700, 17), steps = some_tokens(70, 18);
  for (int block : {16, 32, 64})
    for (KvKind type : {KvKind::F16, KvKind::F32, KvKind::Q8}) {
      if (one.skips()) continue;
      INFO("block " << block << " kv type " << type);
      ContextOptions o = selective(psa_or_share());
      o.block_size = block;
      o.kv_type = type;
      Runtime in_place(o);
      o.device = DeviceKind::EMU;
      o.slots = 16 + 9;
      Runtime pooled(o);
      CHECK(same_bits(run(pooled, pooled.session(), prompt, steps),
                      run(in_place, in_place.session(), prompt, steps)));
    }
}

TEST_CASE("sequences stepped together give what each gives alone", "[invariance][long]") {
  OneIn one(2);
  std::vector<std::vector<int32_t>> prompts, steps;
  for (int i = 0; i < 5; ++i) {
    prompts.push_back(some_tokens(37 + 211 * i, 100 + i));
    steps.push_back(some_tokens(36, 200 + i));
  }
  for (SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK, SelectorKind::SHARE})) {
    if (!all_rounds() && selector == SelectorKind::TOPK) continue;
    std::vector<std::vector<std::vector<float>>> alone;
    for (int i = 0; i < 5; ++i) {
      Runtime r(selective(selector));
      alone.push_back(run(r, r.session(), prompts[i], steps[i]));
    }
    // Pools that hold the tails of two sequences, of three and nothing else, and of all: the step
    // is split, or others are parked to make room.
    for (int slots : {0, 16 * 2 + 9, 16 * 3, 16 * 6}) {
      if (one.skips()) continue;
      INFO("selector " << selector << " slots " << slots);
      ContextOptions o = selective(selector);
      if (slots) o.device = DeviceKind::EMU, o.slots = slots;
      Runtime r(o);
      std::vector<riffle_session*> sessions;
      std::vector<std::vector<std::vector<float>>> together(5);
      for (int i = 0; i < 5; ++i) {
        sessions.push_back(r.session());
        r.check(
            riffle_prefill(sessions[i], prompts[i].data(), prompts[i].size(), nullptr, nullptr));
        together[i].push_back(r.logits(sessions[i]));
      }
      for (size_t t = 0; t < steps[0].size(); ++t) {
        std::vector<int32_t> tokens;
        for (int i = 0; i < 5; ++i) tokens.push_back(steps[i][t]);
        r.check(riffle_step(r.context, sessions.data(), tokens.data(), 5));
        for (int i = 0; i < 5; ++i) together[i].push_back(r.logits(sessions[i]));
      }
      for (int i = 0; i < 5; ++i) CHECK(same_bits(together[i], alone[i]));
    }
  }
}

TEST_CASE("a truncated session goes on as if it had never been longer", "[invariance]") {
  const auto prompt = some_tokens(777, 1), more = some_tokens(500, 2), steps = some_tokens(70, 3);
  for (bool emu : {false, true}) {
    ContextOptions o = selective(psa_or_share());
    if (emu) o.device = DeviceKind::EMU, o.slots = 64;
    Runtime r(o);
    const auto expected = run(r, r.session(), prompt, steps);
    riffle_session* s = r.session();
    r.check(riffle_prefill(s, prompt.data(), prompt.size() - 100, nullptr, nullptr));
    r.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
    for (int32_t t : steps) r.check(riffle_step(r.context, &s, &t, 1));
    r.check(riffle_session_truncate(s, prompt.size() - 100));
    const std::vector<int32_t> rest(prompt.end() - 100, prompt.end());
    const auto got = run(r, s, rest, steps);
    CHECK(same_bits(got, expected));
  }
}
