// Sessions on disk: what is loaded goes on with the logits of the session itself, bit for bit; what
// is damaged or does not fit is an error of one line; a save that fails leaves the file as it was.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>

#include "tests/engine/session_files.h"
#include "tests/engine/window_model.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

uint64_t size_of(const std::string& path) { return std::filesystem::file_size(path); }

size_t files_in(const TempDir& temp) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp.path())) n += entry.exists();
  return n;
}

}  // namespace

TEST_CASE("only what is new is written", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", copy = temp / "b.kv";
  const auto prompt = some_tokens(400, 1), more = some_tokens(20, 2);
  for (const bool loaded : {false, true}) {
    INFO("loaded in between: " << loaded);
    std::filesystem::remove(path);
    Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
    riffle_session* s = a.session(prompt);
    save(a, s, path, "first");
    const uint64_t first = size_of(path);
    struct stat before, after;
    REQUIRE(stat(path.c_str(), &before) == 0);
    CHECK((before.st_mode & 0777) == 0600);
    REQUIRE(chmod(path.c_str(), 0644) == 0);  // a save takes it back
    if (loaded) s = load(a, path);
    std::mt19937 random(3);
    for (int turn = 0; turn < 12; ++turn) {
      INFO("turn " << turn);
      const size_t n = riffle_session_length(s);
      if (turn % 3 == 2) a.check(riffle_session_truncate(s, n - random() % 40));
      a.check(riffle_prefill(s, more.data(), 1 + random() % 20, nullptr, nullptr));
      for (size_t i = 0; i < random() % 8; ++i) a.check(riffle_step(a.context, &s, &more[i], 1));
      const uint64_t at = size_of(path);
      save(a, s, path, "turn " + std::to_string(turn));
      CHECK(size_of(path) - at < first / 2);
      const test::SessionFile file(path);
      CHECK(file.number("saves") == turn + 2);
      CHECK(file.data() == "turn " + std::to_string(turn));
      REQUIRE(stat(path.c_str(), &after) == 0);
      CHECK(after.st_ino == before.st_ino);
      CHECK((after.st_mode & 0777) == 0600);
      std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
      riffle_session* twin = load(b, copy);
      a.sessions.push_back(nullptr);
      CHECK(a.logits(s) == b.logits(twin));
      int32_t token = 400 + turn;
      a.check(riffle_step(a.context, &s, &token, 1));
      b.check(riffle_step(b.context, &twin, &token, 1));
      CHECK(a.logits(s) == b.logits(twin));
    }
    CHECK(files_in(temp) == 2);
  }
}

TEST_CASE("a save by somebody else is not written over in part", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(200, 1), other = some_tokens(90, 2);
  Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
  riffle_session *s = a.session(), *t = nullptr;
  a.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  save(a, s, path);
  t = load(b, path);
  b.check(riffle_prefill(t, other.data(), other.size(), nullptr, nullptr));
  save(b, t, path);  // behind what a saved
  a.check(riffle_prefill(s, other.data(), 5, nullptr, nullptr));
  save(a, s, path);  // anew
  Runtime c(small(SelectorKind::SHARE));
  go_on_alike(a, s, c, load(c, path), other);
  save(b, t, temp / "b.kv");
  go_on_alike(b, t, c, load(c, temp / "b.kv"), other);
}

