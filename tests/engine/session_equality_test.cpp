// A saved session goes on with the same logits, bit for bit: every selector, KV type and block
// size, cuts and forks, from one device to another.
#include <filesystem>

#include "tests/engine/session_files.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Saved on the one, loaded on the other.
constexpr std::pair<DeviceKind, DeviceKind> kWays[] = {{DeviceKind::CPU, DeviceKind::EMU},
                                                       {DeviceKind::EMU, DeviceKind::CPU}};
constexpr KvKind kTypes[] = {KvKind::F16, KvKind::F32, KvKind::Q8};

void check_way(ContextOptions o, ContextOptions p, const std::string& path) {
  const auto prompt = some_tokens(300, 1), more = some_tokens(8, 2);
  o.n_threads = 2;
  p.n_threads = 1;
  Runtime a(o), b(p);
  riffle_session* s = a.session(prompt);
  for (const int32_t t : more) a.check(riffle_step(a.context, &s, &t, 1));
  save(a, s, path);
  go_on_alike(a, s, b, load(b, path), more);
}

}  // namespace

TEST_CASE("saved sessions go on with the same bits, whatever selects", "[session_file][model]") {
  OneIn one(5);
  const TempDir temp;
  for (const SelectorKind selector : kSelectors)
    for (const KvKind type : kTypes)
      for (const auto& [from, to] : kWays) {
        if (one.skips()) continue;
        INFO("selector " << selector << ", KV " << type << ", from " << from);
        ContextOptions o = small(selector, from), p = small(selector, to);
        o.kv_type = p.kv_type = type;
        o.block_size = p.block_size = type == KvKind::Q8 ? 32 : 16;
        check_way(o, p, temp / "a.kv");
      }
}

TEST_CASE("saved sessions go on with the same bits in blocks of every size",
          "[session_file][model]") {
  OneIn one(5);
  const TempDir temp;
  for (const int block_size : {16, 32, 64})
    for (const KvKind type : kTypes)
      for (const auto& [from, to] : kWays) {
        if (one.skips()) continue;
        INFO("blocks of " << block_size << ", KV " << type << ", from " << from);
        ContextOptions o = small(SelectorKind::SHARE, from), p = small(SelectorKind::SHARE, to);
        o.kv_type = p.kv_type = type;
        o.block_size = p.block_size = block_size;
        check_way(o, p, temp / "a.kv");
      }
}

TEST_CASE("cuts and forks are saved and go on with the same bits", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(8, 2);
  for (const SelectorKind selector :
       here({SelectorKind::DENSE, SelectorKind::SHARE, SelectorKind::PSA}))
    for (const auto& [from, to] : kWays) {
      INFO("selector " << selector << ", from " << from);
      ContextOptions o = small(selector, from), p = small(selector, to);
      o.block_size = p.block_size = 32;
      Runtime a(o), b(p);
      riffle_session* s = a.session(prompt);
      // A fork in the middle of a block, and forks of what was loaded.
      riffle_session* one = fork_at(a, s, 130);
      save(a, one, path);
      riffle_session* loaded = load(b, path);
      riffle_session* two = fork_at(b, loaded, 96);
      go_on_alike(a, one, b, loaded, more);
      go_on_alike(a, fork_at(a, s, 96), b, two, more);
      // A cut before the first save, to the middle of a block and to its end.
      for (const size_t n : {250, 224}) {
        std::filesystem::remove(path);
        a.check(riffle_session_truncate(s, n));
        save(a, s, path);
        go_on_alike(a, s, b, load(b, path), more);
      }
      // A cut between two saves: the file has what was cut off.
      save(a, s, path);
      a.check(riffle_session_truncate(s, 210));
      a.check(riffle_prefill(s, more.data(), 5, nullptr, nullptr));
      save(a, s, path);
      CHECK(test::SessionFile(path).number("saves") == 3);
      go_on_alike(a, s, b, load(b, path), more);
    }
}

TEST_CASE("cut sessions are saved and go on with the same bits, whatever selects",
          "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(8, 2);
  for (const SelectorKind selector : kSelectors)
    for (const auto& [from, to] : kWays) {
      Runtime a(small(selector, from)), b(small(selector, to));
      riffle_session* s = a.session(prompt);
      // Back over steps, into the prompt, to the end of a block; saved anew and behind another
      // save.
      for (const size_t n : {302, 250, 240}) {
        INFO("selector " << selector << ", from " << from << ", cut to " << n);
        for (const int32_t t : more) a.check(riffle_step(a.context, &s, &t, 1));
        if (n == 250) std::filesystem::remove(path);
        a.check(riffle_session_truncate(s, n));
        save(a, s, path);
        go_on_alike(a, s, b, load(b, path), more);
      }
    }
}

TEST_CASE("saved sessions: another selection, and none", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(12, 2);
  Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  SECTION("another selection than the one that saved") {
    save(a, s, path);
    const SelectorKind selector = first_here({SelectorKind::PSA, SelectorKind::DENSE});
    const Selection other = small(selector).selection;
    riffle_session* t = load(b, path);
    b.check(set_selection(b.context, &other));
    a.check(set_selection(a.context, &other));
    go_on_alike(a, s, b, t, more);
  }
  SECTION("an empty session") {
    riffle_session* empty = a.session();
    save(a, empty, path);
    riffle_session* t = load(b, path);
    CHECK(riffle_session_length(t) == 0);
    for (const auto& [r, session] : {std::pair{&a, empty}, {&b, t}})
      r->check(riffle_prefill(session, more.data(), 5, nullptr, nullptr));
    go_on_alike(a, empty, b, t, more);
  }
}
