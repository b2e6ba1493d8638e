// The MTP layer: its guesses are transformers' (tools/fixtures/draft_heads.py), and no guess
// changes what an answer is made of.
#include "engine/draft_pace.h"
#include "import/load_model.h"
#include "quantize/quantize.h"
#include "quantize/quantize_model.h"
#include "tests/engine/draft_checkpoints.h"
#include "tests/engine/lookups.h"
#include "tests/engine/schedule/scheduled.h"
#include "tests/model/expect_error.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

TEST_CASE("MTP: guesses have transformers' logits", "[draft][parity][states]") {
  for (const std::string name : {"qwen35", "qwen35moe", "qwen35_wide_tied", "qwen35moe_wide"}) {
    const TempDir temp;
    const std::string folder = draft_folder(name, temp), file = temp / "f32.gguf";
    quantize_file(folder, file, weight_mix_named("f32"), 2, false, {});
    struct Variant {
      int chunk;
      bool gguf, emu;
    };
    for (const auto [chunk, gguf, emu] :
         {Variant{0, false, false}, {1, false, false}, {37, true, false}, {64, true, true}}) {
      ContextOptions o = draft_context(DraftKind::MTP);
      o.prefill_chunk = chunk;
      if (emu) o.device = DeviceKind::EMU, o.slots = 300;
      check_golden_guesses(o, name, gguf ? file : folder);
    }
  }
}

// The layer sees 1,024 pairs. It has the same ones from a prompt, from steps, and when it has made
// no guesses for a while.
TEST_CASE("MTP: texts that are longer than the layer's window", "[draft][states][long]") {
  const TempDir temp;
  const std::string folder = draft_folder("qwen35", temp, repeating_head());
  std::vector<int32_t> tokens = tiny_tokens();
  for (const int32_t token : tiny_tokens()) tokens.push_back((token + 7) % 320);
  ContextOptions o = draft_context(DraftKind::MTP);
  o.n_ctx = 4096;
  Runtime r(o, draft_folder("qwen35moe", temp));
  check_long_guesses(r, tokens);

  ContextOptions plain = draft_context(DraftKind::OFF);
  plain.n_ctx = 4096;
  Runtime off(plain, folder), on(o, folder);
  const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + 1500);
  for (const float temperature : {0.f, 0.9f}) {
    const auto g = answer_of(150, temperature, 9);
    CHECK(same_answer(answer(on, prompt, g), answer(off, prompt, g)));
  }
  CHECK(on.stats().lookup_accepted > 10);
}

TEST_CASE("MTP: guesses that nobody asked for take only memory that is left", "[draft][plan]") {
  const TempDir temp;
  const std::string folder = draft_folder("qwen35", temp, repeating_head());
  ContextOptions o = draft_context(DraftKind::OFF);
  o.n_ctx = 0;
  o.host_mem = 2600000;
  const auto length = [&](DraftKind draft) {
    o.draft = draft;
    Runtime r(o, folder);
    const std::vector<int32_t> tokens = tiny_tokens();
    answer(r, {tokens.begin(), tokens.begin() + 100}, answer_of(60));
    CHECK((r.stats().lookup_proposed == 0) == (draft != DraftKind::MTP));
    return r.context->engine->n_ctx();
  };
  const int64_t off = length(DraftKind::OFF);
  CHECK(length(DraftKind::AUTO) == off);
  CHECK(length(DraftKind::MTP) < off);
}

TEST_CASE("MTP: answers are the same bits with and without guesses", "[draft][states]") {
  const TempDir temp, other;
  const std::string folder = draft_folder("qwen35", temp);
  const std::string repeats = draft_folder("qwen35", other, repeating_head());
  const std::vector<int32_t> tokens = tiny_tokens();
  Runtime off(draft_context(DraftKind::OFF), folder), random(draft_context(DraftKind::MTP), folder),
      often(draft_context(DraftKind::MTP), repeats);
  ContextOptions both = draft_context(DraftKind::MTP);
  both.lookup = 3;
  Runtime lookup(both, repeats);
  const std::vector<int32_t> prompt(tokens.begin() + 40, tokens.begin() + 140);
  for (const float temperature : {0.f, 0.8f, 1.5f})
    for (const uint64_t seed : {1, 2, 3}) {
      if (temperature == 0 && seed > 1) continue;
      INFO("temperature " << temperature << ", seed " << seed);
      auto g = answer_of(120, temperature, seed);
      if (seed == 3) g.sampling.repeat_penalty = 1.2f, g.sampling.frequency_penalty = 0.1f;
      const Answered want = answer(off, prompt, g);
      for (Runtime* r : {&random, &often, &lookup}) CHECK(same_answer(answer(*r, prompt, g), want));
    }
  CHECK(off.stats().lookup_proposed == 0);
  CHECK(random.stats().lookup_proposed > 200);
  const Stats s = often.stats();
  CHECK(s.lookup_accepted > 20);
  CHECK(s.lookup_accepted < s.lookup_proposed);
  CHECK(s.decode_steps == s.decode_tokens - s.lookup_accepted);
}

