// Requests that begin from saved sessions: their texts are those of requests that read their
// prompts, and what cannot be loaded is read.
#include <filesystem>

#include "tests/engine/schedule/scheduled.h"
#include "tests/engine/spoiled_session.h"
#include "tests/engine/window_model.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Files that the callbacks save and load.
struct Files {
  std::string path;
  size_t save = 0;  // tokens of the first prompt; 0: none
  bool give = false;
  riffle_session_file* file = nullptr;
  size_t asked = 0, saved = 0;
  std::vector<size_t> loaded;
  std::vector<std::string> errors;

  explicit Files(std::string p) : path(std::move(p)) {}
  Files(const Files&) = delete;
  ~Files() { riffle_session_file_free(file); }
};

// A Run whose scheduler has these callbacks.
struct SavedRun : Run {
  Files& f;

  SavedRun(Runtime& runtime, const SchedulerOptions& o, Files& files) : Run(runtime, o), f(files) {
    riffle_scheduler_on_begin(scheduler, on_begin);
    riffle_scheduler_on_prompt(scheduler, on_prompt);
  }
  static SavedRun& of(void* user) { return *static_cast<SavedRun*>(static_cast<Run*>(user)); }
  static riffle_session_file* on_begin(void* user, uint64_t, size_t) {
    Files& f = of(user).f;
    ++f.asked;
    if (!f.give) return nullptr;
    riffle_session_file_free(f.file);
    char err[512];
    REQUIRE(riffle_session_file_open(f.path.c_str(), &f.file, err, sizeof err) == RIFFLE_OK);
    return f.file;
  }
  static void on_prompt(void* user, uint64_t, riffle_session* session, const riffle_info* prompt) {
    const auto number = [&](const char* name) {
      return static_cast<size_t>(riffle_info_number(prompt, name));
    };
    Files& f = of(user).f;
    f.loaded.push_back(number("loaded_tokens"));
    if (number("load_status") != RIFFLE_OK)
      f.errors.emplace_back(riffle_info_text(prompt, "load_error"));
    if (f.save == 0 || f.saved > 0) return;
    size_t n_tokens = riffle_session_reach(session, f.save);
    n_tokens -= n_tokens % number("reuse_unit");
    const riffle_status status =
        riffle_session_save(session, f.path.c_str(), n_tokens, nullptr, 0, nullptr, nullptr);
    INFO(riffle_context_error(of(user).r.context));
    REQUIRE(status == RIFFLE_OK);
    f.saved = n_tokens;
  }
};

std::vector<Ask> questions(const std::vector<int32_t>& document, int n) {
  std::vector<Ask> asks;
  for (int i = 0; i < n; ++i) {
    asks.push_back(ask(30 + 11 * i, 60 + i, 10, i % 2 ? 0.8f : 0));
    asks.back().prompt.insert(asks.back().prompt.begin(), document.begin(), document.end());
  }
  return asks;
}

}  // namespace

TEST_CASE("scheduler: requests begin from saved sessions", "[scheduler][session_file]") {
  OneIn one(3);
  const TempDir temp;
  const std::vector<int32_t> document = some_tokens(1200, 50);
  const std::vector<Ask> asks = questions(document, 4);
  for (const SelectorKind selector : here({SelectorKind::DENSE, SelectorKind::PSA,
                                           SelectorKind::SHARE, SelectorKind::TOKENSELECT})) {
    std::vector<Got> want;
    for (const Ask& a : asks) want.push_back(alone(base(selector), a));
    for (const bool emu : {false, true})
      for (const int max_seqs : {1, 8}) {
        if (one.skips()) continue;
        INFO("selector " << selector << ", emu " << emu << ", max_seqs " << max_seqs);
        ContextOptions o = base(selector);
        if (emu) o.device = DeviceKind::EMU, o.slots = 600;
        SchedulerOptions so = defaults();
        so.max_seqs = max_seqs;
        Files files{temp / "a.kv"};
        files.save = document.size() + 7;  // beyond what the prompts share
        {
          Runtime r(o);
          SavedRun run(r, so, files);
          for (const Ask& a : asks) run.submit(a);
          run.finish();
          CHECK(files.asked == asks.size());
          CHECK(files.saved == document.size() + 7);
          for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
        }
        Files again{files.path};
        again.give = true;
        Runtime r(o);
        SavedRun run(r, so, again);
        for (size_t i = 1; i < asks.size(); ++i) run.submit(asks[i]);
        run.finish();
        for (size_t i = 1; i < asks.size(); ++i) check_same(run.got[i], want[i]);
        REQUIRE(again.loaded.size() == asks.size() - 1);
        const size_t shared = document.size() + 1;  // all questions begin with one token
        CHECK(again.loaded[0] == shared);
        CHECK(run.got[1].loaded == shared);
        CHECK(run.got[1].reused == 0);
        for (size_t i = 2; i < asks.size(); ++i)
          CHECK(run.got[i].loaded + run.got[i].reused >= document.size());
        CHECK(again.errors.empty());
        CHECK(r.stats().prefill_tokens < document.size());
        CHECK(r.stats().host_kv_bytes == 0);
      }
  }
}

// Saves the document, which ask's prompt begins with, while a scheduler answers ask.
static void save_document(Files& files, const std::vector<int32_t>& document, const Ask& ask) {
  files.save = document.size();
  Runtime r(base());
  SavedRun run(r, defaults(), files);
  run.submit(ask);
  run.finish();
}

