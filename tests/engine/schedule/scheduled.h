// Requests for a scheduler, and what they got.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tests/engine/host_kv.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

namespace riffle::test {

struct Ask {
  std::vector<int32_t> prompt;
  GenerateOptions options{};
};

struct Got {
  std::string text;
  std::vector<int32_t> tokens;
  riffle_result result{};
  riffle_status status = RIFFLE_OK;
  std::string error;
  size_t prompt_tokens = 0, reused = 0, loaded = 0;
  int ends = 0;
  size_t began = 0;                   // iteration of the first token
  size_t last = 0, longest_wait = 0;  // iteration of the last one; iterations between two
};

inline Ask ask(int length, uint32_t seed, int max_tokens, float temperature = 0) {
  Ask a;
  a.prompt = some_tokens(length, seed);
  a.options.max_tokens = max_tokens;
  a.options.sampling.temperature = temperature;
  a.options.sampling.seed = seed;
  a.options.ignore_eos = true;
  return a;
}

inline ContextOptions base(SelectorKind selector = psa_or_share()) {
  ContextOptions o = options();
  o.n_ctx = 2048;
  o.n_threads = usual_threads();
  o.block_size = 16;
  o.n_sessions = 8;
  o.prefill_chunk = 128;
  o.selection.selector = selector;
  o.selection.microbatch = 4;
  return o;
}

inline Got alone(const ContextOptions& o, const Ask& a,
                 const std::string& model = shipped_model()) {
  Runtime r(o, model);
  Got got;
  riffle_session* s = r.session();
  r.check(riffle_prefill(s, a.prompt.data(), a.prompt.size(), nullptr, nullptr));
  const auto on_token = [](void* user, size_t, const riffle_token* token) {
    auto* g = static_cast<Got*>(user);
    if (token->id >= 0) g->tokens.push_back(token->id);
    g->text.append(token->text, token->text_len);
    return true;
  };
  r.check(generate(s, &a.options, on_token, &got, &got.result));
  return got;
}

// A scheduler and what its requests got.
struct Run {
  Runtime& r;
  riffle_scheduler* scheduler = nullptr;
  std::map<uint64_t, Got> got;
  std::vector<Iteration> iterations;
  std::function<std::optional<Ask>()>
      next;  // asked whenever a request ends, and submitted from inside on_end

  Run(Runtime& runtime, const SchedulerOptions& o) : r(runtime) {
    r.check(scheduler_create(r.context, &o, this, &scheduler));
    riffle_scheduler_on_token(scheduler, [](void* user, uint64_t id, const riffle_token* token) {
      auto* run = static_cast<Run*>(user);
      Got& g = run->got[id];
      const size_t now = run->iterations.size();
      if (g.tokens.empty()) g.began = g.last = now;
      g.longest_wait = std::max(g.longest_wait, now - g.last);
      g.last = now;
      if (token->id >= 0) g.tokens.push_back(token->id);
      g.text.append(token->text, token->text_len);
      return true;
    });
    riffle_scheduler_on_end(
        scheduler, [](void* user, uint64_t id, riffle_status status, const riffle_info* end) {
          auto* run = static_cast<Run*>(user);
          Got& g = run->got[id];
          const auto number = [&](const char* name) {
            return static_cast<size_t>(riffle_info_number(end, name));
          };
          g.status = status;
          g.error = riffle_info_text(end, "error");
          g.result.finish = static_cast<riffle_finish>(number("finish"));
          g.result.n_tokens = static_cast<int32_t>(number("n_tokens"));
          g.prompt_tokens = number("prompt_tokens");
          g.reused = number("reused_tokens");
          g.loaded = number("loaded_tokens");
          ++g.ends;
          if (!run->next) return;
          if (const std::optional<Ask> a = run->next()) run->submit(*a);
        });
  }
  ~Run() { riffle_scheduler_free(scheduler); }

