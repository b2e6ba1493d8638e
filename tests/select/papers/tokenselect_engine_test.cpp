// TokenSelect through the engine, on the shipped model: it equals dense if all is read, gives the
// same bits on any device, and sessions change between the two kinds of positions.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <stdexcept>

#include "riffle_measure.h"
#include "tests/engine/window_model.h"
#include "tests/model/made_model.h"
#include "tests/rounds.h"
#include "tests/select/papers/tokenselect_settings.h"

using namespace riffle;
using namespace riffle::test;
using test::tokenselect_settings;

namespace {

using test::Runtime;

double difference(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      worst = std::max(worst, std::abs(double(a[i][j]) - b[i][j]));
  return worst;
}

std::vector<std::vector<float>> run_with(ContextOptions o, const Selection& s,
                                         int n_threads = usual_threads()) {
  o.selection = s;
  o.n_threads = n_threads;
  Runtime r(o);
  return test::run(r, r.session(), test::some_tokens(700, 4), test::some_tokens(12, 8));
}

}  // namespace

TEST_CASE("tokenselect with a list that holds everything is dense",
          "[tokenselect][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  Selection dense;
  dense.selector = SelectorKind::DENSE;
  const auto want = run_with(o, dense);
  Selection s = tokenselect_settings(400, 100, 300);
  CHECK(test::same_bits(want, run_with(o, s)));
  // Keys are rounded before they are rotated, not after. Slightly different values may then be
  // rounded to other 8-bit integers in the products of prompts (with f16 KV).
  s.positions = PositionRule::LIST;
  CHECK(difference(want, run_with(o, s)) <= 0.3);
  o.kv_type = KvKind::F32;
  CHECK(difference(run_with(o, dense), run_with(o, s)) <= 1e-3);
}

TEST_CASE("tokenselect: threads and a pool change no bit", "[tokenselect][model][arithmetic]") {
  for (const PositionRule positions : {PositionRule::TEXT, PositionRule::LIST}) {
    Selection s = tokenselect_settings(100, 20, 64);
    s.positions = positions;
    ContextOptions o = test::options();
    o.n_ctx = 1024;
    const auto want = run_with(o, s, 1);
    CHECK(test::same_bits(want, run_with(o, s, 3)));
    o.device = DeviceKind::EMU;
    o.slots = 40;
    CHECK(test::same_bits(want, run_with(o, s)));
    o.device = DeviceKind::CPU;
    o.slots = 0;
    o.prefill_chunk =
        positions == PositionRule::TEXT ? 100 : 500;  // LIST: the window cuts chunks to 64 anyway
    CHECK(test::same_bits(want, run_with(o, s)));
  }
}