TEST_CASE("scheduler: a saved session that cannot be loaded is not missed",
          "[scheduler][session_file]") {
  const TempDir temp;
  const std::vector<int32_t> document = some_tokens(400, 50);
  const std::vector<Ask> asks = questions(document, 2);
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(base(), a));
  Files files{temp / "a.kv"};
  save_document(files, document, asks[0]);
  const auto check_read = [&](const ContextOptions& o, const std::string& word) {
    Files again{files.path};
    again.give = true;
    Runtime r(o);
    SavedRun run(r, defaults(), again);
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) CHECK(run.got[i + 1].status == RIFFLE_OK);
    if (o.kv_type == KvKind::F16)
      for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
    REQUIRE(again.errors.size() >= 1);
    INFO(again.errors[0]);
    CHECK(again.errors[0].find(word) != std::string::npos);
    CHECK(run.got[1].loaded == 0);
  };
  SECTION("a flipped bit") {
    std::string data = read_file(files.path);
    data[data.size() / 2] ^= 1;
    write_file(files.path, data);
    check_read(base(), "checksum");
  }
  SECTION("other KV") {
    ContextOptions o = base();
    o.kv_type = KvKind::F32;
    check_read(o, "expected f32");
  }
  SECTION("an abort, and on") {
    Files again{files.path};
    again.give = true;
    Runtime r(base());
    SavedRun run(r, defaults(), again);
    for (const Ask& a : asks) run.submit(a);
    riffle_abort(r.context, true);
    CHECK(scheduler_step(run.scheduler, nullptr) == RIFFLE_ABORTED);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
    CHECK(run.got[1].loaded == document.size());
  }
  SECTION("little host memory") {
    ContextOptions o = base();
    o.n_ctx = 512;
    o.host_mem = full_session_bytes(o);
    Files again{files.path};
    again.give = true;
    Runtime r(o);
    SavedRun run(r, defaults(), again);
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
    CHECK(run.got[1].loaded == document.size());
  }
}

TEST_CASE("scheduler: a saved session with keys that are not numbers is named",
          "[scheduler][session_file]") {
  const TempDir temp;
  const std::vector<int32_t> document = some_tokens(400, 50);
  const std::vector<Ask> asks = questions(document, 2);
  Files files{temp / "a.kv"};
  save_document(files, document, asks[0]);
  SpoilSession change;
  change.block = [](std::byte* block, const riffle::BlockLayout& layout, int64_t layer, int head,
                    int64_t number) {
    if (layer == 1 && head == 0 && number == 0) spoil_row(block, layout, 5, false, false);
  };
  write_file(files.path, spoiled(read_file(files.path), change));
  Files again{files.path};
  again.give = true;
  Runtime r(base());
  SavedRun run(r, defaults(), again);
  for (const Ask& a : asks) run.submit(a);
  run.finish();
  for (size_t i = 1; i <= asks.size(); ++i) {
    CHECK(run.got[i].status == RIFFLE_BAD_SESSION);
    CHECK(run.got[i].error.find(files.path + ": layer 1, KV head 0, token 5: found") == 0);
  }
}

TEST_CASE("scheduler: models with windows begin from saved sessions where these allow it",
          "[scheduler][session_file][window]") {
  const TempDir temp;
  const std::string model = mistral(temp, 64);
  ContextOptions o = base(SelectorKind::SHARE);
  const auto all = ids(0, 700);
  std::vector<Ask> asks(3, ask(1, 1, 10));
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].prompt.assign(all.begin(), all.begin() + 400);
    asks[i].prompt.insert(asks[i].prompt.end(), all.begin() + 450 + i, all.begin() + 500 + i);
  }
  std::vector<Got> want;
  {
    SchedulerOptions so = defaults();
    so.prefix_reuse = false;
    Runtime r(o, model);
    Run run(r, so);
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    for (size_t i = 0; i < asks.size(); ++i) want.push_back(run.got[i + 1]);
  }
  Files files{temp / "a.kv"};
  files.save = 400;
  {
    Runtime r(o, model);
    SavedRun run(r, defaults(), files);
    for (const Ask& a : asks) run.submit(a);
    run.finish();
    CHECK(files.saved == 400);
  }
  Files again{files.path};
  again.give = true;
  Runtime r(o, model);
  SavedRun run(r, defaults(), again);
  for (const Ask& a : asks) run.submit(a);
  Ask other = asks[0];  // parts from the file where the windows have moved on
  other.prompt[200] = other.prompt[201];
  run.submit(other);
  run.finish();
  for (size_t i = 0; i < asks.size(); ++i) check_same(run.got[i + 1], want[i]);
  CHECK(run.got[1].loaded == 400);
  CHECK(run.got[4].loaded == 0);
  CHECK(again.errors.empty());
}

TEST_CASE("contexts that compute the same KV have one fingerprint", "[session_file]") {
  const auto fingerprint = [](const ContextOptions& o) {
    Runtime r(o);
    uint64_t value = 0;
    r.check(riffle_context_fingerprint(r.context, &value));
    return value;
  };
  ContextOptions o = base();
  o.isa = IsaChoice::SCALAR;
  const uint64_t one = fingerprint(o);
  ContextOptions p = o;
  p.device = DeviceKind::EMU, p.slots = 600, p.prefill_chunk = 64, p.n_ctx = 1000;
  p.selection.selector = SelectorKind::SHARE;
  CHECK(fingerprint(p) == one);
  p = o, p.kv_type = KvKind::F32;
  CHECK(fingerprint(p) != one);
  p = o, p.block_size = 32;
  CHECK(fingerprint(p) != one);
  const cpu::Isa best = cpu::best_isa();
  p = o, p.isa = static_cast<IsaChoice>(int(best) + int(IsaChoice::SCALAR));
  CHECK((fingerprint(p) != one) == (best != cpu::Isa::Scalar));
  // AUTO may choose other sets in another process, but the number stays.
  p.isa = IsaChoice::AUTO;
  CHECK(fingerprint(p) != one);
}
