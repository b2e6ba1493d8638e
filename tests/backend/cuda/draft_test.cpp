// The MTP layer on a GPU: transformers' guesses, and answers that do not depend on them.
#include "tests/engine/draft_checkpoints.h"
#include "tests/engine/lookups.h"
#include "tests/engine/schedule/scheduled.h"
#include "tests/kernels/cuda/device.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// The fixtures whose heads the kernels support.
constexpr const char* kOnGpu[] = {"qwen35_wide_tied", "qwen35moe_wide"};

ContextOptions gpu_context(DraftKind draft) {
  ContextOptions o = draft_context(draft);
  o.device = DeviceKind::CUDA;
  return o;
}

std::vector<int32_t> some_of_text(int from, int n) {
  const std::vector<int32_t> tokens = tiny_tokens();
  return {tokens.begin() + from, tokens.begin() + from + n};
}

}  // namespace

TEST_CASE("cuda: guesses have transformers' logits", "[cuda][draft][parity][states]") {
  if (skip()) return;
  for (const std::string name : kOnGpu) {
    const TempDir temp;
    const std::string folder = draft_folder(name, temp);
    for (const int chunk : {0, 37, 70}) {
      ContextOptions o = gpu_context(DraftKind::MTP);
      o.prefill_chunk = chunk;
      o.block_size = chunk == 0 ? 32 : 16;
      check_golden_guesses(o, name, folder);
    }
  }
}

// The ring of the layer's keys and values goes round.
TEST_CASE("cuda: guesses in texts that are longer than the layer's window",
          "[cuda][draft][states]") {
  if (skip()) return;
  std::vector<int32_t> tokens = tiny_tokens();
  for (const int32_t token : tiny_tokens()) tokens.push_back((token + 7) % 320);
  const TempDir temp;
  ContextOptions o = gpu_context(DraftKind::MTP);
  o.n_ctx = 4096;
  Runtime r(o, draft_folder("qwen35moe_wide", temp));
  check_long_guesses(r, tokens);
}

TEST_CASE("cuda: the device draws the guesses that the host draws, with one wait for each",
          "[cuda][draft][states]") {
  if (skip()) return;
  const TempDir temp;
  Runtime r(gpu_context(DraftKind::MTP), draft_folder("qwen35_wide_tied", temp));
  riffle_session* s = r.session(some_of_text(0, 200));
  for (int i = 0; i < 5; ++i) {  // operation by operation, recorded, and replayed
    INFO("round " << i);
    const int32_t next = some_of_text(200 + i, 1)[0];
    std::vector<int32_t> want;
    // A device draws no id that the tokenizer lacks.
    const int n_ids = drawable_ids(*r.model->model);
    for (const auto& row : guessed(r, s, next, 4, n_ids))
      want.push_back(
          static_cast<int32_t>(std::max_element(row.begin(), row.begin() + n_ids) - row.begin()));
    DraftRequest request;
    request.next = next;
    request.most = 4;
    request.draw = [](std::span<const float>, size_t) {
      FAIL("the host draws");
      return 0;
    };
    request.request = [](size_t) { return SampleRequest{}; };
    Sequence* const sequence = s->sequence.get();
    const auto before = r.stats().host_syncs;
    r.context->engine->guess({&sequence, 1}, {&request, 1});
    const auto waits = r.stats().host_syncs - before;
    CHECK(request.guesses == want);
    if (i > 0) CHECK(waits == 4);
    r.check(riffle_step(r.context, &s, &next, 1));
  }
}

