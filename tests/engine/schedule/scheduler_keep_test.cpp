// Finished sequences that are kept for later prompts, and a prefix cache on disk: texts are those
// of requests alone, and a beginning that one prompt has read is not read again.
#include <filesystem>

#include "tests/engine/schedule/scheduled.h"
#include "tests/model/test_files.h"

using namespace riffle;
using namespace riffle::test;

namespace {

Ask question(const std::vector<int32_t>& document, int i) {
  Ask a = ask(30 + 11 * i, 60 + i, 8, i % 2 ? 0.8f : 0);
  a.prompt.insert(a.prompt.begin(), document.begin(), document.end());
  return a;
}

// Runs a request to its end, and returns what it got.
Got& answer(Run& run, const Ask& a) {
  const uint64_t id = run.submit(a);
  run.finish();
  return run.got[id];
}

struct Cache {
  riffle_prefix_cache* cache = nullptr;
  explicit Cache(const std::string& folder) {
    char err[512];
    REQUIRE(riffle_prefix_cache_open(folder.c_str(), 0, &cache, err, sizeof err) == RIFFLE_OK);
  }
  Cache(const Cache&) = delete;
  ~Cache() { riffle_prefix_cache_free(cache); }
  double number(const char* name) const {
    return riffle_info_number(riffle_prefix_cache_info(cache), name);
  }
  std::string notice() const { return riffle_info_text(riffle_prefix_cache_info(cache), "notice"); }
};

}  // namespace

TEST_CASE("scheduler: finished sequences stay for later prompts", "[scheduler]") {
  const std::vector<int32_t> document = some_tokens(500, 50), other = some_tokens(300, 51);
  for (const bool emu : {false, true})
    for (const bool limited : {false, true}) {
      INFO("emu " << emu << ", host_mem " << limited);
      ContextOptions o = base();
      o.n_sessions = 4;
      if (emu) o.device = DeviceKind::EMU, o.slots = 600;
      if (limited) o.host_mem = uint64_t{64} << 20;
      Runtime r(o);
      SchedulerOptions so = defaults();
      so.max_seqs = 2;
      so.keep_seqs = 2;
      Run run(r, so);
      CHECK(answer(run, question(document, 0)).reused == 0);
      CHECK(answer(run, question(other, 1)).reused == 0);
      CHECK(host_kv_bytes(r) > 0);
      // Used again, so `other` is the least recently used one.
      const Ask again = question(document, 2);
      const Got got = answer(run, again);
      check_same(got, alone(base(), again));
      CHECK(got.reused >= document.size());
      CHECK(answer(run, question(some_tokens(300, 52), 3)).reused == 0);
      CHECK(answer(run, question(document, 4)).reused >= document.size());
      CHECK(answer(run, question(other, 5)).reused == 0);
      // max_seqs requests run, although others are kept.
      for (int i = 0; i < 6; ++i) run.submit(question(document, i));
      size_t most = 0;
      while (run.step()) most = std::max(most, run.iterations.back().n_decoding);
      CHECK(most == 2);
    }
}

TEST_CASE("scheduler: a conversation is kept once", "[scheduler]") {
  Runtime r(base());
  SchedulerOptions so = defaults();
  so.keep_seqs = 4;
  Run run(r, so);
  Ask turn = ask(400, 1, 8);
  answer(run, turn);
  const uint64_t one = host_kv_bytes(r);
  for (uint32_t i = 0; i < 3; ++i) {
    const auto more = some_tokens(30, 70 + i);
    const size_t before = turn.prompt.size();
    turn.prompt.insert(turn.prompt.end(), more.begin(), more.end());
    CHECK(answer(run, turn).reused >= before - 1);
  }
  CHECK(host_kv_bytes(r) < 2 * one);
}

TEST_CASE("scheduler: a prompt's progress", "[scheduler]") {
  Runtime r(base());
  SchedulerOptions so = defaults();
  so.max_inject_tokens = 300;
  Run run(r, so);
  const uint64_t id = run.submit(ask(900, 1, 2));
  double last = 0;
  int parts = 0;
  while (run.step()) {
    const riffle_info* it = riffle_scheduler_iteration(run.scheduler);
    if (riffle_info_number(it, "prefill_request") == 0) continue;
    CHECK(riffle_info_number(it, "prefill_request") == static_cast<double>(id));
    const double share = riffle_info_number(it, "prefill_share");
    CHECK(share > last);
    last = share;
    ++parts;
  }
  CHECK(last == 1);
  CHECK(parts > 3);
}

