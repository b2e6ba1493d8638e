// Models with layers that keep a recurrent state, on a GPU: pools, batches, tokens computed ahead,
// cuts, forks, files and interruptions change no bit; a conversation reads each token once; the
// memory plan holds. tests/engine/states_test.cpp: the same on the CPU. parity_test.cpp: against
// transformers.
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/schedule/states_scheduled.h"
#include "tests/engine/session_files.h"
#include "tests/engine/state_sessions.h"
#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// A model of each kind of recurrent layer.
constexpr const char* kModels[] = {"lfm2_wide", "qwen35_wide_tied", "qwen35moe_wide",
                                   "nemotron_h_wide"};

ContextOptions on_gpu(SelectorKind selector = SelectorKind::SHARE) {
  ContextOptions o = sparse(selector);
  o.device = DeviceKind::CUDA;
  o.kv_type = KvKind::F32;
  return o;
}

std::string hybrid(const TempDir& temp, const char* name) {
  return tiny_folder(tiny_checkpoint(name), temp);
}

}  // namespace

TEST_CASE("cuda: states: pools and graphs change no bit", "[cuda][states]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : kModels) {
    const std::string model = hybrid(temp, name);
    const Tokens prompt = ids(0, 600), steps = ids(600, 640);
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
      Runtime plain(on_gpu(selector), model);
      const auto want = run(plain, plain.session(), prompt, steps);
      for (const int slots : {4, 20, 1000}) {
        INFO(name << ", selector " << selector << ", " << slots << " slots");
        ContextOptions o = on_gpu(selector);
        o.slots = slots;
        Runtime r(o, model);
        CHECK(same_bits(run(r, r.session(), prompt, steps), want));
        // The host decides residency for at most 8 query heads for a KV head.
        if (slots < 20 || selector == SelectorKind::SHARE || !host_decides_here() ||
            r.model->model->config.most_group() > 8)
          continue;
        o.residency = ResidencyKind::HOST;
        Runtime hosted(o, model);
        CHECK(same_bits(run(hosted, hosted.session(), prompt, steps), want));
      }
    }
  }
}

TEST_CASE("cuda: states: sequences stepped together give what each gives alone", "[cuda][states]") {
  if (skip()) return;
  const TempDir temp;
  ContextOptions o = on_gpu();
  o.n_sessions = 5;
  o.slots = 20;
  for (const char* name : kModels) {
    INFO(name);
    check_together(on_gpu(), o, hybrid(temp, name));
  }
}

TEST_CASE("cuda: states: cuts, forks, ends and aborted prompts change no bit",
          "[cuda][states][fork]") {
  if (skip()) return;
  const TempDir temp;
  uint32_t seed = 0;
  for (const char* name : kModels) {
    // 128: chunks of the gated delta rule, which go on from the state of those before.
    for (const int chunk : {50, 128}) {
      ContextOptions o = on_gpu();
      o.prefill_chunk = chunk;
      o.n_sessions = 4;
      INFO(name << ", chunk " << chunk);
      WindowHistories(o, o, hybrid(temp, name), true, ++seed).play(60);
    }
  }
}

// A step writes the state after its first row alone; the next one goes through the inputs of the
// tokens that were accepted. A length that is kept may lie among them.
TEST_CASE("cuda: states: tokens computed ahead and refused leave no trace",
          "[cuda][states][lookup]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : kModels) {
    INFO(name);
    check_tokens_ahead(on_gpu(), hybrid(temp, name), 120);
  }
}

TEST_CASE("cuda: states: a conversation reads each token once", "[cuda][states]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : {"lfm2_wide", "qwen35_wide_tied"}) {
    INFO(name);
    check_conversation(on_gpu(), hybrid(temp, name));
  }
}

TEST_CASE("cuda: states: saved sessions go on with the same bits, also on the CPU",
          "[cuda][states][session_file]") {
  if (skip()) return;
  const TempDir temp;
  const std::string path = temp / "a.kv";
  for (const char* name : kModels) {
    INFO(name);
    const std::string model = hybrid(temp, name);
    ContextOptions on_cpu = on_gpu(SelectorKind::DENSE);
    on_cpu.device = DeviceKind::CPU;
    Runtime a(on_gpu(SelectorKind::DENSE), model), b(on_gpu(SelectorKind::DENSE), model),
        cpu(on_cpu, model);
    riffle_session* const s = a.session(ids(0, 300));
    for (int round = 0; round < 3; ++round) {
      save(a, s, path);
      riffle_session* const loaded = load(b, path);
      CHECK(riffle_session_reach(loaded, 299) == riffle_session_reach(s, 299));
      // The CPU's kernels differ in rounding.
      riffle_session *here = load(b, path), *elsewhere = load(cpu, path);
      for (const int32_t t : ids(300 + 20 * round, 320 + 20 * round)) {
        b.check(riffle_step(b.context, &here, &t, 1));
        cpu.check(riffle_step(cpu.context, &elsewhere, &t, 1));
      }
      const TinyDifference d = tiny_difference(b.logits(here), cpu.logits(elsewhere), "on the CPU");
      INFO(d.where);
      CHECK(d.relative <= 1e-3);
      go_on_alike(a, s, b, loaded, ids(300 + 20 * round, 320 + 20 * round));
    }
    // And back: what the CPU saved goes on here.
    riffle_session* const t = cpu.session(ids(0, 300));
    save(cpu, t, path);
    riffle_session* const here = load(a, path);
    for (const int32_t token : ids(300, 320)) {
      riffle_session *one = here, *two = t;
      a.check(riffle_step(a.context, &one, &token, 1));
      cpu.check(riffle_step(cpu.context, &two, &token, 1));
    }
    CHECK(tiny_difference(a.logits(here), cpu.logits(t), "from the CPU").relative <= 1e-3);
  }
}

TEST_CASE("cuda: states: the planned memory is enough", "[cuda][states][memory]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : kModels) {
    INFO(name);
    ContextOptions o = on_gpu();
    o.n_ctx = 4096;
    o.n_sessions = 3;
    o.lookup = 4;
    o.prefill_chunk = 512;
    const std::string path = hybrid(temp, name);
    riffle_model* model = nullptr;
    REQUIRE(riffle_model_load(path.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
    o.gpu_mem = plan_of_least_memory(model, o).min_gpu_mem;
    riffle_model_free(model);
    Runtime r(o, path);
    Tokens prompt = some_tokens(4000, 1);
    for (int32_t& t : prompt) t %= r.vocab_size();
    riffle_session* sessions[3];
    for (riffle_session*& s : sessions) {
      s = r.session();
      prefill(r, s, prompt);
    }
    for (int32_t token = 5; token < 25; ++token) {
      const int32_t tokens[] = {token, token, token};
      r.check(riffle_step(r.context, sessions, tokens, 3));
    }
    CHECK(r.stats().peak_device_bytes <= o.gpu_mem);
  }
}

TEST_CASE("cuda: states: a scheduler reads what requests have in common once",
          "[cuda][states][scheduler]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : kModels) {
    INFO(name);
    ContextOptions o = on_gpu();
    o.n_sessions = 5;
    o.prefill_chunk = 128;
    check_scheduled_states(o, hybrid(temp, name));
  }
}
