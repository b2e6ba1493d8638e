// Many requests at once: the texts are those that each gives alone, and nobody waits for ever.
#include <numeric>

#include "tests/engine/schedule/scheduled.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("scheduler: every text is the one that a request gives alone", "[scheduler]") {
  std::vector<Ask> asks = {ask(700, 1, 24), ask(65, 2, 40, 0.9f), ask(1500, 3, 12),
                           ask(3, 4, 30),   ask(400, 5, 1),       ask(900, 6, 20, 1.2f),
                           ask(130, 7, 0),  ask(64, 8, 33)};
  asks[3].options.ignore_eos = false;
  asks[7].options.stop = {"e", "zzzz"};
  OneIn one(3);
  for (const SelectorKind selector :
       here({SelectorKind::PSA, SelectorKind::DENSE, SelectorKind::TWILIGHT})) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(base(selector), a));
    struct Variant {
      const char* name;
      int slots, max_seqs, max_tokens;
      PrefillMode prefill;
      int64_t inject;
      bool control, reuse;
    };
    for (const Variant& v :
         {Variant{"cpu", 0, 0, 0, PrefillMode::LAYERS, 0, true, true},
          Variant{"emu, one segment a layer", 2000, 8, 0, PrefillMode::LAYERS, 1, true, true},
          Variant{"emu, small pool", 300, 8, 0, PrefillMode::LAYERS, 300, true, true},
          Variant{"emu, small pool, no control", 300, 8, 0, PrefillMode::LAYERS, 300, false, true},
          Variant{"emu, chunks", 900, 5, 0, PrefillMode::CHUNKS, 1500, true, false},
          Variant{"emu, whole prompts", 900, 3, 0, PrefillMode::WHOLE, 0, true, true},
          Variant{"two rows an iteration", 900, 8, 2, PrefillMode::LAYERS, 0, true, true},
          Variant{"one at a time", 900, 1, 0, PrefillMode::LAYERS, 0, true, true}}) {
      if (one.skips()) continue;
      INFO("selector " << selector << ", " << v.name);
      ContextOptions o = base(selector);
      if (v.slots) o.device = DeviceKind::EMU, o.slots = v.slots;
      Runtime r(o);
      SchedulerOptions so = defaults();
      so.max_seqs = v.max_seqs;
      so.max_tokens = v.max_tokens;
      so.prefill_mode = v.prefill;
      so.max_inject_tokens = v.inject;
      so.ws_control = v.control;
      so.prefix_reuse = v.reuse;
      Run run(r, so);
      std::vector<uint64_t> ids;
      for (size_t i = 0; i < asks.size(); ++i) {
        ids.push_back(run.submit(asks[i]));
        if (i % 3 == 2)
          for (int k = 0; k < 5; ++k) run.step();
      }
      run.finish();
      for (size_t i = 0; i < asks.size(); ++i) {
        INFO("request " << i);
        check_same(run.got[ids[i]], want[i]);
        CHECK(run.got[ids[i]].prompt_tokens == asks[i].prompt.size());
      }
    }
  }
}

TEST_CASE(
    "scheduler: a prompt never holds more than one layer of KV, and never holds decode up for long",
    "[scheduler]") {
  ContextOptions o = base();
  o.device = DeviceKind::EMU;
  o.slots = 2000;
  Runtime r(o);
  SchedulerOptions so = defaults();
  so.max_inject_tokens = 256;
  Run run(r, so);
  run.submit(ask(100, 1, 400));
  while (run.got[1].tokens.size() < 3) run.step();
  run.submit(ask(2000, 2, 4));
  run.finish();
  int64_t total = 0, held = 0;
  size_t iterations = 0;
  for (const Iteration& it : run.iterations) {
    CHECK(it.prefill_token_layers <= 256);
    held = std::max(held, it.prefill_kv_blocks);
    total += it.prefill_token_layers;
    if (it.prefill_token_layers > 0 && total > 100 * model_number(r.model, "n_layers")) {
      ++iterations;
      CHECK(it.decode_rows == 1);  // decode goes on during every segment
    }
  }
  CHECK(held == (2000 + 15) / 16 *
                    model_number(r.model, "n_kv_heads"));  // all that was ever allocated for it
  CHECK(total == int64_t(2100) * model_number(r.model, "n_layers"));
  CHECK(iterations >= size_t(2000 * model_number(r.model, "n_layers") / 256));
}