TEST_CASE("a save that expects another one changes nothing", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(200, 1), other = some_tokens(90, 2);
  Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  riffle_options o;
  uint64_t none = 0, mine = 0, theirs = 0;
  const auto save_over = [&](riffle_session* session, uint64_t* id) {
    return riffle_session_save(session, path.c_str(), 0, nullptr, 0, id, &o);
  };
  a.check(save_over(s, &mine));
  CHECK(mine == test::SessionFile(path).save_id());
  riffle_session* t = load(b, path);
  b.check(riffle_prefill(t, other.data(), other.size(), nullptr, nullptr));
  theirs = mine;
  b.check(save_over(t, &theirs));
  CHECK(theirs == test::SessionFile(path).save_id());
  CHECK(test::SessionFile(path).number("saves") == 2);
  CHECK(theirs != mine);
  const auto check_refused = [&](uint64_t* id) {
    const std::string before = read_file(path);
    const uint64_t expected = *id;
    CHECK(save_over(s, id) == RIFFLE_FILE_CHANGED);
    CHECK(*id == expected);
    CHECK(read_file(path) == before);
    CHECK(std::string(riffle_context_error(a.context)).find(path + ": found ") == 0);
    CHECK(files_in(temp) == 1);
  };
  check_refused(&mine);
  check_refused(&none);
  // Another save comes while this one is being written: to a new file, or in place of an old one.
  for (const bool old : {false, true}) {
    INFO("in place of an old one: " << old);
    std::filesystem::remove(path);
    mine = 0;
    if (old) {
      b.check(save_over(t, nullptr));
      mine = test::SessionFile(path).save_id();
      b.check(riffle_prefill(t, other.data(), 3, nullptr, nullptr));
    }
    struct Other {
      Runtime& runtime;
      riffle_session* session;
      std::string path;
    } by{b, t, path};
    const auto meanwhile = [](void* user, const riffle_progress* p) {
      const auto& [runtime, session, name] = *static_cast<Other*>(user);
      if (p->done == 0) save(runtime, session, name);
      return true;
    };
    riffle_options_set_progress(&o, meanwhile, &by);
    CHECK(save_over(s, &mine) == RIFFLE_FILE_CHANGED);
    CHECK(files_in(temp) == 1);
    riffle_options_set_progress(&o, nullptr, nullptr);
    CHECK(test::SessionFile(path).number("n_tokens") == double(riffle_session_length(t)));
  }
  std::filesystem::remove(path);
  a.check(save_over(s, &mine));  // nothing is replaced
  write_file(path, "");
  none = 0;
  a.check(save_over(s, &none));
  go_on_alike(a, s, b, load(b, path), {301, 302});
}

TEST_CASE("sessions of models with windows are saved with what they keep",
          "[session_file][window]") {
  const TempDir temp;
  for (const std::string& model : {mistral(temp, 64), qwen(temp, 100), qwen(temp, 70, true)})
    for (const SelectorKind selector : here({SelectorKind::SHARE, SelectorKind::LFPS}))
      for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
        check_saved_turns(model, selector, device, temp / "a.kv");
}

// Gemma 4: some layers attend to an earlier layer's KV, and tokens have embeddings for each layer.
TEST_CASE("sessions of models whose layers share KV are saved with what they keep",
          "[session_file][window]") {
  const TempDir temp;
  for (const char* name : {"gemma4_e2b", "gemma4_e4b"})
    for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE})
      for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
        check_saved_turns(tiny_folder(tiny_checkpoint(name), temp), selector, device,
                          temp / "a.kv");
}

TEST_CASE("forks and cuts of models with windows are saved wherever they are possible",
          "[session_file][window]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  for (const std::string& model : {mistral(temp, 64), qwen(temp, 100)})
    for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU})
      for (const bool cut : {false, true}) {
        INFO(model << ", device " << device << ", cut " << cut);
        Runtime a(small(SelectorKind::SHARE, device), model),
            b(small(SelectorKind::SHARE, device), model);
        const auto all = ids(0, 700), more = ids(700, 712);
        for (size_t at = 600; at > 540; at -= 7) {
          INFO("at " << at);
          riffle_session* s = a.session();
          a.check(riffle_prefill(s, all.data(), 600, nullptr, nullptr));
          REQUIRE(riffle_session_reach(s, at) == at);
          if (cut) {
            a.check(riffle_session_truncate(s, at));
          } else {
            a.sessions.push_back(nullptr);
            a.check(riffle_session_fork(s, at, &a.sessions.back()));
            s = a.sessions.back();
          }
          std::filesystem::remove(path);
          save(a, s, path);
          go_on_alike(a, s, b, load(b, path), more);
        }
      }
}