TEST_CASE("MTP: guesses in batches, by a grammar, after cuts, forks and files",
          "[draft][states][session_file]") {
  const TempDir temp, files;
  const std::string folder = draft_folder("qwen35", temp, repeating_head());
  const std::vector<int32_t> tokens = tiny_tokens();
  const auto part = [&](int from, int n) {
    return std::vector<int32_t>(tokens.begin() + from, tokens.begin() + from + n);
  };
  std::vector<Answered> seen[2];
  for (const DraftKind draft : {DraftKind::OFF, DraftKind::MTP}) {
    Runtime r(draft_context(draft), folder);
    std::vector<Answered>& out = seen[draft == DraftKind::MTP];
    // Three sessions together; one ends early.
    std::vector<riffle_session*> three = {r.session(part(0, 60)), r.session(part(100, 33)),
                                          r.session(part(200, 150))};
    out = answers(r, three, {answer_of(80), answer_of(20, 0.9f, 4), answer_of(80, 0.9f, 5)});
    const TestGrammar grammar(r, kNames);
    out.push_back(answer(r, part(0, 60), names(grammar, 7)));
    // A cut into what was guessed from, a fork, and a file.
    riffle_session* s = three[0];
    size_t length = riffle_session_reach(s, riffle_session_length(s) - 3);
    r.check(riffle_session_truncate(s, length));
    const auto more = part(300, 20);
    r.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
    out.push_back(answers(r, {s}, {answer_of(40)})[0]);
    length = riffle_session_reach(s, riffle_session_length(s));
    riffle_session* fork = nullptr;
    r.check(riffle_session_fork(s, length, &fork));
    r.sessions.push_back(fork);
    r.check(riffle_prefill(fork, more.data(), more.size(), nullptr, nullptr));
    out.push_back(answers(r, {fork}, {answer_of(40)})[0]);
    const std::string path = files / "s";
    r.check(riffle_session_save(fork, path.c_str(), 0, nullptr, 0, nullptr, nullptr));
    char err[256];
    riffle_session_file* file = nullptr;
    REQUIRE(riffle_session_file_open(path.c_str(), &file, err, sizeof err) == RIFFLE_OK);
    riffle_session* loaded = nullptr;
    const riffle_status status = riffle_session_load(r.context, file, &loaded, nullptr, nullptr);
    riffle_session_file_free(file);
    r.check(status);
    r.sessions.push_back(loaded);
    out.push_back(answers(r, {loaded}, {answer_of(60)})[0]);
    if (draft == DraftKind::MTP) CHECK(r.stats().lookup_accepted > 10);
    std::filesystem::remove(path);
  }
  REQUIRE(seen[0].size() == seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) {
    INFO("answer " << i);
    CHECK(same_answer(seen[0][i], seen[1][i]));
  }
}

TEST_CASE("MTP: requests of a scheduler get the same texts", "[draft][states][scheduler]") {
  const TempDir temp;
  const std::string folder = draft_folder("qwen35", temp, repeating_head());
  const std::vector<int32_t> tokens = tiny_tokens();
  const auto asked = [&](int from, int n, int more, float temperature) {
    Ask a = ask(n, static_cast<uint32_t>(n), more, temperature);
    a.prompt.assign(tokens.begin() + from, tokens.begin() + from + n);
    return a;
  };
  const std::vector<Ask> asks = {asked(0, 300, 60, 0),  asked(0, 320, 40, 0.9f),
                                 asked(30, 5, 90, 0),   asked(0, 290, 1, 0),
                                 asked(100, 90, 70, 0), asked(30, 80, 0, 0)};
  std::map<uint64_t, Got> want;
  for (const DraftKind draft : {DraftKind::OFF, DraftKind::MTP, DraftKind::AUTO}) {
    INFO("draft " << static_cast<int>(draft));
    ContextOptions o = draft_context(draft);
    o.n_sessions = 3;
    Runtime r(o, folder);
    Run run(r, defaults());
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    if (draft == DraftKind::OFF) want = run.got;
    for (size_t i = 0; i < asks.size(); ++i) {
      INFO("request " << i);
      check_same(run.got[i + 1], want[i + 1]);
      CHECK(run.got[i + 1].tokens.size() == static_cast<size_t>(asks[i].options.max_tokens));
    }
    if (draft == DraftKind::MTP) CHECK(r.stats().lookup_accepted > 10);
  }
}