TEST_CASE("list positions: sessions that step together, dense layers and coverage",
          "[tokenselect][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection = tokenselect_settings(100, 20, 64);
  o.selection.positions = PositionRule::LIST;
  o.selection.dense_layers = 1;
  Runtime r(o);
  std::vector<riffle_session*> together{r.session(), r.session()}, alone{r.session(), r.session()};
  for (int i = 0; i < 2; ++i) {
    const auto prompt = test::some_tokens(600 + 57 * i, 4 + i);
    for (riffle_session* s : {together[i], alone[i]})
      r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  }
  for (const auto t : test::some_tokens(10, 8)) {
    const int32_t tokens[2] = {t, t + 1};
    r.check(riffle_step(r.context, together.data(), tokens, 2));
    for (int i = 0; i < 2; ++i) {
      r.check(riffle_step(r.context, &alone[i], &tokens[i], 1));
      CHECK(r.logits(together[i]) == r.logits(alone[i]));
    }
  }

  struct Seen {
    double least[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    bool wrong = false;
  } seen;
  const auto on_report = [](void* user, const riffle_row_report* t) {
    Seen& s = *static_cast<Seen*>(user);
    for (int i = 0; i < t->n_group; ++i) {
      s.wrong |= !(t->coverage[i] >= 0 && t->coverage[i] <= 1);
      s.least[t->layer] = std::min(s.least[t->layer], double(t->coverage[i]));
    }
    s.wrong |= t->layer > 0 && t->n_tokens_read != 184;
  };
  r.check(riffle_set_row_report(r.context, on_report, &seen, true));
  const int32_t t = 500;
  o.selection.cache_threshold = 2;
  r.check(set_selection(r.context, &o.selection));
  r.check(riffle_step(r.context, &alone[0], &t, 1));
  r.check(riffle_set_row_report(r.context, nullptr, nullptr, false));
  CHECK(!seen.wrong);
  CHECK(seen.least[0] >= 0.999);  // everything is read there
  for (int layer = 1; layer < 8; ++layer) CHECK(seen.least[layer] < 0.999);

  Selection dense = o.selection;
  dense.selector = SelectorKind::DENSE;
  o.selection.dense_layers = 8;
  o.kv_type = KvKind::F32;
  CHECK(difference(run_with(o, dense), run_with(o, o.selection)) <= 1e-3);
}

TEST_CASE("a scored prompt at list positions ends in the same logits",
          "[tokenselect][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection = tokenselect_settings(100, 20, 64);
  o.selection.positions = PositionRule::LIST;
  Runtime r(o);
  riffle_session *a = r.session(), *b = r.session();
  const auto prompt = test::some_tokens(700, 4);
  std::vector<riffle_score> scores(prompt.size());
  r.check(riffle_prefill(a, prompt.data(), prompt.size(), nullptr, nullptr));
  r.check(riffle_prefill_scored(b, prompt.data(), prompt.size(), scores.data(), nullptr, nullptr));
  CHECK(r.logits(a) == r.logits(b));
}

TEST_CASE("a session follows the selection from one convention to the other",
          "[tokenselect][model][arithmetic]") {
  std::vector<std::vector<float>> exact;  // logits with f32 KV, without list positions
  for (const auto& [device, kv] :
       {std::pair(DeviceKind::CPU, KvKind::F32), std::pair(DeviceKind::EMU, KvKind::F32),
        std::pair(DeviceKind::CPU, KvKind::F16)}) {
    ContextOptions o = test::options();
    o.n_ctx = 1024;
    o.device = device;
    o.kv_type = kv;
    if (device == DeviceKind::EMU) o.slots = 40;
    Selection dense = o.selection, list = tokenselect_settings(400, 100, 300), psa = o.selection;
    dense.selector = SelectorKind::DENSE;
    psa.epsilon = 1;
    list.positions = PositionRule::LIST;
    o.selection = dense;
    Runtime r(o), plain(o);
    riffle_session *s = r.session(), *t = plain.session();
    const auto prompt = test::some_tokens(500, 6), tail = test::some_tokens(150, 9);
    std::vector<std::vector<float>> have, want;
    const auto both = [&](const Selection& selection, const std::vector<int32_t>& tokens,
                          bool steps) {
      r.check(set_selection(r.context, &selection));
      for (size_t i = 0; i < (steps ? tokens.size() : 1); ++i) {
        if (steps) {
          r.check(riffle_step(r.context, &s, &tokens[i], 1));
          plain.check(riffle_step(plain.context, &t, &tokens[i], 1));
        } else {
          r.check(riffle_prefill(s, tokens.data(), tokens.size(), nullptr, nullptr));
          plain.check(riffle_prefill(t, tokens.data(), tokens.size(), nullptr, nullptr));
        }
        have.push_back(r.logits(s));
        want.push_back(plain.logits(t));
      }
    };
    both(dense, prompt, false);
    both(list, test::some_tokens(20, 3), true);
    both(psa, test::some_tokens(20, 5), true);
    both(list, tail, false);
    both(list, test::some_tokens(5, 2), true);
    r.check(riffle_session_truncate(s, 600));
    plain.check(riffle_session_truncate(t, 600));
    both(dense, test::some_tokens(30, 1), false);
    both(dense, test::some_tokens(5, 1), true);
    // Some hundreds of keys are rotated up to five times. With f16 KV each rotation rounds them,
    // and some instruction sets multiply prompts in 8 bits. So the bound for f16 is three times the
    // error that f16 KV has without list positions.
    if (kv == KvKind::F32) {
      CHECK(difference(have, want) <= 2e-2);
      exact = want;
    } else {
      CHECK(difference(have, want) <= 3 * difference(want, exact) + 2e-2);
    }
  }
}

TEST_CASE("8-bit keys keep their bias when a session changes to list positions and back",
          "[tokenselect][q8][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.kv_type = KvKind::Q8;
  Selection dense = o.selection, list = tokenselect_settings(400, 100, 300);
  dense.selector = SelectorKind::DENSE;
  list.positions = PositionRule::LIST;
  o.selection = dense;
  std::unique_ptr<Model> (*const biased)() = [] { return test::biased_model(60); };
  ContextOptions f32 = o;
  f32.kv_type = KvKind::F32;
  Runtime r(o, biased), plain(o, biased), exact(f32, biased);
  auto prompt = test::some_tokens(500, 6), tail = test::some_tokens(20, 9);
  for (auto* tokens : {&prompt, &tail})
    for (int32_t& token : *tokens) token %= 1024;  // the made-up model's vocabulary
  std::vector<std::vector<float>> have, want, bound;
  riffle_session *s = r.session(prompt), *t = plain.session(prompt), *u = exact.session(prompt);
  for (const Selection& selection : {list, dense}) {
    r.check(set_selection(r.context, &selection));
    for (const int32_t token : tail) {
      r.check(riffle_step(r.context, &s, &token, 1));
      plain.check(riffle_step(plain.context, &t, &token, 1));
      exact.check(riffle_step(exact.context, &u, &token, 1));
      have.push_back(r.logits(s));
      want.push_back(plain.logits(t));
      bound.push_back(exact.logits(u));
    }
  }
  // A bias that is lost or counted twice changes every logit. Some error is expected: keys stored
  // before RoPE include the whole bias, so their 8-bit steps are coarser, and each change of
  // positions rounds them again.
  INFO(difference(have, want) << " after list positions, q8 alone " << difference(want, bound));
  CHECK(difference(have, want) <= 15 * difference(want, bound));
}

TEST_CASE("tokenselect counts selections and cached ones", "[tokenselect][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  o.selection = tokenselect_settings(100, 20, 64);
  for (const float threshold : {2.0f, -1.0f}) {
    o.selection.cache_threshold = threshold;
    Runtime r(o);
    riffle_session* s = r.session();
    test::run(r, s, test::some_tokens(700, 4), test::some_tokens(12, 8));
    Stats stats{};
    REQUIRE(session_get_stats(s, &stats) == RIFFLE_OK);
    CHECK(stats.selections == 12 * 8);
    CHECK(stats.cached_selections == (threshold > 1 ? 0 : 11 * 8));
    CHECK(stats.kv_tokens_read ==
          (threshold > 1 ? uint64_t(184) * 12 * 16 : (uint64_t(184) * 12 + 66) * 16));
    CHECK(stats.kv_bytes_read == stats.kv_tokens_read * 2 * 128);
  }
}

static void fail_in_layer_3(void*, const riffle_row_report* report) {
  if (report->layer == 3) throw std::runtime_error("made to fail");
}

TEST_CASE(
    "tokenselect: a step that fails and is made again uses earlier selections as if it had not "
    "failed",
    "[tokenselect][model][arithmetic]") {
  const std::vector<int32_t> prompt = test::some_tokens(700, 4), steps = test::some_tokens(12, 8);
  ContextOptions o = test::options();
  o.n_ctx = 1024;
  for (const float threshold : {-1.0f, 0.8f}) {
    INFO("threshold " << threshold);
    o.selection = tokenselect_settings(20, 4, 16);
    o.selection.cache_threshold = threshold;
    Runtime straight(o), broken(o);
    const auto want = test::run(straight, straight.session(), prompt, steps);
    riffle_session* s = broken.session(prompt);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i % 3 == 2) {
        broken.check(riffle_set_row_report(broken.context, fail_in_layer_3, nullptr, false));
        CHECK(riffle_step(broken.context, &s, &steps[i], 1) == RIFFLE_INTERNAL);
        broken.check(riffle_set_row_report(broken.context, nullptr, nullptr, false));
      }
      broken.check(riffle_step(broken.context, &s, &steps[i], 1));
      CHECK(test::same_bits({broken.logits(s)}, {want[i + 1]}));
    }
    if (threshold < 0) {  // after a cut to the prompt there is no selection
      broken.check(riffle_session_truncate(s, prompt.size()));
      broken.check(riffle_step(broken.context, &s, &steps[0], 1));
      CHECK(test::same_bits({broken.logits(s)}, {want[1]}));
    }
  }
}

