// Models with layers that keep a recurrent state, and others that attend: any chunks, threads,
// pools, batches, tokens computed ahead, cuts, forks, files and interruptions give the same bits;
// a conversation reads each token once; the memory plan holds.
#include <cmath>

#include "tests/engine/plan/taken_buffers.h"
#include "tests/engine/schedule/states_scheduled.h"
#include "tests/engine/session_files.h"
#include "tests/engine/spoiled_session.h"
#include "tests/engine/state_sessions.h"
#include "tests/engine/window_histories.h"
#include "tests/rounds.h"

using namespace riffle;
using namespace riffle::test;

namespace {

std::string hybrid(const TempDir& temp, const char* name = "lfm2") {
  return tiny_folder(tiny_checkpoint(name), temp);
}

ContextOptions on(DeviceKind device, SelectorKind selector = SelectorKind::SHARE) {
  ContextOptions o = sparse(selector);
  o.device = device;
  if (device == DeviceKind::EMU) o.slots = 400;
  o.kv_type = KvKind::F32;
  return o;
}

// Models of each kind of recurrent layer; the odd ones have sizes that are not multiples of 16.
constexpr const char* kModels[] = {"lfm2",           "lfm2_odd",  "qwen35",        "qwen35_odd",
                                   "qwen35moe",      "granite_h", "granite_h_moe", "nemotron_h",
                                   "nemotron_h_moe", "qwen3next", "qwen3next_odd"};

size_t reach(riffle_session* s, size_t n) { return riffle_session_reach(s, n); }

}  // namespace

TEST_CASE("states: chunks, threads and pools change no bit", "[states]") {
  const TempDir temp;
  for (const char* name : kModels) {
    const std::string model = hybrid(temp, name);
    const Tokens prompt = ids(0, 600), steps = ids(600, 640);
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      Runtime plain(on(DeviceKind::CPU, selector), model);
      const auto want = run(plain, plain.session(), prompt, steps);
      std::vector<ContextOptions> variants;
      for (const int chunk : {1, 2, 37, 64, 600}) {
        variants.push_back(on(DeviceKind::CPU, selector));
        variants.back().prefill_chunk = chunk;
      }
      for (const int threads : {1, 3}) {
        variants.push_back(on(DeviceKind::CPU, selector));
        variants.back().n_threads = threads;
      }
      for (const int slots : {60, 1000}) {
        variants.push_back(on(DeviceKind::EMU, selector));
        variants.back().slots = slots;
      }
      variants.push_back(on(DeviceKind::EMU, selector));
      variants.back().evict = EvictRule::FIFO;
      variants.push_back(on(DeviceKind::EMU, selector));
      variants.back().pool_per_layer = true;
      variants.back().slots = 1000;
      for (const ContextOptions& o : variants) {
        INFO(name << ", selector " << selector << ", device " << o.device << ", chunk "
                  << o.prefill_chunk << ", " << o.slots << " slots, " << o.n_threads << " threads");
        Runtime r(o, model);
        CHECK(same_bits(run(r, r.session(), prompt, steps), want));
      }
      // Prompts after prompts.
      riffle_session* const s = plain.session();
      for (size_t first = 0, n = 1; first < prompt.size(); first += n, n = 2 * n + 1) {
        n = std::min(n, prompt.size() - first);
        plain.check(riffle_prefill(s, prompt.data() + first, n, nullptr, nullptr));
      }
      for (size_t i = 0; i < steps.size(); ++i) {
        CHECK(plain.logits(s) == want[i]);
        plain.check(
            riffle_step(plain.context, const_cast<riffle_session* const*>(&s), &steps[i], 1));
      }
    }
  }
}

TEST_CASE("states: sequences stepped together give what each gives alone", "[states]") {
  const TempDir temp;
  ContextOptions o = on(DeviceKind::EMU);
  o.n_sessions = 5;
  for (const char* name : {"lfm2", "qwen35", "granite_h", "nemotron_h_moe", "qwen3next"}) {
    INFO(name);
    check_together(on(DeviceKind::CPU), o, hybrid(temp, name));
  }
}

TEST_CASE("states: cuts, forks, ends and aborted prompts change no bit", "[states][fork]") {
  const TempDir temp;
  uint32_t seed = 0;
  for (const char* name : kModels)
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      ContextOptions o = on(device);
      o.prefill_chunk = 50;
      INFO(name << ", device " << device);
      WindowHistories(o, on(DeviceKind::CPU), hybrid(temp, name), false, ++seed).play(60);
    }
}