TEST_CASE("MTP: converted weights keep the layer", "[draft][quantize]") {
  const TempDir temp;
  const std::string folder = draft_folder("qwen35", temp), path = temp / "q8.gguf",
                    again = temp / "q4.gguf";
  quantize_file(folder, path, weight_mix_named("q8_0"), 2, false, {});
  quantize_file(path, again, weight_mix_named("q4_0"), 2, false, {});
  const auto whole = load_model(folder, {});
  REQUIRE(whole->config.draft_head);
  for (const std::string& file : {path, again}) {
    const auto model = load_model(file, {});
    CHECK(model->config.draft_head);
    CHECK(model->config.n_layers == whole->config.n_layers);
    CHECK(model->n_params == whole->n_params);
  }
  ContextOptions o = draft_context(DraftKind::MTP);
  Runtime r(o, path);
  const std::vector<int32_t> tokens = tiny_tokens();
  CHECK(guessed(r, r.session({tokens.begin(), tokens.begin() + 50}), tokens[50], 4).size() == 4);
}

TEST_CASE("MTP: what cannot be is refused by name", "[draft]") {
  const auto refused = [](const ContextOptions& o, const std::string& folder, const char* words) {
    riffle_model* model = nullptr;
    char err[512];
    REQUIRE(riffle_model_load(folder.c_str(), nullptr, &model, err, sizeof err) == RIFFLE_OK);
    riffle_context* context = nullptr;
    CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
    CHECK_THAT(std::string(err), Catch::Contains(words));
    riffle_model_free(model);
  };
  refused(draft_context(DraftKind::MTP), shipped_model(),
          "draft is mtp, but the model has no MTP layer that riffle knows");
  const TempDir temp;
  const std::string folder = draft_folder("qwen35", temp);
  const std::vector<int32_t> tokens = tiny_tokens(),
                             some_of_text(tokens.begin(), tokens.begin() + 100);
  for (const SelectorKind selector : here({SelectorKind::TOKENSELECT, SelectorKind::LFPS})) {
    ContextOptions o = draft_context(DraftKind::MTP);
    o.selection.selector = selector;
    refused(o, folder, "draft is mtp, but selector ");
    o.draft = DraftKind::AUTO;
    Runtime r(o, folder);
    CHECK(answer(r, some_of_text, answer_of(9)).tokens.size() == 9);
    CHECK(r.stats().lookup_proposed == 0);
  }
  Runtime plain(draft_context(DraftKind::AUTO));
  CHECK(answer(plain, some_tokens(20, 1), answer_of(4)).tokens.size() == 4);
}

TEST_CASE("MTP: the number of guesses goes to where tokens are fastest", "[draft]") {
  // Seconds of a step with i guesses, and tokens that it gives.
  const auto settled = [](bool always, const double(&seconds)[5], const double(&tokens)[5]) {
    DraftPace pace(always);
    int counts[5] = {};
    for (int step = 0; step < 3000; ++step) {
      const int length = pace.length();
      const bool delayed = step % 9 == 4;  // by another program
      pace.record(length, seconds[length] * (delayed ? 30 : 1), tokens[length]);
      if (step >= 1000) ++counts[length];
    }
    return static_cast<int>(std::max_element(counts, counts + 5) - counts);
  };
  CHECK(settled(false, {1, 1.1, 1.2, 1.3, 1.4}, {1, 1.8, 2.4, 2.8, 3.0}) == 3);
  CHECK(settled(false, {1, 1.1, 1.2, 1.3, 1.4}, {1, 1.05, 1.06, 1.06, 1.06}) == 0);
  CHECK(settled(true, {1, 1.1, 1.2, 1.3, 1.4}, {1, 1.05, 1.06, 1.06, 1.06}) == 1);
  CHECK(settled(false, {1, 2, 3, 4, 5}, {1, 1.9, 2.7, 3.4, 4}) == 0);
}
