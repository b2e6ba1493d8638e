// Keys that are turned for a list of tokens (positions list) and the tables of lfps, in whole runs:
// what they change for forks, files and prompts, and what cannot be done with them.
#include "tests/engine/host_kv.h"
#include "tests/engine/session_files.h"
#include "tests/engine/uneven_model.h"

using namespace riffle;
using namespace riffle::test;

namespace {

Selection list_selection() {
  Selection list = small(SelectorKind::TOKENSELECT).selection;
  list.positions = PositionRule::LIST;
  return list;
}

}  // namespace

TEST_CASE("sessions under lfps and with list positions cannot be forked", "[fork]") {
  Runtime r(small(SelectorKind::PSA));
  const auto prompt = some_tokens(100, 1);
  riffle_session *s = r.session(prompt), *none = s;
  const Selection lfps = small(SelectorKind::LFPS).selection, list = list_selection();
  for (const Selection& selection : {lfps, list}) {
    r.check(set_selection(r.context, &selection));
    CHECK(riffle_session_fork(s, 50, &none) == RIFFLE_UNSUPPORTED);
    CHECK(none == nullptr);
  }
  // Keys turned for a list stay so until the session's next step.
  r.check(riffle_step(r.context, &s, &prompt[1], 1));
  const Selection psa = small(SelectorKind::PSA).selection;
  r.check(set_selection(r.context, &psa));
  CHECK(riffle_session_fork(s, 50, &none) == RIFFLE_UNSUPPORTED);
  r.check(riffle_step(r.context, &s, &prompt[2], 1));
  riffle_session* fine = fork_at(r, s, 50);
  CHECK(riffle_session_length(fine) == 50);
  CHECK(riffle_step(r.context, &fine, &prompt[3], 1) == RIFFLE_OK);
}

TEST_CASE("keys that are turned in a fork are its own from then on", "[fork]") {
  for (const int64_t slots : {0, 90}) {
    ContextOptions o = small(SelectorKind::PSA, slots ? DeviceKind::EMU : DeviceKind::CPU);
    o.slots = slots;
    const Selection list = list_selection();
    const auto prompt = some_tokens(150, 1);
    Runtime r(o), alone(o);
    riffle_session *donor = r.session(), *a = alone.session(), *b = alone.session();
    r.check(riffle_prefill(donor, prompt.data(), prompt.size(), nullptr, nullptr));
    alone.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
    alone.check(riffle_prefill(b, prompt.data(), 120, nullptr, nullptr));
    riffle_session* child = fork_at(r, donor, 120);
    CHECK(host_kv_bytes(r) == (10 + 1) * 16 * 4096);
    const auto both = [&](Runtime& at, riffle_session* x, int32_t t) {
      at.check(riffle_step(at.context, &x, &t, 1));
      return at.logits(x);
    };
    CHECK(both(r, donor, 400) == both(alone, a, 400));
    r.check(set_selection(r.context, &list));
    alone.check(set_selection(alone.context, &list));
    CHECK(both(r, child, 500) == both(alone, b, 500));
    CHECK(host_kv_bytes(r) == (10 + 8) * 16 * 4096);
    r.check(set_selection(r.context, &o.selection));
    alone.check(set_selection(alone.context, &o.selection));
    CHECK(both(r, donor, 600) == both(alone, a, 600));
  }
}

TEST_CASE("lookup is refused with list positions and lfps", "[lookup]") {
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  const auto refused = [&](SelectorKind selector, const char* said) {
    ContextOptions o = small(selector);
    o.lookup = 4;
    riffle_context* context = nullptr;
    char err[512] = "";
    CHECK(context_create(model, &o, &context, err, sizeof err) == RIFFLE_UNSUPPORTED);
    CHECK_THAT(err, Catch::Contains(said));
    riffle_context_free(context);
  };
  refused(SelectorKind::TOKENSELECT, "lookup is 4");
  refused(SelectorKind::LFPS, "lfps");
  riffle_model_free(model);
  ContextOptions o = small(SelectorKind::SHARE);
  o.lookup = 4;
  Runtime r(o);
  Selection s = small(SelectorKind::LFPS).selection;
  CHECK(set_selection(r.context, &s) == RIFFLE_UNSUPPORTED);
  s.selector = SelectorKind::PSA;
  CHECK(set_selection(r.context, &s) == RIFFLE_OK);
}