TEST_CASE("scheduler: what is stepped together fits in the pool, and nobody waits for long",
          "[scheduler]") {
  ContextOptions o = base();
  o.device = DeviceKind::EMU;
  o.selection.epsilon = 0.98f;
  o.slots = 1500;
  // The longest wait of a sequence that decodes, with small ones coming as long as a large one is
  // there.
  const auto longest_wait = [&](int max_skips) {
    Runtime r(o);
    SchedulerOptions so = defaults();
    so.max_skips = max_skips;
    so.working_set_steps = 12;
    Run run(r, so);
    std::vector<uint64_t> large = {run.submit(ask(1900, 1, 100))};
    for (int i = 2; i <= 8; ++i) {
      const uint64_t id = run.submit(ask(i % 2 ? 1800 : 100, i, 60));
      if (i % 2) large.push_back(id);
    }
    run.next = [&]() -> std::optional<Ask> {
      if (std::all_of(large.begin(), large.end(),
                      [&](uint64_t id) { return run.got[id].ends > 0; }))
        return std::nullopt;
      return ask(80, 20, 30);
    };
    run.finish();
    CHECK(run.got.size() > 12);  // some did come
    size_t longest = 0;
    int skipped = 0;
    for (const auto& [id, got] : run.got) {
      CHECK((got.ends == 1 && got.status == RIFFLE_OK));
      longest = std::max(longest, got.longest_wait);
    }
    for (const Iteration& it : run.iterations) {
      skipped += it.skipped;
      if (it.decode_rows > 1) CHECK(it.working_set <= it.available);
    }
    CHECK(skipped > 0);  // else this tested nothing
    return longest;
  };
  const size_t bound =
      10 + 8;  // those that have waited as long go first, one of them in each iteration at least
  CHECK(longest_wait(10) <= bound);
  CHECK(longest_wait(100000) > 2 * bound);
}

TEST_CASE("scheduler: random requests, limits and interruptions change no text", "[scheduler]") {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const std::vector<int32_t> document = some_tokens(600, 90);
  std::vector<Ask> asks;
  for (int i = 0; i < 14; ++i) {
    Ask a = ask(pick(1, 3) == 1 ? pick(2, 60) : pick(60, 900), 100 + i, pick(1, 40),
                pick(0, 1) ? 1.1f : 0);
    if (i % 4 == 3)
      std::copy_n(document.begin(), std::min<size_t>(pick(64, 600), a.prompt.size()),
                  a.prompt.begin());
    asks.push_back(a);
  }
  for (const SelectorKind selector : here({psa_or_share(), SelectorKind::TWILIGHT})) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(base(selector), a));
    for (int round = 0; round < (all_rounds() ? 8 : 2); ++round) {
      ContextOptions o = base(selector);
      o.n_sessions = pick(1, 8);
      if (pick(0, 2)) o.device = DeviceKind::EMU, o.slots = pick(250, 1500);
      if (pick(0, 2) == 0) o.host_mem = full_session_bytes(o) * pick(10, 25) / 10;
      SchedulerOptions so = defaults();
      so.prefill_mode = pick(0, 2)   ? PrefillMode::LAYERS
                        : pick(0, 1) ? PrefillMode::CHUNKS
                                     : PrefillMode::WHOLE;
      so.max_inject_tokens = pick(1, 3000);
      so.max_tokens = pick(0, 1) ? 0 : pick(1, 300);
      so.working_set_steps = pick(0, 20);
      so.max_skips = pick(1, 64);
      so.ws_control = pick(0, 3) != 0;
      so.prefix_reuse = pick(0, 3) != 0;
      // A chunk of one layer is read in any case, and other ways of reading prompts take larger
      // pieces.
      const bool bounded = so.max_tokens > 0 && so.prefill_mode == PrefillMode::LAYERS;
      INFO("selector " << selector << ", round " << round << ": sessions " << o.n_sessions
                       << ", slots " << o.slots << ", host_mem " << o.host_mem << ", prefill "
                       << so.prefill_mode << ", inject " << so.max_inject_tokens << ", tokens "
                       << so.max_tokens << ", working set of " << so.working_set_steps);
      Runtime r(o);
      Run run(r, so);
      std::vector<size_t> order(asks.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      std::map<uint64_t, size_t> which;
      size_t next = 0;
      bool more = true;
      while (more || next < order.size()) {
        REQUIRE(run.iterations.size() < 20000);
        if (next < order.size() && pick(0, 3) == 0) {
          which[run.submit(asks[order[next]])] = order[next];
          ++next;
        }
        if (pick(0, 30) == 0) {  // one that nobody asks about any more
          const uint64_t id = run.submit(asks[pick(0, 13)]);
          for (int k = pick(0, 9); k > 0; --k) run.step();
          if (run.got[id].ends == 0) r.check(riffle_scheduler_cancel(run.scheduler, id));
        }
        if (pick(0, 20) == 0) {
          riffle_abort(r.context, true);
          CHECK(scheduler_step(run.scheduler, nullptr) == RIFFLE_ABORTED);
        }
        more = run.step();
        const Iteration& it = run.iterations.back();
        if (so.max_tokens > 0) CHECK(it.decode_rows <= so.max_tokens);
        if (bounded)
          CHECK(it.prefill_token_layers <= std::max<int64_t>((so.max_tokens - it.decode_rows) *
                                                                 model_number(r.model, "n_layers"),
                                                             o.prefill_chunk));
      }
      for (const auto& [id, i] : which) {
        INFO("request " << i);
        check_same(run.got[id], want[i]);
      }
      CHECK(r.stats().host_kv_bytes == 0);
    }
  }
}