TEST_CASE("a context beyond the trained length says so, but for list positions",
          "[tokenselect][model][arithmetic]") {
  ContextOptions o = test::options();
  o.n_ctx = 40000;  // trained with 32768
  o.selection = tokenselect_settings(32, 16, 64);
  const auto notice = [&] { return std::string(riffle_context_notice(Runtime(o).context)); };
  CHECK(notice().find("32768") != std::string::npos);
  o.selection.positions = PositionRule::LIST;
  CHECK(notice().empty());
  // A list itself may be too long: 16 + 64 tokens, 64 while it is used again, and the selected
  // tokens.
  o.selection.select_tokens = 32768 - 144;
  CHECK(notice().empty());
  o.selection.select_tokens = 32768 - 143;
  CHECK(notice().find("lists of positions reach 32769 tokens") != std::string::npos);
  o.n_ctx = 32768;  // then no list can be too long
  CHECK(notice().empty());
  o.n_ctx = 40000;
  o.selection = tokenselect_settings(32, 16, 64);
  o.selection.positions = PositionRule::LIST;
  o.selection.dense_layers = 2;  // these take positions from the text
  CHECK(notice().find("first 2 layers") != std::string::npos);
  o.n_ctx = 32768;
  o.selection.dense_layers = 0;
  o.selection.positions = PositionRule::TEXT;
  CHECK(notice().empty());
}