TEST_CASE("what a file does not fit is named", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(200, 1);
  {
    Runtime a(small(SelectorKind::SHARE));
    riffle_session* s = a.session(prompt);
    save(a, s, path, "mine");
  }
  const test::SessionFile file(path);
  REQUIRE(file.status == RIFFLE_OK);
  CHECK(file.number("n_tokens") == 200);
  CHECK(file.number("block_size") == 16);
  CHECK(file.number("has_logits") == 1);
  std::vector<int32_t> tokens(200);
  size_t n = 0;
  REQUIRE(riffle_session_file_tokens(file.handle, tokens.data(), 200, &n) == RIFFLE_OK);
  CHECK(tokens == prompt);
  const auto refused = [&](riffle_status status, const ContextOptions& o, const std::string& word,
                           const std::string& model = shipped_model()) {
    Runtime r(o, model);
    riffle_session* s = nullptr;
    CHECK(riffle_session_load(r.context, file.handle, &s, nullptr, nullptr) == status);
    CHECK(s == nullptr);
    const std::string text = riffle_context_error(r.context);
    INFO(text);
    CHECK(text.find(path) != std::string::npos);
    CHECK(text.find(word) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
  };
  ContextOptions o = small(SelectorKind::SHARE);
  o.kv_type = KvKind::F32;
  refused(RIFFLE_UNSUPPORTED, o, "f16 in blocks of 16 tokens, expected f32");
  o = small(SelectorKind::SHARE);
  o.block_size = 32;
  refused(RIFFLE_UNSUPPORTED, o, "blocks of 32");
  o = small(SelectorKind::SHARE);
  o.n_ctx = 128;
  refused(RIFFLE_CONTEXT_FULL, o, "200 tokens, but the context holds 128");
  refused(RIFFLE_UNSUPPORTED, small(SelectorKind::SHARE), "model", mistral(temp, 64));

  char err[512];
  riffle_session_file* none = nullptr;
  CHECK(riffle_session_file_open((temp / "no.kv").c_str(), &none, err, sizeof err) == RIFFLE_IO);
  CHECK(riffle_session_file_open(temp.path().c_str(), &none, err, sizeof err) == RIFFLE_IO);
  REQUIRE(mkfifo((temp / "fifo").c_str(), 0600) == 0);
  CHECK(riffle_session_file_open((temp / "fifo").c_str(), &none, err, sizeof err) == RIFFLE_IO);
  write_file(temp / "text", std::string(20000, 'x'));
  CHECK(riffle_session_file_open((temp / "text").c_str(), &none, err, sizeof err) ==
        RIFFLE_BAD_SESSION);
  Runtime a(small(SelectorKind::SHARE));
  riffle_session* s = a.session();
  const auto check_target = [&](const char* name, riffle_status status) {
    INFO(name);
    CHECK(riffle_session_check_path((temp / name).c_str(), err, sizeof err) == status);
    CHECK(std::string(err).empty() == (status == RIFFLE_OK));
    CHECK(riffle_session_save(s, (temp / name).c_str(), 0, nullptr, 0, nullptr, nullptr) == status);
  };
  for (const char* taken : {"text", "fifo", "."}) check_target(taken, RIFFLE_BAD_ARGUMENT);
  check_target("no/such.kv", RIFFLE_IO);
  REQUIRE(riffle_session_check_path((temp / "new.kv").c_str(), err, sizeof err) == RIFFLE_OK);
  CHECK(!std::filesystem::exists(temp / "new.kv"));
  for (const char* mine : {"new.kv", "new.kv", "a.kv"}) check_target(mine, RIFFLE_OK);
}

TEST_CASE("damaged files are errors of one line", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv", bad = temp / "bad.kv";
  const auto prompt = some_tokens(150, 1), more = some_tokens(30, 2);
  ContextOptions o = small(first_here({SelectorKind::LFPS, SelectorKind::SHARE}));
  Runtime a(o);
  riffle_session* s = a.session(prompt);
  save(a, s, path, "data");
  a.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
  save(a, s, path, "other data");
  const std::string whole = read_file(path);
  Runtime b(o);
  int refused = 0, taken = 0;
  const auto attempt = [&](const std::string& bytes) {
    write_file(bad, bytes);
    const test::SessionFile file(bad);
    riffle_session* t = nullptr;
    riffle_status status = file.status;
    std::string text = file.err;
    if (status == RIFFLE_OK) {
      status = riffle_session_load(b.context, file.handle, &t, nullptr, nullptr);
      text = riffle_context_error(b.context);
    }
    INFO(text);
    if (status == RIFFLE_OK) {
      ++taken;
      int32_t token = 7;
      CHECK(riffle_step(b.context, &t, &token, 1) == RIFFLE_OK);
      riffle_session_free(t);
      return;
    }
    ++refused;
    CHECK((status == RIFFLE_BAD_SESSION || status == RIFFLE_UNSUPPORTED));
    CHECK(text.find(bad) == 0);
    CHECK(text.find('\n') == std::string::npos);
  };
  std::mt19937 random(1);
  for (size_t n = 0; n < whole.size(); n += 1 + whole.size() / 40) attempt(whole.substr(0, n));
  CHECK(taken == 0);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    // Half of the flips meet what describes the rest.
    const size_t at = i % 2 ? random() % bytes.size() : random() % 12288;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    attempt(bytes);
  }
  CHECK(refused > 150);
  Stats stats{};
  REQUIRE(get_stats(b.context, &stats) == RIFFLE_OK);
}