  uint64_t submit(const Ask& a) {
    uint64_t id = 0;
    r.check(scheduler_submit(scheduler, a.prompt.data(), a.prompt.size(), &a.options, &id));
    return id;
  }
  bool step() {
    Iteration it{};
    r.check(scheduler_step(scheduler, &it));
    iterations.push_back(it);
    return it.n_waiting + it.n_prefilling + it.n_decoding > 0;
  }
  void finish() {
    while (step()) REQUIRE(iterations.size() < 20000);
  }
};

inline SchedulerOptions defaults() {
  SchedulerOptions o;
  return o;
}

inline void check_same(const Got& got, const Got& want) {
  CHECK(got.ends == 1);
  CHECK(got.status == RIFFLE_OK);
  CHECK(got.text == want.text);
  CHECK(got.tokens == want.tokens);
  CHECK(got.result.finish == want.result.finish);
  CHECK(got.result.n_tokens == want.result.n_tokens);
}

inline uint64_t full_session_bytes(const ContextOptions& o) {
  Runtime r(o);
  MemoryPlan plan{};
  char err[512];
  REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
  return plan.host_kv;
}

// Answers as long as prompts, in memory for one to two full sessions: whoever finds none waits or
// begins again, and all texts are those of requests alone. make: the context options of a selector,
// with or without a small pool.
template <typename Make>
void check_short_memory(Make make) {
  OneIn one(2);
  constexpr int kContext = 512;
  std::vector<int32_t> document = some_tokens(300, 50);
  std::vector<Ask> asks = {ask(150, 1, 250), ask(125, 2, 200, 0.9f), ask(400, 3, 20),
                           ask(35, 4, 250), ask(100, 5, 150, 1.2f)};
  for (int i = 0; i < 3; ++i) {
    asks.push_back(ask(40 + i, 60 + i, 15));
    asks.back().prompt.insert(asks.back().prompt.begin(), document.begin(), document.end());
  }
  for (const SelectorKind selector : here({SelectorKind::PSA, SelectorKind::DENSE})) {
    ContextOptions o = make(selector, false);
    o.n_ctx = kContext;
    std::vector<Got> want;
    int64_t prompt_tokens = 0;
    for (const Ask& a : asks) {
      want.push_back(alone(o, a));
      prompt_tokens += static_cast<int64_t>(a.prompt.size());
    }
    const uint64_t full = full_session_bytes(o);
    int64_t again = 0;  // tokens of prompts that were read once more
    for (const bool pool : {false, true})
      for (const uint64_t host_mem : {full, full + full / 3, 2 * full})
        for (const PrefillMode prefill : {PrefillMode::LAYERS, PrefillMode::WHOLE}) {
          if (one.skips()) continue;
          if ((prefill == PrefillMode::WHOLE || selector == SelectorKind::DENSE) &&
              host_mem != full + full / 3)
            continue;
          if (!all_rounds() && host_mem == 2 * full) continue;
          INFO("selector " << selector << ", pool " << pool << ", host_mem " << host_mem << " of "
                           << full << ", prefill " << prefill);
          o = make(selector, pool);
          o.n_ctx = kContext;
          o.host_mem = host_mem;
          Runtime r(o);
          SchedulerOptions so = defaults();
          so.prefill_mode = prefill;
          so.max_inject_tokens = 600;
          Run run(r, so);
          for (const Ask& a : asks) run.submit(a);
          int64_t read = 0, once = prompt_tokens;
          bool more = true;
          while (more) {
            more = run.step();
            read += run.iterations.back().prefill_token_layers;
            REQUIRE(host_kv_bytes(r) <= host_mem);
            REQUIRE(run.iterations.size() < 20000);
          }
          for (size_t i = 0; i < asks.size(); ++i) {
            INFO("request " << i);
            check_same(run.got[i + 1], want[i]);
            once -= static_cast<int64_t>(run.got[i + 1].reused);
          }
          CHECK(host_kv_bytes(r) == 0);
          again += read / model_number(r.model, "n_layers") - once;
        }
    CHECK(again > 0);  // else nobody began again, and this tested waiting alone
  }
}

}  // namespace riffle::test