TEST_CASE("the notice is of the selection in force", "[tokenselect][model]") {
  ContextOptions o = test::options();
  o.n_ctx = 40000;
  o.selection = tokenselect_settings(32, 16, 64);
  o.selection.positions = PositionRule::LIST;
  Runtime r(o);
  CHECK(std::string(riffle_context_notice(r.context)).empty());
  o.selection.selector = SelectorKind::DENSE;
  r.check(set_selection(r.context, &o.selection));
  const std::string text = riffle_context_notice(r.context);
  CHECK(text.find("32768") != std::string::npos);
  CHECK(text.find("positions list needs selector tokenselect") != std::string::npos);
}

// The attention factor multiplies the cosines and sines of queries and keys, so a key that is
// stored without its rotation would lack it.
TEST_CASE("list positions are refused where RoPE has an attention factor, at once and later",
          "[tokenselect][model]") {
  const test::TempDir temp;
  test::TinyCheckpoint c = test::tiny_checkpoint("llama_yarn");
  const std::string with = test::tiny_folder(c, temp);
  c.name += "_1";
  c.config["rope_scaling"]["attention_factor"] = 1.0;
  const std::string without = test::tiny_folder(c, temp);
  const auto prompt = test::ids(0, 200), steps = test::ids(200, 206);
  for (const DeviceKind device : {DeviceKind::CPU, DeviceKind::EMU}) {
    ContextOptions o = test::sparse(SelectorKind::TOKENSELECT);
    o.device = device;
    ContextOptions listed = o;
    listed.selection.positions = PositionRule::LIST;
    Runtime quiet(o, with), r(o, with);
    riffle_context* none = nullptr;
    char err[512] = "";
    REQUIRE(context_create(r.model, &listed, &none, err, sizeof err) == RIFFLE_UNSUPPORTED);
    CHECK(none == nullptr);
    CHECK_THAT(err, Catch::Contains("positions list") && Catch::Contains("attention factor") &&
                        Catch::Contains("yarn"));
    // A later refusal leaves the current selection and the session unchanged.
    riffle_session* s = r.session();
    const auto want = test::run(quiet, quiet.session(), prompt, steps);
    r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
    for (size_t i = 0; i < steps.size(); ++i) {
      REQUIRE(set_selection(r.context, &listed.selection) == RIFFLE_UNSUPPORTED);
      CHECK_THAT(riffle_context_error(r.context), Catch::Contains("attention factor"));
      r.check(riffle_step(r.context, &s, &steps[i], 1));
      CHECK(test::same_bits({r.logits(s)}, {want[i + 1]}));
    }
    // The setting is accepted with other selectors: only tokenselect reads it.
    listed.selection.selector = SelectorKind::DENSE;
    r.check(set_selection(r.context, &listed.selection));
    listed.selection.selector = SelectorKind::TOKENSELECT;
    REQUIRE(set_selection(r.context, &listed.selection) == RIFFLE_UNSUPPORTED);
    // A factor of 1 changes nothing, so it is accepted.
    Runtime allowed(o, without);
    allowed.check(set_selection(allowed.context, &listed.selection));
    test::run(allowed, allowed.session(), prompt, steps);
    Runtime created(listed, without);
  }
}