TEST_CASE("cuda: answers are the same bits with and without guesses", "[cuda][draft][states]") {
  if (skip()) return;
  for (const std::string name : kOnGpu) {
    const TempDir temp, other;
    const std::string folder = draft_folder(name, temp),
                      repeats = draft_folder(name, other, repeating_head(name));
    const std::vector<int32_t> prompt = some_of_text(40, 100);
    for (const KvKind kv : {KvKind::F32, KvKind::F16, KvKind::Q8}) {
      const auto context = [&](DraftKind draft, int lookup = 0) {
        ContextOptions o = gpu_context(draft);
        o.kv_type = kv;
        o.lookup = lookup;
        return o;
      };
      Runtime off(context(DraftKind::OFF), folder), random(context(DraftKind::MTP), folder),
          often(context(DraftKind::MTP), repeats), both(context(DraftKind::MTP, 3), repeats),
          usual(context(DraftKind::AUTO), repeats);
      for (const float temperature : {0.f, 0.8f})
        for (const uint64_t seed : {1, 2}) {
          if (temperature == 0 && seed > 1) continue;
          INFO(name << ", KV type " << static_cast<int>(kv) << ", temperature " << temperature
                    << ", seed " << seed);
          auto g = answer_of(120, temperature, seed);
          if (seed == 2) g.sampling.repeat_penalty = 1.2f;
          const Answered want = answer(off, prompt, g);
          for (Runtime* r : {&random, &often, &both, &usual})
            CHECK(same_answer(answer(*r, prompt, g), want));
        }
      CHECK(off.stats().lookup_proposed == 0);
      CHECK(random.stats().lookup_proposed > 100);
      CHECK(usual.stats().lookup_proposed > 0);
      const Stats s = often.stats();
      CHECK(s.lookup_accepted > 20);
      CHECK(s.lookup_accepted < s.lookup_proposed);
      CHECK(s.decode_steps == s.decode_tokens - s.lookup_accepted);
    }
  }
}

TEST_CASE("cuda: guesses of sessions together, by a grammar, after cuts and forks",
          "[cuda][draft][states]") {
  if (skip()) return;
  const TempDir temp;
  const std::string name = "qwen35_wide_tied",
                    folder = draft_folder(name, temp, repeating_head(name));
  std::vector<Answered> seen[2];
  for (const DraftKind draft : {DraftKind::OFF, DraftKind::MTP}) {
    ContextOptions o = gpu_context(draft);
    o.n_sessions = 3;
    Runtime r(o, folder);
    std::vector<Answered>& out = seen[draft == DraftKind::MTP];
    std::vector<riffle_session*> three = {r.session(some_of_text(0, 60)),
                                          r.session(some_of_text(100, 33)),
                                          r.session(some_of_text(200, 150))};
    out = answers(r, three, {answer_of(80), answer_of(20, 0.9f, 4), answer_of(80, 0.9f, 5)});
    const TestGrammar grammar(r, kNames);
    out.push_back(answer(r, some_of_text(0, 60), names(grammar, 7)));
    riffle_session* s = three[0];
    size_t length = riffle_session_reach(s, riffle_session_length(s) - 3);
    r.check(riffle_session_truncate(s, length));
    const auto more = some_of_text(300, 20);
    r.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
    out.push_back(answers(r, {s}, {answer_of(40)})[0]);
    length = riffle_session_reach(s, riffle_session_length(s));
    r.sessions.push_back(nullptr);
    r.check(riffle_session_fork(s, length, &r.sessions.back()));
    riffle_session* const fork = r.sessions.back();
    r.check(riffle_prefill(fork, more.data(), more.size(), nullptr, nullptr));
    out.push_back(answers(r, {fork}, {answer_of(40)})[0]);
    if (draft == DraftKind::MTP) CHECK(r.stats().lookup_accepted > 10);
  }
  REQUIRE(seen[0].size() == seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) {
    INFO("answer " << i);
    CHECK(same_answer(seen[0][i], seen[1][i]));
  }
}

TEST_CASE("cuda: the plan has the MTP layer's memory", "[cuda][draft][plan]") {
  if (skip()) return;
  const TempDir temp;
  const std::string folder = draft_folder("qwen35moe_wide", temp);
  const auto plan_of = [&](ContextOptions o) {
    riffle_model* model = nullptr;
    REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
    MemoryPlan plan{};
    char err[1024] = "";
    const riffle_status status = plan_memory(model, &o, &plan, err, sizeof err);
    riffle_model_free(model);
    INFO(err);
    REQUIRE(status == RIFFLE_OK);
    return plan;
  };
  ContextOptions o = gpu_context(DraftKind::MTP);
  o.n_ctx = 4096;
  o.n_sessions = 2;
  const MemoryPlan with = plan_of(o);
  o.draft = DraftKind::OFF;
  const MemoryPlan without = plan_of(o);
  CHECK(with.weights > without.weights);
  CHECK(with.digests > without.digests);
  CHECK(with.host_drafts == 0);
  o.draft = DraftKind::MTP;
  o.gpu_mem = with.min_gpu_mem;
  Runtime r(o, folder);
  const auto prompt = some_of_text(0, 400);
  answers(r, {r.session(prompt), r.session(prompt)}, {answer_of(50), answer_of(50, 0.9f, 2)});
  CHECK(r.stats().lookup_proposed > 50);
  CHECK(r.stats().peak_device_bytes <= o.gpu_mem);
}