TEST_CASE("saving stops where riffle_abort was called", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(150, 1);
  Runtime a(small(SelectorKind::DENSE));
  riffle_session* s = a.session(prompt);
  riffle_options o;
  const auto abort = [](void* context, const riffle_progress*) {
    riffle_abort(static_cast<riffle_context*>(context), true);
    return true;
  };
  riffle_options_set_progress(&o, abort, a.context);
  CHECK(riffle_session_save(s, path.c_str(), 0, nullptr, 0, nullptr, &o) == RIFFLE_ABORTED);
  CHECK(!std::filesystem::exists(path));
  save(a, s, path);
}

TEST_CASE("a save that fails leaves the file as it was", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(300, 2);
  Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  const auto stop = [](void*, const riffle_progress* p) { return p->done == 0; };
  riffle_options stopped;
  riffle_options_set_progress(&stopped, stop, nullptr);
  CHECK(riffle_session_save(s, path.c_str(), 0, nullptr, 0, nullptr, &stopped) == RIFFLE_ABORTED);
  CHECK(files_in(temp) == 0);
  const auto without_room = [&](uint64_t bytes) {
    const auto old = signal(SIGXFSZ, SIG_IGN);
    rlimit limit;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const rlimit little{bytes, limit.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &little) == 0);
    const riffle_status status =
        riffle_session_save(s, path.c_str(), 0, nullptr, 0, nullptr, nullptr);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    signal(SIGXFSZ, old);
    return status;
  };
  CHECK(without_room(100000) == RIFFLE_IO);
  CHECK(files_in(temp) == 0);
  save(a, s, path);
  const std::string saved = read_file(path);
  a.check(riffle_prefill(s, more.data(), more.size(), nullptr, nullptr));
  CHECK(without_room(saved.size() + 10000) == RIFFLE_IO);
  CHECK(read_file(path) == saved);
  CHECK(riffle_session_save(s, path.c_str(), 0, nullptr, 0, nullptr, &stopped) == RIFFLE_ABORTED);
  CHECK(read_file(path) == saved);
  save(a, s, path);
  go_on_alike(a, s, b, load(b, path), {301, 302, 303, 304});
  // Bytes that an interrupted save left after the last complete one do not matter.
  const std::string again = read_file(path);
  write_file(path, again + std::string(5000, 'x'));
  riffle_session* t = load(b, path);
  b.check(riffle_prefill(t, more.data(), 7, nullptr, nullptr));
  save(b, t, path);
  go_on_alike(b, t, b, load(b, path), {305, 306});
}

TEST_CASE("sessions of one file share its blocks", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(500, 1), more = some_tokens(8, 2);
  Runtime a(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  save(a, s, path);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    Runtime b(small(SelectorKind::SHARE, device));
    auto file = std::make_unique<test::SessionFile>(path);
    std::vector<riffle_session*> loaded(3);
    for (riffle_session*& t : loaded)
      b.check(riffle_session_load(b.context, file->handle, &t, nullptr, nullptr));
    file.reset();
    std::filesystem::remove(path);
    for (riffle_session* t : loaded)
      for (const int32_t token : more) b.check(riffle_step(b.context, &t, &token, 1));
    for (riffle_session* t : loaded) CHECK(b.logits(t) == b.logits(loaded[0]));
    riffle_session_free(loaded[1]);
    b.check(riffle_session_truncate(loaded[0], 3));
    b.check(riffle_session_truncate(loaded[0], 0));
    save(b, loaded[2], path);
    riffle_session_free(loaded[0]);
    riffle_session_free(loaded[2]);
    // Another file may be mapped where the first one was.
    go_on_alike(b, load(b, path), b, load(b, path), more);
  }
}