// Each row ahead has a state of its own, so tokens that are not accepted leave no trace.
TEST_CASE("states: tokens computed ahead and refused leave no trace", "[states][lookup]") {
  const TempDir temp;
  check_tokens_ahead(
      on(DeviceKind::CPU),
      hybrid(temp, GENERATE("lfm2", "qwen35", "granite_h", "nemotron_h_moe", "qwen3next")), 80);
}

TEST_CASE("states: a session can be cut where it keeps a state", "[states]") {
  const TempDir temp;
  Runtime r(on(DeviceKind::CPU), hybrid(temp));
  riffle_session* const s = r.session(ids(0, 700));
  answer(r, s, 30);
  CHECK(reach(s, 730) == 730);
  CHECK(reach(s, 729) == 700);  // the prompt's end
  CHECK(reach(s, 699) == 684);  // its lead
  CHECK(reach(s, 683) == 512);
  CHECK(reach(s, 511) == 256);
  CHECK(reach(s, 255) == 0);
  CHECK(riffle_session_truncate(s, 720) == RIFFLE_BAD_ARGUMENT);
  CHECK(std::string(riffle_context_error(r.context)) ==
        "n_tokens is 720, but the session of 730 tokens has dropped the state that the model's "
        "recurrent layers need there: the next shorter length that works is 700");
}

TEST_CASE("states: a session with a state but without its KV is refused by name",
          "[states][session_file]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", model = hybrid(temp);
  Runtime r(on(DeviceKind::CPU), model);
  save(r, r.session(ids(0, 300)), path);
  SpoilSession drop;
  drop.extent = [](session_layout::Extent& e) { e.n = 1; };
  write_file(path, spoiled(read_file(path), drop));
  const test::SessionFile file(path);
  REQUIRE(file.status == RIFFLE_OK);
  riffle_session* loaded = nullptr;
  CHECK(riffle_session_load(r.context, file.handle, &loaded, nullptr, nullptr) ==
        RIFFLE_BAD_SESSION);
  CHECK(loaded == nullptr);
  const std::string error = riffle_context_error(r.context);
  CHECK(error.find(path + ": block 1 of layer ") == 0);
  CHECK(error.find(": found none, expected one") != std::string::npos);
}

TEST_CASE("states: a conversation reads each token once", "[states]") {
  const TempDir temp;
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = on(device);
    o.slots = 0;
    check_conversation(o, hybrid(temp));
  }
}

TEST_CASE("states: saved sessions go on with the same bits", "[states][session_file]") {
  const TempDir temp;
  const std::string path = temp / "a.kv",
                    model = hybrid(temp, GENERATE("lfm2", "qwen35", "granite_h", "nemotron_h_moe"));
  for (const auto& [from, to] :
       {std::pair{DeviceKind::CPU, DeviceKind::EMU}, {DeviceKind::EMU, DeviceKind::CPU}}) {
    Runtime a(on(from), model), b(on(to), model);
    riffle_session* const s = a.session(ids(0, 300));
    for (int round = 0; round < 3; ++round) {
      const size_t reached = reach(s, 299);
      save(a, s, path);
      riffle_session* const loaded = load(b, path);
      CHECK(reach(loaded, 299) == reached);
      CHECK(reach(loaded, riffle_session_length(s) - 1) == reach(s, riffle_session_length(s) - 1));
      go_on_alike(a, s, b, loaded, ids(300 + 20 * round, 320 + 20 * round));
    }
    // A loaded session keeps the logits at its prompt's end.
    riffle_session* const t = a.session(ids(0, 400));
    const std::vector<float> want = a.logits(t);
    answer(a, t, 5);
    save(a, t, path);
    riffle_session* const loaded = load(b, path);
    const uint64_t read = tokens_read(b);
    prefill_to(b, loaded, ids(0, 400));
    CHECK(tokens_read(b) == read);
    CHECK(b.logits(loaded) == want);
    save(b, loaded, path);
    riffle_session* const fork = fork_at(a, t, 400);  // so does a fork
    CHECK(a.logits(fork) == want);
    prefill_to(a, fork, ids(0, 400));
    CHECK(a.logits(fork) == want);
    go_on_alike(a, fork_at(a, t, 400), b, fork_at(b, loaded, 400), ids(500, 510));
  }
}

