// Models with layers that keep a recurrent state, on a GPU: pools, batches, tokens computed ahead,
// cuts, forks, files and interruptions change no bit; a conversation reads each token once; the
// memory plan holds. tests/engine/states_test.cpp: the same on the CPU. parity_test.cpp: against
// transformers.
#include "tests/backend/cuda/gpu_sessions.h"
#include "tests/engine/schedule/states_scheduled.h"
#include "tests/engine/session_files.h"
#include "tests/engine/window_histories.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

using Tokens = std::vector<int32_t>;

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

uint64_t tokens_read(const Runtime& r) { return r.stats().prefill_tokens; }

void prefill_to(Runtime& r, riffle_session* s, const Tokens& tokens) {
  r.check(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr));
}

Tokens answer(Runtime& r, riffle_session* s, int n) {
  Tokens out;
  for (int i = 0; i < n; ++i) {
    const std::vector<float> row = r.logits(s);
    out.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
    r.check(riffle_step(r.context, &s, &out.back(), 1));
  }
  return out;
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
    const std::string model = hybrid(temp, name);
    ContextOptions o = on_gpu();
    o.lookup = 5;
    Runtime ahead(o, model), plain(on_gpu(), model);
    const Tokens text = ids(0, 1000);
    Engine& engine = *ahead.context->engine;
    std::mt19937 random(3);
    riffle_session *const a = ahead.session(ids(0, 200)), *const b = plain.session(ids(0, 200));
    Sequence* const s = a->sequence.get();
    size_t at = 200;
    for (int round = 0; round < 120; ++round) {
      INFO("round " << round);
      const auto n = std::min<size_t>(random() % 5, engine.room_ahead(*s));
      const size_t good = n == 0 ? 0 : random() % (n + 1);
      std::vector<Sequence*> rows;
      Tokens next;
      for (size_t i = 0; i <= n; ++i) {
        rows.push_back(s);
        next.push_back(i <= good ? text[at + i] : (text[at + i] + 1) % 320);
      }
      const auto step = [&] {
        riffle_session* one = b;
        plain.check(riffle_step(plain.context, &one, &text[at++], 1));
        REQUIRE(ahead.logits(a) == plain.logits(b));
      };
      engine.step(rows, next);
      step();
      int32_t sampled = 0;
      for (size_t i = 1; i <= good; ++i) {
        REQUIRE(engine.accept(*s, text[at], sampled));
        step();
      }
      if (n > good) CHECK_FALSE(engine.accept(*s, text[at], sampled));
      if (round % 20 == 9) {  // a fork takes the newest state, with tokens that were accepted
        riffle_session *const c = fork_at(ahead, a, at), *const d = fork_at(plain, b, at);
        go_on_alike(ahead, c, plain, d, ids(900, 905));
      }
      if (round % 20 != 19) continue;
      const size_t cut = riffle_session_reach(a, at - 15);
      CHECK(cut > 0);
      CHECK(riffle_session_reach(b, at - 15) == cut);
      ahead.check(riffle_session_truncate(a, cut));
      plain.check(riffle_session_truncate(b, cut));
      at = cut;
    }
  }
}

TEST_CASE("cuda: states: a conversation reads each token once", "[cuda][states]") {
  if (skip()) return;
  const TempDir temp;
  for (const char* name : {"lfm2_wide", "qwen35_wide_tied"}) {
    ContextOptions o = on_gpu();
    o.n_ctx = 2048;
    Runtime r(o, hybrid(temp, name));
    riffle_session* const s = r.session();
    const Tokens text = ids(0, 1000);
    Tokens all(text.begin(), text.begin() + 700);
    uint64_t read = 0;
    for (int turn = 0; turn < 20; ++turn) {
      const size_t asked = all.size() - riffle_session_length(s);
      prefill_to(r, s, all);
      read += asked;
      CHECK(tokens_read(r) == read);
      const std::vector<float> want = r.logits(s);
      const Tokens first = answer(r, s, 9);
      prefill_to(r, s, all);  // again, as after an answer that was not liked: it reads nothing
      CHECK(tokens_read(r) == read);
      CHECK(r.logits(s) == want);
      CHECK(answer(r, s, 9) == first);
      all.insert(all.end(), first.begin(), first.end());
      all.insert(all.end(), text.begin() + 10 * turn, text.begin() + 10 * turn + 17);
    }
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