TEST_CASE("window: positions in a list are refused", "[window]") {
  const TempDir temp;
  const std::string path = mistral(temp, 64);
  ContextOptions o = sparse(SelectorKind::TOKENSELECT);
  Runtime r(o, path);
  o.selection.positions = PositionRule::LIST;
  riffle_context* c = nullptr;
  char err[512];
  REQUIRE(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK_THAT(err, Catch::Contains("positions list") && Catch::Contains("sliding window"));
  REQUIRE(set_selection(r.context, &o.selection) == RIFFLE_UNSUPPORTED);
  CHECK_THAT(riffle_context_error(r.context), Catch::Contains("sliding window"));
  // ... and what was in force stays so.
  Runtime quiet(sparse(SelectorKind::TOKENSELECT), path);
  CHECK(same_bits(run(r, r.session(), ids(0, 100), ids(100, 104)),
                  run(quiet, quiet.session(), ids(0, 100), ids(100, 104))));
  // A window in the second layer alone is one too.
  const std::string second = qwen(temp, 50);
  Runtime mixed(sparse(SelectorKind::TOKENSELECT), second);
  REQUIRE(set_selection(mixed.context, &o.selection) == RIFFLE_UNSUPPORTED);
  CHECK_THAT(riffle_context_error(mixed.context), Catch::Contains("50 tokens in layer 1"));
  o.n_ctx = 64;
  REQUIRE(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_OK);
  riffle_context_free(c);
}

TEST_CASE("uneven layers: positions in a list are refused", "[uneven]") {
  ContextOptions o = sparse(SelectorKind::TOKENSELECT);
  Runtime r(o, uneven_model);
  o.selection.positions = PositionRule::LIST;
  riffle_context* c = nullptr;
  char err[512];
  CHECK(context_create(r.model, &o, &c, err, sizeof err) == RIFFLE_UNSUPPORTED);
  CHECK_THAT(err, Catch::Contains("positions list") && Catch::Contains("sliding window"));
  REQUIRE(set_selection(r.context, &o.selection) == RIFFLE_UNSUPPORTED);
}

TEST_CASE("saved sessions: list positions", "[session_file][model]") {
  const TempDir temp;
  const std::string path = temp / "a.kv";
  const auto prompt = some_tokens(300, 1), more = some_tokens(12, 2);
  Runtime a(small(SelectorKind::SHARE)), b(small(SelectorKind::SHARE));
  riffle_session* s = a.session(prompt);
  const Selection list = list_selection();
  for (Runtime* r : {&a, &b}) r->check(set_selection(r->context, &list));
  for (const int32_t t : more) a.check(riffle_step(a.context, &s, &t, 1));
  save(a, s, path);
  CHECK(test::SessionFile(path).number("list_positions") == 1);
  go_on_alike(a, s, b, load(b, path), more);
}

TEST_CASE("a prompt whose end teaches the selector, and one with list positions, is one piece",
          "[prefill]") {
  const auto tokens = some_tokens(3500, 3);
  ContextOptions o = options();
  o.n_ctx = 8192;
  o.selection.selector = GENERATE(SelectorKind::LFPS, SelectorKind::TOKENSELECT);
  if (o.selection.selector == SelectorKind::TOKENSELECT) o.selection.positions = PositionRule::LIST;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto stop = [](void*, const riffle_progress* p) { return p->done < 0.9 * p->total; };
  CHECK(riffle_prefill_to(s, tokens.data(), tokens.size(), stop, nullptr) == RIFFLE_ABORTED);
  CHECK(riffle_session_length(s) == 0);
  r.check(riffle_prefill_to(s, tokens.data(), tokens.size(), nullptr, nullptr));
  CHECK(r.logits(s) == r.logits(r.session(tokens)));
}

TEST_CASE("lfps keeps what a follow-up prompt found until the second step after it",
          "[engine][model]") {
  ContextOptions o = options();
  o.n_ctx = 3088;
  o.selection.selector = SelectorKind::LFPS;
  Runtime r(o);
  riffle_session* s = r.session();
  const auto bytes = [&] {
    Stats stats{};
    REQUIRE(session_get_stats(s, &stats) == RIFFLE_OK);
    return stats.index_bytes;
  };
  const auto tokens = some_tokens(2060, 3);
  const uint64_t tables = uint64_t(8) * 2 * 2000 * 2 * 4;
  r.check(riffle_prefill(s, tokens.data(), 2000, nullptr, nullptr));
  const auto step = [&] { r.check(riffle_step(r.context, &s, &tokens[1], 1)); };
  step(), step();
  const uint64_t before = bytes();
  r.check(riffle_prefill(s, tokens.data() + 2000, 20, nullptr, nullptr));
  CHECK(bytes() >= before + tables);
  step();
  CHECK(bytes() >= before + tables);
  step();
  CHECK(bytes() < before + tables / 2);
  // Steps of another selector are as sure to stay, once a block is full.
  r.check(riffle_prefill(s, tokens.data() + 2020, 20, nullptr, nullptr));
  CHECK(bytes() >= before + tables);
  o.selection.selector = SelectorKind::DENSE;
  r.check(set_selection(r.context, &o.selection));
  for (int i = 0; i < o.block_size; ++i) step();
  CHECK(bytes() < before + tables / 2);
}
