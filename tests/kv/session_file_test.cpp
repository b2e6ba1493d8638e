// The reader of sessions on files that no save writes: each is refused in one line.
#include "kv/file/session_file.h"

#include <catch2/catch.hpp>

#include "tests/kv/crafted_session.h"
#include "tests/model/test_files.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

static void check_refused(CraftedSession session, const std::string& field,
                          const std::string& expected) {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  session.write(path);
  try {
    SessionFile::open(path);
  } catch (const Error& e) {
    const std::string text = e.what();
    INFO(text);
    CHECK(e.status() == RIFFLE_BAD_SESSION);
    CHECK(text.find(path + ": " + field + ": found ") == 0);
    CHECK(text.find(", expected " + expected) != std::string::npos);
    CHECK(text.find('\n') == std::string::npos);
    return;
  }
  FAIL_CHECK("the file is taken");
}

TEST_CASE("a session whose runs overlap is refused", "[kv][session_file]") {
  const TempDir temp;
  CraftedSession s;
  s.write(temp / "a.kv");
  CHECK(SessionFile::open(temp / "a.kv")->content().n_tokens() == 20);
  const char* const apart = "runs that do not overlap";
  SECTION("extents of two lengths at one place") {
    s.save.index_offset = 7 * disk::kPage;
    s.save.end = 8 * disk::kPage;
    s.extents = {{0, 0, 1, 1, s.kBlocksAt}, {0, 1, 1, 8, s.kBlocksAt}};
    check_refused(s, "index", apart);
  }
  SECTION("an extent inside another") {
    s.save.index_offset = 7 * disk::kPage;
    s.save.end = 8 * disk::kPage;
    s.extents = {{0, 0, 1, 8, s.kBlocksAt}, {0, 1, 1, 1, s.kBlocksAt + disk::kPage}};
    check_refused(s, "index", apart);
  }
  SECTION("tokens among blocks") {
    s.tokens[0].run.offset = s.kBlocksAt + 1024;
    check_refused(s, "index", apart);
  }
  SECTION("data in the index") {
    s.index.data = {s.kIndexAt + 8, 16, 0};
    check_refused(s, "index", apart);
  }
}

// Holes take no room on a disk, so the file's size bounds nothing.
TEST_CASE("a session that was cut is refused with its size and the cause", "[kv][session_file]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  CraftedSession s;
  s.write(path);
  REQUIRE(::truncate(path.c_str(), static_cast<off_t>(6 * disk::kPage)) == 0);
  std::string said;
  try {
    SessionFile::open(path);
  } catch (const Error& e) {
    said = e.what();
  }
  CHECK(said == path + ": found " + std::to_string(6 * disk::kPage) + " bytes, expected " +
                    std::to_string(7 * disk::kPage) +
                    " bytes: the file was cut; restore it from a copy");
}

TEST_CASE("a session of terabytes of holes is refused without reading them", "[kv][session_file]") {
  const uint64_t far = uint64_t(1) << 42;
  CraftedSession s;
  s.save.end = far;
  SECTION("data") {
    s.index.data = {far / 2, far / 4, 0};
    check_refused(s, "caller's data", "at most 1073741824");
  }
  SECTION("a selector's state") {
    s.index.state = {far / 2, far / 4, 0};
    check_refused(s, "selector's state", "at most 4294967296");
  }
  SECTION("logits") {
    s.index.logits = {far / 2, far / 4, 0};
    check_refused(s, "logits", "at most 32");
  }
  SECTION("tokens") {
    s.tokens[0].run.offset = far / 2, s.tokens[0].run.bytes = far / 4;
    check_refused(s, "token extent's bytes", "");
  }
  SECTION("an index") {
    s.index_hole = far / 4;
    check_refused(s, "index", "184 to 1073741824");
  }
}

