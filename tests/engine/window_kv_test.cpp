// Layers with a sliding window keep KV for their windows: how much is held, that no result changes,
// and where sessions can be cut and forked. The rules alone: tests/kv/window_test.cpp.
#include <random>

#include "tests/engine/schedule/scheduled.h"
#include "tests/engine/window_histories.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Models whose windows (64 or 100 tokens) are in all layers, or in some.
constexpr const char* kModels[] = {"mistral_window", "gemma3", "olmo3_period", "exaone4",
                                   "gemma4_e2b"};

ContextOptions on(DeviceKind device, SelectorKind selector = SelectorKind::SHARE) {
  ContextOptions o = sparse(selector);
  o.device = device;
  if (device == DeviceKind::EMU) o.slots = 100;
  return o;
}

// Returns the answer to a request that is alone in its context.
Got answer(const ContextOptions& o, const std::string& path, const Ask& a) {
  Runtime r(o, path);
  riffle_session* s = r.session();
  Got got;
  r.check(riffle_prefill(s, a.prompt.data(), a.prompt.size(), nullptr, nullptr));
  const auto on_token = [](void* user, size_t, const riffle_token* token) {
    if (token->id >= 0) static_cast<Got*>(user)->tokens.push_back(token->id);
    return true;
  };
  r.check(generate(s, &a.options, on_token, &got, &got.result));
  return got;
}

}  // namespace

// gemma3 has seven layers, six with a window of 64, one KV head of 2 * 16 * head_dim f16 values a
// block; a prompt's end and the last token keep 64 tokens more, from a multiple of 64 on.
TEST_CASE("window: host memory holds the windows, counted by hand", "[window][memory]") {
  const TempDir temp;
  const std::string path = tiny_folder(tiny_checkpoint("gemma3"), temp);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = on(device);
    o.kv_type = KvKind::F16;
    Runtime r(o, path);
    REQUIRE(model_number(r.model, "n_layers") == 7);
    const uint64_t block = uint64_t(2) * 16 * model_number(r.model, "head_dim") * 2 *
                           model_number(r.model, "n_kv_heads");  // one block of a layer
    const auto held = [&](uint64_t windowed, uint64_t whole) {
      CHECK(host_kv_bytes(r) == (6 * windowed + whole) * block);
      return (6 * windowed + whole) * block;
    };
    riffle_session* s = r.session();
    const auto prompt = ids(0, 300);
    r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
    // The next token sees tokens from 237 on; 64 before that begin in the tile of 128: 11 of 19.
    held(11, 19);
    Stats own{};
    r.check(session_get_stats(s, &own));
    CHECK(own.host_kv_bytes == host_kv_bytes(r));
    for (int i = 0; i < 300; ++i) {
      const int32_t t = 20 + i % 200;
      r.check(riffle_step(r.context, &s, &t, 1));
    }
    // 600 tokens: the tile of 448, 10 blocks of 38; and the 11 of the prompt's end.
    held(21, 38);
    CHECK(riffle_session_reach(s, 600) == 600);
    CHECK(riffle_session_reach(s, 500) == 304);  // blocks up to the 19th are there
    CHECK(riffle_session_reach(s, 240) == 240);
    CHECK(riffle_session_reach(s, 100) == 0);
    // A fork there shares what it needs.
    riffle_session* fork = nullptr;
    r.check(riffle_session_fork(s, 300, &fork));
    r.sessions.push_back(fork);
    held(22, 39);  // the block that 300 tokens do not fill
    r.check(riffle_session_truncate(s, 290));
    held(12, 20);
  }
}

TEST_CASE("window: cuts, forks and ends change no bit, whatever windows have dropped",
          "[window][fork]") {
  const TempDir temp;
  uint32_t seed = 0;
  int refused = 0;
  for (const char* model : kModels) {
    const std::string path = tiny_folder(tiny_checkpoint(model), temp);
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
      for (const int slots : {60, 1000}) {
        if (device == DeviceKind::CPU && slots == 60) continue;
        INFO(model << ", " << (device == DeviceKind::CPU ? 0 : slots) << " slots");
        ContextOptions o = on(device, seed % 2 ? psa_or_share() : SelectorKind::SHARE);
        if (device == DeviceKind::EMU) o.slots = slots;
        o.prefill_chunk = seed % 3 ? 50 : 512;
        refused +=
            WindowHistories(o, on(DeviceKind::CPU, o.selection.selector), path, false, ++seed)
                .play(100);
      }
  }
  CHECK(refused > 20);
}