TEST_CASE("scheduler: prompts that begin alike are read once", "[scheduler][prefix]") {
  OneIn one(3);
  std::vector<int32_t> document = some_tokens(1200, 50);
  std::vector<Ask> asks;
  for (int i = 0; i < 6; ++i) {
    Ask a = ask(40 + 13 * i, 60 + i, 10);
    a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
    asks.push_back(a);
  }
  asks.push_back(asks[0]);  // the same once more
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(base(), a));
  for (const int max_seqs : {1, 2, 8})
    for (const bool emu : {false, true})
      for (const bool reuse : {true, false}) {
        if (one.skips()) continue;
        INFO("max_seqs " << max_seqs << ", emu " << emu << ", reuse " << reuse);
        ContextOptions o = base();
        if (emu) o.device = DeviceKind::EMU, o.slots = 600;
        Runtime r(o);
        SchedulerOptions so = defaults();
        so.max_seqs = max_seqs;
        so.prefix_reuse = reuse;
        Run run(r, so);
        for (const Ask& a : asks) run.submit(a);
        run.finish();
        for (size_t i = 0; i < asks.size(); ++i) {
          INFO("request " << i);
          check_same(run.got[i + 1], want[i]);
          if (!reuse || i == 0) CHECK(run.got[i + 1].reused == 0);
          else
            CHECK(run.got[i + 1].reused >= (i + 1 == asks.size() && max_seqs == 8
                                                ? asks[i].prompt.size() - 1
                                                : document.size()));
        }
        const Stats stats = r.stats();
        CHECK(stats.host_kv_bytes == 0);  // nothing is held any more
        if (reuse) CHECK(stats.prefill_tokens < 2 * document.size());
      }
}

TEST_CASE("scheduler: an abort stops an iteration, and the next one goes on", "[scheduler]") {
  const std::vector<Ask> asks = {ask(900, 1, 20), ask(500, 2, 20)};
  Runtime r(base());
  SchedulerOptions so = defaults();
  so.max_inject_tokens = 500;
  Run run(r, so);
  for (const Ask& a : asks) run.submit(a);
  for (int i = 0;; ++i) {
    if (i % 3 == 1) {
      riffle_abort(r.context, true);
      CHECK(scheduler_step(run.scheduler, nullptr) == RIFFLE_ABORTED);
    }
    if (!run.step()) break;
  }
  for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], alone(base(), asks[i]));
}