TEST_CASE("scheduler: a prefix cache gives later processes what was read",
          "[scheduler][session_file]") {
  const TempDir temp;
  const std::string folder = temp / "cache";
  const std::vector<int32_t> document = some_tokens(800, 50);
  const Ask first = question(document, 0), second = question(document, 1);
  const auto cached = [&](riffle_keep keep, const Ask& a, double saved) {
    Cache cache(folder);
    Runtime r(base());
    Run run(r, defaults());
    REQUIRE(riffle_scheduler_use_prefix_cache(run.scheduler, cache.cache, keep) == RIFFLE_OK);
    const Got got = answer(run, a);
    check_same(got, alone(base(), a));
    CHECK(cache.number("saved") == saved);
    CHECK(cache.notice().empty());
    return got.loaded;
  };
  CHECK(cached(RIFFLE_KEEP_SHARED, first, 0) == 0);  // nothing shares it yet
  CHECK(cached(RIFFLE_KEEP_ALL, first, 1) == 0);
  CHECK(cached(RIFFLE_KEEP_ALL, second, 0) >= document.size());
  Ask longer = second;  // a quarter is new
  const auto more = some_tokens(700, 90);
  longer.prompt.insert(longer.prompt.end(), more.begin(), more.end());
  CHECK(cached(RIFFLE_KEEP_ALL, longer, 1) >= document.size());
  CHECK(cached(RIFFLE_KEEP_ALL, longer, 0) >= longer.prompt.size() - 1);
}

TEST_CASE("scheduler: a prefix cache that cannot be used", "[scheduler][session_file]") {
  const TempDir temp;
  char err[512];
  riffle_prefix_cache* cache = nullptr;
  const std::string deep = temp / "no" + std::string("/such");
  CHECK(riffle_prefix_cache_open(deep.c_str(), 0, &cache, err, sizeof err) == RIFFLE_IO);
  CHECK(std::string(err).find("cannot create") != std::string::npos);
  CHECK(cache == nullptr);
  CHECK(riffle_prefix_cache_open(nullptr, 0, &cache, err, sizeof err) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_prefix_cache_info(nullptr) == nullptr);
  // A limit that no prefix fits is noted once, and nothing is saved.
  const std::string folder = temp / "small";
  REQUIRE(riffle_prefix_cache_open(folder.c_str(), 1000, &cache, err, sizeof err) == RIFFLE_OK);
  {
    Runtime r(base());
    Run run(r, defaults());
    REQUIRE(riffle_scheduler_use_prefix_cache(run.scheduler, cache, RIFFLE_KEEP_ALL) == RIFFLE_OK);
    for (int i = 0; i < 2; ++i) answer(run, ask(700, 7 + i, 2));
    const std::string notice = riffle_info_text(riffle_prefix_cache_info(cache), "notice");
    CHECK(notice.find("more than the limit of the prefix cache") != std::string::npos);
    CHECK(notice.find("; ") == std::string::npos);
  }
  riffle_prefix_cache_free(cache);
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);  // the lock
}

TEST_CASE("scheduler: a plan for several sequences", "[scheduler]") {
  Runtime r(base());
  riffle_options* options = riffle_options_create();
  CHECK(riffle_plan_scheduler(r.model, options, 3) == RIFFLE_OK);
  CHECK(std::string(riffle_options_get(options, "max-seqs")) == "3");
  CHECK(std::string(riffle_options_get(options, "sessions")) == "3");
  CHECK(std::string(riffle_options_get(options, "host-mem")) != "0");
  CHECK(riffle_plan_scheduler(r.model, options, 0) == RIFFLE_OK);
  CHECK(std::stoi(riffle_options_get(options, "max-seqs")) >= 1);
  CHECK(riffle_plan_scheduler(r.model, options, -1) == RIFFLE_BAD_ARGUMENT);
  CHECK(riffle_plan_scheduler(r.model, nullptr, 1) == RIFFLE_BAD_ARGUMENT);
  riffle_options_free(options);
}