TEST_CASE("a session of the version before is refused with what to do", "[kv][session_file]") {
  const TempDir temp;
  CraftedSession s;
  s.header.version = 1;
  s.write(temp / "a.kv");
  try {
    SessionFile::open(temp / "a.kv");
    FAIL_CHECK("the file is taken");
  } catch (const Error& e) {
    CHECK(e.status() == RIFFLE_UNSUPPORTED);
    CHECK(std::string(e.what()).find(
              "a.kv: version: found 1, expected 2 to 4: the text must be read again") !=
          std::string::npos);
  }
}

TEST_CASE("a session's states are read, and refused by name", "[kv][session_file][states]") {
  CraftedSession s;
  s.add_states();
  SECTION("as they are") {
    const TempDir temp;
    s.write(temp / "a.kv");
    const auto file = SessionFile::open(temp / "a.kv");
    const std::vector<StateRun>& states = file->content().states;
    REQUIRE(states.size() == 2);
    CHECK((states[0].n_tokens == 7 && states[0].kind == Checkpoint::TURN &&
           states[0].logits.bytes == 0));
    CHECK((states[1].n_tokens == 20 && states[1].kind == Checkpoint::OTHER &&
           states[1].logits.bytes == 32));
    CHECK(file->content().state_bytes() == 2 * 64 + 32);
    CHECK(file->content().origin.shape().state_bytes() == 64);
  }
  SECTION("KV without its state") {
    s.states.pop_back();
    check_refused(s, "states", "one after 20");
  }
  SECTION("no state at all") {
    s.states.clear();
    check_refused(s, "states", "one after 20");
  }
  SECTION("a state of another size") {
    s.states[0].state.bytes = 128;
    check_refused(s, "state's bytes", "64");
  }
  SECTION("a state without bytes") {
    s.states[1].state = {};
    check_refused(s, "state's bytes", "64");
  }
  SECTION("a state beyond the text") {
    s.states[1].n_tokens = 21;
    check_refused(s, "state's length", "ascending lengths from 1 to 20");
  }
  SECTION("states in another order") {
    std::swap(s.states[0], s.states[1]);
    check_refused(s, "state's length", "ascending lengths from 1 to 20");
  }
  SECTION("two states in one place") {
    s.states[1].state.offset = s.states[0].state.offset;
    check_refused(s, "index", "runs that do not overlap");
  }
  SECTION("logits of another size") {
    s.states[1].logits.bytes = 28;
    check_refused(s, "bytes of the logits after a state", "32");
  }
  SECTION("another kind") {
    s.states[0].kind = 3;
    check_refused(s, "state's kind", "0 to 2");
  }
  SECTION("too many") {
    s.states.assign(65, s.states[0]);
    check_refused(s, "states", "at most 64");
  }
  SECTION("a shape of an odd size") {
    s.header.shapes[1].state_bytes = 65;
    check_refused(s, "shape's state", "a multiple of 64");
  }
  SECTION("a state in a version that has none") {
    s.header.version = 3;
    check_refused(s, "shape's state", "0");
  }
}

TEST_CASE("a damaged save counts only if it is the newest", "[kv][session_file]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  CraftedSession s;
  s.write(path);
  CHECK(!SessionFile::open(path)->content().newest_damaged);
  std::string bytes = read_file(path);
  bytes[2 * disk::kPage + 8] = 1;  // a byte of the other save's page
  write_file(path, bytes);
  CHECK(!SessionFile::open(path)->content().newest_damaged);
  write_file(path, bytes + std::string(disk::kPage, 'x'));  // bytes left by a later save
  CHECK(SessionFile::open(path)->content().newest_damaged);
  // A page of zeros is that of a file with one save.
  CraftedSession first;
  first.write(path);
  bytes = read_file(path);
  bytes.replace(2 * disk::kPage, disk::kPage, disk::kPage, '\0');
  write_file(path, bytes + std::string(disk::kPage, 'x'));
  CHECK(!SessionFile::open(path)->content().newest_damaged);
}

TEST_CASE("a session's index has the bytes of its extents", "[kv][session_file]") {
  CraftedSession s;
  s.index_hole = 8;
  check_refused(s, "index", "those of 1 token extents and 1 KV extents");
}
