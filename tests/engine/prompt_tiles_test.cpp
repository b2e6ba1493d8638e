// Prompts whose queries choose the tiles of keys that they read (prefill_selector tiles).
#include "riffle_session_file.h"
#include "tests/engine/schedule/scheduled.h"
#include "tests/engine/session_files.h"
#include "tests/engine/steps.h"
#include "tests/engine/window_model.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions tiled(float share) {
  ContextOptions o = options();
  o.n_ctx = 4096;
  o.n_threads = usual_threads();
  o.selection.selector = SelectorKind::DENSE;
  o.prefill_selector = PrefillSelector::TILES;
  o.prefill_share = share;
  return o;
}

// Returns the logits after a prompt that is read in parts that end at `cuts`, and after one step.
std::vector<std::vector<float>> logits_of(Runtime& r, const std::vector<int32_t>& text,
                                          const std::vector<size_t>& cuts = {}) {
  riffle_session* s = r.session();
  size_t from = 0;
  for (const size_t cut : cuts) {
    r.check(riffle_prefill(s, &text[from], cut - from, nullptr, nullptr));
    from = cut;
  }
  r.check(riffle_prefill(s, &text[from], text.size() - from, nullptr, nullptr));
  std::vector<std::vector<float>> out = {r.logits(s)};
  const int32_t token = 300;
  r.check(riffle_step(r.context, &s, &token, 1));
  out.push_back(r.logits(s));
  return out;
}

std::string refusal(const ContextOptions& o) {
  Runtime r(options());
  riffle_context* context = nullptr;
  char err[512] = "";
  CHECK(context_create(r.model, &o, &context, err, sizeof err) != RIFFLE_OK);
  CHECK(context == nullptr);
  INFO(err);
  CHECK(err[0] != 0);
  return err;
}

}  // namespace

TEST_CASE("a prompt that chooses all tiles gives the bits of a dense one", "[engine][tiles]") {
  const auto text = some_tokens(1500, 5);
  for (const KvKind kv : {KvKind::F16, KvKind::F32, KvKind::Q8})
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
      INFO("KV type " << static_cast<int>(kv) << ", device " << static_cast<int>(device));
      ContextOptions o = tiled(1e-30f), dense = o;
      o.kv_type = dense.kv_type = kv;
      o.device = dense.device = device;
      dense.prefill_selector = PrefillSelector::DENSE;
      Runtime r(o), d(dense);
      CHECK(same_bits(logits_of(r, text), logits_of(d, text)));
      CHECK(r.stats().prefill_tiles_seen > 0);
      CHECK(r.stats().prefill_tiles_read == r.stats().prefill_tiles_seen);
      CHECK(d.stats().prefill_tiles_seen == 0);
    }
}

// Prompts shorter and longer than a tile; windows, several sizes of heads, shared KV and layers
// that keep a state in place of KV.
TEST_CASE("all tiles of other families give the bits of dense prompts", "[engine][tiles]") {
  const TempDir temp;
  for (const char* name : {"gemma3", "gemma4_e2b", "exaone4", "glm4_lite", "lfm2", "head_dim_80"}) {
    const std::string path = tiny_folder(tiny_checkpoint(name), temp);
    ContextOptions o = tiled(1e-30f);
    o.n_ctx = 512;
    ContextOptions dense = o;
    dense.prefill_selector = PrefillSelector::DENSE;
    Runtime r(o, path), d(dense, path);
    for (const int n : {1, 40, 127, 128, 200, 400}) {
      INFO(name << ", " << n << " tokens");
      const auto text = ids(0, n);
      CHECK(same_bits(logits_of(r, text), logits_of(d, text)));
    }
  }
}

TEST_CASE("scheduler: prompts that choose tiles give the texts that each gives alone",
          "[scheduler][tiles]") {
  ContextOptions o = tiled(0.05f);
  o.n_sessions = 5;
  const std::vector<Ask> asks = {ask(1500, 3, 12), ask(700, 1, 24), ask(2100, 5, 8),
                                 ask(65, 2, 20)};
  std::vector<Got> want;
  for (const Ask& a : asks) want.push_back(alone(o, a));
  for (const PrefillMode mode : {PrefillMode::LAYERS, PrefillMode::CHUNKS, PrefillMode::WHOLE}) {
    INFO("mode " << static_cast<int>(mode));
    Runtime r(o);
    SchedulerOptions so = defaults();
    so.prefill_mode = mode;
    so.max_inject_tokens = 300;
    Run run(r, so);
    std::vector<uint64_t> numbers;
    for (const Ask& a : asks) numbers.push_back(run.submit(a));
    numbers.push_back(run.submit(asks[2]));  // begins as an earlier one does
    run.finish();
    for (size_t i = 0; i < numbers.size(); ++i) {
      INFO("request " << i);
      check_same(run.got[numbers[i]], want[i < asks.size() ? i : 2]);
    }
  }
}