TEST_CASE("window: an answer begins again from the prompt's end, however long it was", "[window]") {
  const TempDir temp;
  for (const char* model : kModels)
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      INFO(model);
      Runtime r(on(device), tiny_folder(tiny_checkpoint(model), temp));
      riffle_session* s = r.session();
      const auto prompt = ids(0, 400);
      std::mt19937 random(1);
      const auto answer = draw(random, 300);
      const auto first = run(r, s, prompt, answer);
      const uint64_t read = r.stats().prefill_tokens;
      for (int again = 0; again < 2; ++again) {
        r.check(riffle_prefill_to(s, prompt.data(), prompt.size(), nullptr, nullptr));
        CHECK(r.stats().prefill_tokens == read + again + 1);  // the last token, for its logits
        std::vector<std::vector<float>> logits{r.logits(s)};
        for (const int32_t t : answer) {
          r.check(riffle_step(r.context, &s, &t, 1));
          logits.push_back(r.logits(s));
        }
        CHECK(same_bits(logits, first));
      }
      // Where the windows are gone, more is read: all of it, since the prompt was the first.
      auto other = prompt;
      other[200] ^= 1;
      r.check(riffle_prefill_to(s, other.data(), other.size(), nullptr, nullptr));
      CHECK(r.stats().prefill_tokens == read + 2 + 400);
      riffle_session* fresh = r.session(other);
      CHECK(same_bits({r.logits(s)}, {r.logits(fresh)}));
    }
}

TEST_CASE("window: a full session takes what the plan says, and no more than that",
          "[window][memory]") {
  const TempDir temp;
  for (const char* model : kModels) {
    INFO(model);
    const std::string path = tiny_folder(tiny_checkpoint(model), temp);
    ContextOptions o = on(DeviceKind::CPU);
    MemoryPlan plan{};
    char err[512];
    {
      Runtime r(o, path);
      REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
    }
    o.host_mem = plan.host_kv;
    Runtime r(o, path);
    riffle_session* s = r.session();
    std::mt19937 random(2);
    // Windows that do not overlap at the ends of prompts, and one that is being read.
    for (const size_t n : {250, 200, 260}) {
      const auto prompt = draw(random, n);
      r.check(riffle_prefill(s, prompt.data(), n, nullptr, nullptr));
    }
    while (riffle_session_length(s) < 1000) {
      const auto next = draw(random, 1);
      r.check(riffle_step(r.context, &s, next.data(), 1));
    }
    const auto rest = draw(random, 24);
    r.check(riffle_prefill(s, rest.data(), rest.size(), nullptr, nullptr));
    CHECK(host_kv_bytes(r) <= plan.host_kv);
  }
  // Twice the context is twice the KV without windows, and the same where every layer has one.
  const auto host_kv = [&](const std::string& path, int n_ctx) {
    ContextOptions o = on(DeviceKind::CPU);
    Runtime r(o, path);
    o.n_ctx = n_ctx;
    MemoryPlan plan{};
    char err[512];
    REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
    CHECK(plan.digests == (path == mistral(temp, 64) ? 0 : plan.digests));
    return plan.host_kv;
  };
  CHECK(host_kv(mistral(temp, 0), 4096) == 2 * host_kv(mistral(temp, 0), 2048));
  CHECK(host_kv(mistral(temp, 64), 4096) == host_kv(mistral(temp, 64), 2048));
  CHECK(host_kv(mistral(temp, 64), 4096) < host_kv(mistral(temp, 0), 1024));
}