TEST_CASE("scheduler: while it reads a prompt, other prompts are refused and change nothing",
          "[scheduler]") {
  Runtime r(base());
  const auto tokens = some_tokens(300, 1);
  riffle_session* s = r.session(tokens);
  const auto before = r.logits(s);
  SchedulerOptions so = defaults();
  so.max_inject_tokens = 1;
  Run run(r, so);
  run.submit(ask(1500, 2, 1));
  run.step();
  REQUIRE(run.iterations.back().n_prefilling == 1);
  CHECK(riffle_prefill(s, tokens.data(), 1, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_prefill_to(s, tokens.data(), 100, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(std::string(riffle_context_error(r.context)).find("read by its scheduler") !=
        std::string::npos);
  CHECK(riffle_session_length(s) == tokens.size());
  CHECK(r.logits(s) == before);
  // A prompt that the session holds already needs no run.
  CHECK(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr) == RIFFLE_OK);
  CHECK(r.logits(s) == before);
  run.finish();
  r.check(riffle_prefill_to(s, tokens.data(), 100, nullptr, nullptr));
}

TEST_CASE("scheduler: requests can be cancelled wherever they are", "[scheduler]") {
  Runtime r(base());
  SchedulerOptions so = defaults();
  so.max_inject_tokens = 300;
  so.max_seqs = 2;
  Run run(r, so);
  const Ask first = ask(200, 1, 30);
  run.submit(first);
  run.submit(ask(1000, 2, 30));
  run.submit(ask(1000, 3, 30));
  while (run.got[1].tokens.size() < 2) run.step();
  run.step();
  run.r.check(riffle_scheduler_cancel(run.scheduler, 3));
  CHECK(run.got[3].result.finish == RIFFLE_FINISH_ABORTED);
  run.r.check(riffle_scheduler_cancel(run.scheduler, 2));
  CHECK(riffle_scheduler_cancel(run.scheduler, 2) == RIFFLE_BAD_ARGUMENT);
  run.finish();
  check_same(run.got[1], alone(base(), first));
  CHECK(run.got[2].ends == 1);
  const uint64_t late = run.submit(first);
  while (run.got[late].tokens.size() < 5) run.step();
  run.r.check(riffle_scheduler_cancel(run.scheduler, late));
  CHECK(run.got[late].result.finish == RIFFLE_FINISH_ABORTED);
  CHECK_FALSE(run.step());
}

TEST_CASE("scheduler: what cannot be asked of it is said", "[scheduler]") {
  Runtime r(base());
  riffle_scheduler* s = nullptr;
  SchedulerOptions o = defaults();
  const auto refused = [&](const char* what) {
    CHECK(scheduler_create(r.context, &o, nullptr, &s) == RIFFLE_BAD_ARGUMENT);
    INFO(riffle_context_error(r.context));
    CHECK(std::string(riffle_context_error(r.context)).find(what) != std::string::npos);
    o = defaults();
  };
  o.working_set_steps = 65, refused("working-set-steps is 65, expected 0 to 64");
  o.max_skips = 0, refused("max-skips");
  o.max_seqs = -1, refused("max-seqs");
  o.prefill_mode = static_cast<PrefillMode>(7), refused("prefill-mode");
  r.check(scheduler_create(r.context, nullptr, nullptr, &s));
  riffle_scheduler* second = nullptr;
  CHECK(scheduler_create(r.context, nullptr, nullptr, &second) == RIFFLE_BAD_ARGUMENT);
  Selection selection;
  CHECK(set_selection(r.context, &selection) == RIFFLE_BAD_ARGUMENT);
  CHECK(scheduler_submit(s, nullptr, 0, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  const std::vector<int32_t> bad = {1, 1 << 30}, long_one(3000, 5);
  CHECK(scheduler_submit(s, bad.data(), bad.size(), nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(scheduler_submit(s, long_one.data(), long_one.size(), nullptr, nullptr) ==
        RIFFLE_CONTEXT_FULL);
  // A limit that a request asks for has to fit; one from elsewhere only ends the answer.
  GenerateOptions answer;
  answer.limit_field = "max_tokens";
  answer.max_tokens = static_cast<int32_t>(riffle_context_length(r.context)) - 2;
  CHECK(scheduler_submit(s, long_one.data(), 3, &answer, nullptr) == RIFFLE_CONTEXT_FULL);
  CHECK(std::string(riffle_context_error(r.context))
            .find("the prompt has 3 tokens and max_tokens "
                  "is ") == 0);
  const auto n_ctx = static_cast<size_t>(riffle_context_length(r.context));
  const std::vector<int32_t> full(n_ctx, 5);
  answer.limit_field = "max_completion_tokens";
  CHECK(scheduler_submit(s, full.data(), n_ctx, &answer, nullptr) == RIFFLE_CONTEXT_FULL);
  const std::string said = riffle_context_error(r.context);
  CHECK(said.find("tokens and max_completion_tokens is ") != said.npos);
  CHECK(said.ends_with("; the prompt may have at most " + std::to_string(n_ctx - 1) + " tokens"));
  uint64_t id = 0;
  for (const bool asked : {true, false}) {
    answer.limit_field = asked ? "max_tokens" : nullptr;
    r.check(scheduler_submit(s, long_one.data(), asked ? 2 : 3, &answer, &id));
    r.check(riffle_scheduler_cancel(s, id));
  }
  r.check(scheduler_step(s, nullptr));  // nothing to do
  riffle_scheduler_free(s);
  r.check(set_selection(r.context, &selection));
}