TEST_CASE("auto and share 0 read all keys", "[engine][tiles]") {
  const auto text = some_tokens(1500, 5);
  ContextOptions o = tiled(0);
  Runtime none(o);
  o.prefill_selector = PrefillSelector::AUTO;
  o.prefill_share = 0.5f;
  Runtime automatic(o);
  o.prefill_selector = PrefillSelector::DENSE;
  Runtime dense(o);
  const auto expected = logits_of(dense, text);
  CHECK(same_bits(logits_of(none, text), expected));
  CHECK(same_bits(logits_of(automatic, text), expected));
}

TEST_CASE("chosen tiles do not depend on chunks, pieces, threads or the device",
          "[engine][tiles][invariance]") {
  const auto text = some_tokens(3000, 6);
  const auto with = [](int chunk, int threads, DeviceKind device = DeviceKind::CPU) {
    ContextOptions o = tiled(0.05f);
    o.prefill_chunk = chunk;
    o.n_threads = threads;
    o.device = device;
    return o;
  };
  Runtime first(with(512, 1));
  const auto expected = logits_of(first, text);
  const Stats stats = first.stats();
  CHECK(stats.prefill_tiles_read < stats.prefill_tiles_seen);
  CHECK(stats.prefill_tiles_read > 0);
  for (const ContextOptions& o :
       {with(4096, 2), with(128, 2), with(200, 2), with(1, 2), with(512, 2, DeviceKind::EMU)}) {
    INFO("chunks of " << o.prefill_chunk);
    Runtime r(o);
    CHECK(same_bits(logits_of(r, text), expected));
    CHECK(r.stats().prefill_tiles_read == stats.prefill_tiles_read);
  }
  // Cut where query tiles end.
  CHECK(same_bits(logits_of(first, text, {128, 1280, 2816}), expected));
  // In pieces, and with a beginning that another session has read.
  riffle_session* s = first.session();
  first.check(riffle_prefill_to(s, text.data(), text.size(), nullptr, nullptr));
  CHECK(first.logits(s) == expected[0]);
  riffle_session* fork = nullptr;
  first.check(riffle_session_fork(s, 2048, &fork));
  first.sessions.push_back(fork);
  first.check(riffle_prefill(fork, &text[2048], text.size() - 2048, nullptr, nullptr));
  CHECK(first.logits(fork) == expected[0]);
}

TEST_CASE("a second prompt chooses tiles of the first one too", "[engine][tiles]") {
  const auto text = some_tokens(3000, 7);
  Runtime r(tiled(0.05f)), all(tiled(1e-30f));
  const auto some = logits_of(r, text, {1000}), dense = logits_of(all, text, {1000});
  CHECK(!same_bits(some, dense));
  CHECK(rows_difference(some, dense).relative < 0.5);
  CHECK(same_bits(logits_of(r, text, {1000}), some));
}

TEST_CASE("a saved session tells that its prompts chose tiles", "[engine][tiles][session_file]") {
  const TempDir temp;
  const auto text = some_tokens(2000, 8), more = some_tokens(20, 9);
  std::vector<float> expected;
  {
    Runtime r(tiled(0.05f));
    riffle_session* s = r.session(text);
    save(r, s, temp / "tiles.kv");
    r.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
    expected = r.logits(s);
    riffle_session* fork = nullptr;
    r.check(riffle_session_fork(s, 1024, &fork));
    r.sessions.push_back(fork);
    save(r, fork, temp / "fork.kv");
    save(r, r.session(some_tokens(100, 1)), temp / "short.kv");
  }
  CHECK(test::SessionFile(temp / "tiles.kv").number("chose_tiles") == 1);
  CHECK(test::SessionFile(temp / "fork.kv").number("chose_tiles") == 1);
  CHECK(test::SessionFile(temp / "short.kv").number("chose_tiles") == 0);
  Runtime again(tiled(0.05f));
  riffle_session* s = load(again, temp / "tiles.kv");
  again.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
  CHECK(again.logits(s) == expected);

  ContextOptions o = tiled(0.05f);
  o.prefill_selector = PrefillSelector::AUTO;
  Runtime dense(o);
  for (const char* name : {"tiles.kv", "fork.kv"}) {
    const test::SessionFile file(temp / name);
    riffle_session* loaded = nullptr;
    CHECK(riffle_session_load(dense.context, file.handle, &loaded, nullptr, nullptr) ==
          RIFFLE_UNSUPPORTED);
    const std::string message = riffle_context_error(dense.context);
    INFO(message);
    CHECK(message.find("chosen key tiles") != std::string::npos);
  }
  load(dense, temp / "short.kv");
}

TEST_CASE("a prefill-share outside [0, 1) is refused by name", "[engine][tiles]") {
  ContextOptions o = tiled(1);
  CHECK(refusal(o).find("prefill-share is 1, expected at least 0, less than 1 (0: everything)") !=
        std::string::npos);
  o.prefill_share = -0.1f;
  CHECK(refusal(o).find("prefill-share is ") != std::string::npos);
  o.prefill_share = NAN;
  CHECK(refusal(o).find("prefill-share is ") != std::string::npos);
}