TEST_CASE(
    "window: prompts that begin alike are read once, and all texts are those of requests alone",
    "[window][scheduler][prefix]") {
  OneIn one(3);
  const TempDir temp;
  std::mt19937 random(3);
  const auto document = draw(random, 500);
  std::vector<Ask> asks;
  for (uint32_t i = 0; i < 7; ++i) {
    Ask a = ask(1, 70 + i, 60, i % 2 ? 1.0f : 0.0f);
    a.prompt = draw(random, 30 + 20 * i);
    // The fifth begins otherwise, the sixth is the third with a longer end.
    if (i == 5)
      a.prompt.insert(a.prompt.begin(), asks[2].prompt.begin() + 500, asks[2].prompt.end());
    if (i != 4) a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
    asks.push_back(a);
  }
  for (const char* model : kModels) {
    const std::string path = tiny_folder(tiny_checkpoint(model), temp);
    ContextOptions o = on(DeviceKind::CPU);
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(answer(o, path, a));
    for (const int max_seqs : {1, 3})
      for (const bool pooled : {false, true})
        for (const PrefillMode mode : {PrefillMode::LAYERS, PrefillMode::CHUNKS}) {
          if (one.skips()) continue;
          INFO(model << ", max_seqs " << max_seqs << ", pooled " << pooled << ", mode " << mode);
          ContextOptions all = o;
          if (pooled) all.device = DeviceKind::EMU, all.slots = 120;
          all.n_sessions = 4;
          Runtime r(all, path);
          SchedulerOptions so = defaults();
          so.max_seqs = max_seqs;
          so.prefill_mode = mode;
          so.max_inject_tokens = 600;
          Run run(r, so);
          for (const Ask& a : asks) run.submit(a);
          run.finish();
          size_t prompts = 0;
          for (size_t i = 0; i < asks.size(); ++i) {
            INFO("request " << i);
            const Got& got = run.got[i + 1];
            CHECK(got.status == RIFFLE_OK);
            CHECK(got.tokens == want[i].tokens);
            prompts += asks[i].prompt.size();
            // With one sequence at a time the fifth has displaced the document.
            if (i > 0 && i != 4 && (i != 5 || max_seqs > 1)) CHECK(got.reused >= document.size());
          }
          CHECK(r.stats().prefill_tokens <= prompts - 4 * document.size());
          CHECK(host_kv_bytes(r) == 0);
        }
  }
}

TEST_CASE("window: requests share memory for one to two sessions", "[window][scheduler][memory]") {
  const TempDir temp;
  std::mt19937 random(4);
  const auto document = draw(random, 300);
  std::vector<Ask> asks;
  for (uint32_t i = 0; i < 8; ++i) {
    Ask a = ask(1, 80 + i, 40 + 30 * static_cast<int>(i % 4));
    a.prompt = draw(random, 40 + 50 * i);
    if (i % 3) a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
    asks.push_back(a);
  }
  const std::string path = tiny_folder(tiny_checkpoint("exaone4"), temp);
  ContextOptions o = on(DeviceKind::CPU);
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(answer(o, path, a));
  MemoryPlan plan{};
  char err[512];
  {
    Runtime r(o, path);
    REQUIRE(plan_memory(r.model, &o, &plan, err, sizeof err) == RIFFLE_OK);
  }
  for (const PrefillMode mode : {PrefillMode::LAYERS, PrefillMode::CHUNKS})
    for (const uint64_t host_mem : {plan.host_kv, plan.host_kv * 3 / 2}) {
      INFO("mode " << mode << ", host_mem " << host_mem << " of " << plan.host_kv);
      o.host_mem = host_mem;
      o.n_sessions = 4;
      Runtime r(o, path);
      SchedulerOptions so = defaults();
      so.prefill_mode = mode;
      so.max_inject_tokens = 600;
      Run run(r, so);
      for (const Ask& a : asks) run.submit(a);
      run.finish();
      for (size_t i = 0; i < asks.size(); ++i) {
        INFO("request " << i << ": " << run.got[i + 1].error);
        CHECK(run.got[i + 1].status == RIFFLE_OK);
        CHECK(run.got[i + 1].tokens == want[i].tokens);
      }
      CHECK(host_kv_bytes(r) == 0);
    }
}