// Memory runs out in prompts, steps and forks: a session reads as before.
TEST_CASE("states: out of memory leaves sessions as they were", "[states][memory]") {
  const TempDir temp;
  const std::string model = hybrid(temp);
  ContextOptions o = on(DeviceKind::CPU);
  o.n_ctx = 256;
  Runtime plain(o, model);
  o.host_mem = 400 << 10;
  Runtime r(o, model);
  std::mt19937 random(5);
  struct Member {
    riffle_session *session, *twin;
  };
  std::vector<Member> all;
  int refused = 0;
  const auto alike = [&](const Member& m) {
    REQUIRE(riffle_session_length(m.session) == riffle_session_length(m.twin));
    if (riffle_logits(m.session)) CHECK(r.logits(m.session) == plain.logits(m.twin));
  };
  const auto refuse = [&](riffle_status status) {
    if (status == RIFFLE_OK) return false;
    CHECK(status == RIFFLE_OUT_OF_MEMORY);
    ++refused;
    return true;
  };
  for (int i = 0; i < 500; ++i) {
    const unsigned what = random() % 10;
    if (all.empty() || (what < 3 && all.size() < 12)) {
      Member m{r.session(), plain.session()};
      all.push_back(m);
    } else if (what == 3 && all.size() > 6) {
      const size_t k = random() % all.size();
      riffle_session_truncate(all[k].session, 0);
      riffle_session_truncate(all[k].twin, 0);
    }
    const Member& m = all[random() % all.size()];
    const size_t length = riffle_session_length(m.session);
    if (length == 0 || (what < 6 && length < 150)) {
      const Tokens prompt = ids(0, 1 + static_cast<int>(random() % 100));
      if (!refuse(riffle_prefill(m.session, prompt.data(), prompt.size(), nullptr, nullptr)))
        plain.check(riffle_prefill(m.twin, prompt.data(), prompt.size(), nullptr, nullptr));
    } else if (length < 250) {
      const int32_t token = 20 + static_cast<int32_t>(random() % 200);
      riffle_session *s = m.session, *t = m.twin;
      if (!refuse(riffle_step(r.context, &s, &token, 1)))
        plain.check(riffle_step(plain.context, &t, &token, 1));
    }
    alike(m);
  }
  CHECK(refused > 5);
  for (const Member& m : all) riffle_session_truncate(m.session, 0);
  CHECK(host_kv_bytes(r) == 0);
}

TEST_CASE("states: prompts and steps take what the plan says", "[states][plan][memory]") {
  const TempDir temp;
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = on(device);
    o.slots = 0;
    o.n_ctx = 4096;
    o.n_sessions = 3;
    o.prefill_chunk = 512;
    const size_t before = taken().now;
    Runtime r(o, hybrid(temp));
    check_taken(r, o, before);
    // The host store holds no more than the plan has for sessions, at any moment.
    MemoryPlan plan;
    REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
    CHECK(host_kv_bytes(r) <= plan.host_kv * 3);
    const Config& config = r.model->model->config;
    const KvShape shape = kv_shape(config, resolve_options(config, o));
    CHECK(shape.state_bytes() == size_t(4) * 2 * 64 * sizeof(float));
    CHECK(shape.most_states() == Checkpoints::kMost);
  }
}

// No real weights were at hand to test share on, so a small pool must not choose it.
TEST_CASE("auto reads everything of models that share is not tested on, whatever the pool holds",
          "[states][latent][plan]") {
  const TempDir temp;
  std::vector<std::string> folders = {hybrid(temp, "qwen35")};
  for (const char* name : {"gemma4_wide", "gemma4_e2b", "deepseek2", "deepseek3"})
    folders.push_back(tiny_folder(tiny_checkpoint(name), temp));
  for (const std::string& folder : folders)
    for (const int slots : {400, 5000}) {
      INFO(folder << ", " << slots << " slots");
      ContextOptions o = on(DeviceKind::EMU, SelectorKind::AUTO);
      o.n_ctx = 4096;
      o.slots = slots;
      Runtime r(o, folder);
      MemoryPlan plan;
      REQUIRE(plan_memory(r.model, &o, &plan, nullptr, 0) == RIFFLE_OK);
      CHECK(plan.selector == SelectorKind::DENSE);
      CHECK(plan.selector_note ==
            "selector auto: dense, since no answers with share were measured on models with "
            "recurrent layers or multi-head latent attention, nor on Gemma 4");
    }
}

TEST_CASE("states: a scheduler reads what requests have in common once", "[states][scheduler]") {
  const TempDir temp;
  for (const char* name : {"lfm2", "qwen35", "granite_h", "nemotron_h_moe", "qwen3next"})
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      INFO(name << ", device " << device);
      ContextOptions o = on(device);
      o.n_sessions = 5;
      o.slots = 0;
      o.prefill_chunk = 128;
      check_scheduled_states(o, hybrid(temp, name));
    }
}
