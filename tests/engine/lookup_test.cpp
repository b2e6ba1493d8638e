// Tokens computed ahead (lookup) change no bit of what an answer is made of.
#include "engine/lookup.h"

#include "tests/engine/lookups.h"
#include "tests/rounds.h"
#include "tests/select/selectors_here.h"

using namespace riffle;
using namespace riffle::test;

namespace {

ContextOptions with(SelectorKind selector, int lookup, int64_t slots = 0) {
  ContextOptions o = options();
  o.n_ctx = 1024;
  o.n_threads = usual_threads();
  o.selection.selector = selector;
  o.selection.microbatch = 4;
  o.selection.budget = 0.3f;
  o.selection.share = 0.02f;
  o.lookup = lookup;
  if (slots) o.device = DeviceKind::EMU, o.slots = slots;
  return o;
}

std::vector<int32_t> proposed(const std::vector<int32_t>& held, int32_t next, int64_t most) {
  riffle::Lookup lookup;
  std::vector<int32_t> out;
  lookup.propose(held, next, most, out);
  return out;
}

using Tokens = std::vector<int32_t>;

}  // namespace

TEST_CASE("a lookup proposes what followed the last tokens before", "[lookup]") {
  // The number of proposed tokens is at most the number of earlier tokens that match.
  CHECK(proposed({1, 2, 3, 4, 5, 6, 9, 2}, 3, 8) == Tokens{4, 5});
  CHECK(proposed({1, 2, 3, 4, 5, 6, 9, 1, 2}, 3, 8) == Tokens{4, 5, 6});
  CHECK(proposed({1, 2, 3, 4, 5, 6, 9, 1, 2}, 3, 2) == Tokens{4, 5});
  // The longest run wins over a later, shorter one; of equal ones the latest.
  CHECK(proposed({1, 2, 3, 7, 8, 2, 3, 5, 1, 2}, 3, 1) == Tokens{7});
  CHECK(proposed({2, 3, 7, 8, 2, 3, 5, 9, 2}, 3, 1) == Tokens{5});
  // A repetition goes on beyond what is held.
  CHECK(proposed({7, 8, 7, 8, 7}, 8, 5) == Tokens{7, 8, 7, 8});
  CHECK(proposed({5, 5, 5, 5, 5, 5}, 5, 4) == Tokens{5, 5, 5, 5});
  CHECK(proposed({1, 2, 3, 4}, 5, 8).empty());
  CHECK(proposed({1, 2, 3, 4}, 2, 8).empty());  // one token alone says nothing
  CHECK(proposed({1}, 1, 8).empty());
  CHECK(proposed({}, 1, 8).empty());
  CHECK(proposed({1, 2, 3, 1}, 2, 0).empty());
}

TEST_CASE("a lookup that grows with its text finds what a new one finds", "[lookup]") {
  uint64_t state = 3;
  riffle::Lookup grown;
  Tokens held, got;
  size_t found = 0;
  for (int i = 0; i < 3000; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto next = static_cast<int32_t>(state >> 61);
    got.clear();
    grown.propose(held, next, 5, got);
    if (i % 50 == 0 && i < 500) CHECK(got == proposed(held, next, 5));  // the same size of table
    found += !got.empty();
    held.push_back(next);
  }
  CHECK(found > 1000);
}

TEST_CASE("answers are the same bits with tokens computed ahead", "[lookup][arithmetic][long]") {
  OneIn one(3);
  const auto selectors = here({SelectorKind::DENSE, SelectorKind::PSA, SelectorKind::TOPK,
                               SelectorKind::TWILIGHT, SelectorKind::SHARE});
  int variant = 0;
  for (const SelectorKind selector : selectors)
    for (const int64_t slots : {0, 16 + 9, 400}) {
      if (one.skips()) continue;
      if (!all_rounds() && slots == 400 && selector != SelectorKind::SHARE) continue;
      const int block = 16 << variant++ % 3;
      INFO("selector " << selector << ", " << slots << " slots, blocks of " << block);
      ContextOptions off = with(selector, 0, slots), on = with(selector, 7, slots);
      off.block_size = on.block_size = block;
      on.n_threads = 3;
      Runtime a(off), b(on);
      for (const float temperature : {0.f, 0.8f})
        for (const bool quotes : {true, false}) {
          const auto prompt = quotes ? quoting_prompt(31) : some_tokens(150, 32);
          const auto g = answer_of(60, temperature, 5);
          CHECK(same_answer(answer(b, prompt, g), answer(a, prompt, g)));
        }
      const Stats sa = a.stats(), sb = b.stats();
      CHECK(sa.decode_tokens == sb.decode_tokens);
      CHECK(sa.lookup_proposed == 0);
      CHECK(sb.lookup_accepted > 5);  // else nothing was tested
      CHECK(sb.lookup_accepted < sb.lookup_proposed);
      CHECK(sb.decode_steps == sb.decode_tokens - sb.lookup_accepted);
    }
}

TEST_CASE("an answer ends where it ends without tokens computed ahead", "[lookup]") {
  Runtime a(with(SelectorKind::SHARE, 0)), b(with(SelectorKind::SHARE, 9));
  const auto prompt = quoting_prompt(51);
  const Answered whole = answer(a, prompt, answer_of(40));
  for (int n = 0; n < 40; n += all_rounds() ? 1 : 8) {
    INFO("after " << n);
    CHECK(same_answer(answer(b, prompt, answer_of(n)), answer(a, prompt, answer_of(n))));
    for (const bool abort : {false, true})
      CHECK(same_answer(answer(b, prompt, answer_of(40), n, abort),
                        answer(a, prompt, answer_of(40), n, abort)));
  }
  for (const size_t at : {size_t(3), whole.text.size() / 2, whole.text.size() - 9}) {
    const std::string stop = whole.text.substr(at, 6);
    INFO("stop at " << at);
    GenerateOptions g = answer_of(40);
    g.stop = {stop};
    const Answered got = answer(b, prompt, g);
    CHECK(got.result.finish == RIFFLE_FINISH_STOP);
    CHECK(same_answer(got, answer(a, prompt, g)));
  }
  CHECK(b.stats().lookup_accepted > 5);
}

TEST_CASE("a grammar's answers are the same with tokens computed ahead",
          "[lookup][grammar][arithmetic]") {
  for (const int64_t slots : {0, 96}) {
    Runtime a(with(SelectorKind::DENSE, 0, slots)), b(with(SelectorKind::DENSE, 9, slots));
    const TestGrammar of_a(a, kNames), of_b(b, kNames);
    std::vector<riffle_session*> sessions;
    std::vector<GenerateOptions> options;
    std::vector<Answered> alone;
    for (uint32_t i = 0; i < 3; ++i) {
      const auto prompt = quoting_prompt(61 + i);
      alone.push_back(answer(a, prompt, names(of_a, i)));
      CHECK(alone[i].result.finish == RIFFLE_FINISH_STOP);
      CHECK(alone[i].text.ends_with("end"));
      // The last token is not in the session.
      CHECK(alone[i].length == prompt.size() + alone[i].tokens.size() - 1);
      CHECK(same_answer(answer(b, prompt, names(of_b, i)), alone[i]));
      sessions.push_back(b.session(prompt));
      options.push_back(i == 1 ? answer_of(30) : names(of_b, i));
    }
    const auto together = answers(b, sessions, options);
    CHECK(same_answer(together[0], alone[0]));
    CHECK(same_answer(together[2], alone[2]));
    CHECK(b.stats().lookup_accepted > 5);
  }
}

TEST_CASE("a grammar that becomes too ambiguous is an error of its answer", "[lookup][grammar]") {
  // Behind the first words, a letter can be read in 5,000 ways.
  std::string gbnf = "root ::= \"Say, who is it that stands behind the old green door? \" (r0";
  for (int i = 1; i < 5000; ++i) gbnf += " | r" + std::to_string(i);
  gbnf += ")\n";
  for (int i = 0; i < 5000; ++i) {
    const std::string n = std::to_string(i);
    gbnf += "r" + n + " ::= [a-z] \"" + n + "\"\n";
  }
  size_t length[2];
  for (const int lookup : {0, 9}) {
    Runtime r(with(SelectorKind::DENSE, lookup));
    const TestGrammar g(r, gbnf);
    riffle_session* s = r.session(quoting_prompt(71));
    GenerateOptions o = names(g, 1);
    riffle_result result{};
    CHECK(generate(s, &o, nullptr, nullptr, &result) == RIFFLE_UNSUPPORTED);
    const std::string error = riffle_context_error(r.context);
    INFO(error);
    CHECK(error.find("too ambiguous") != std::string::npos);
    length[lookup > 0] = riffle_session_length(s);
    o = answer_of(4);
    CHECK(generate(s, &o, nullptr, nullptr, nullptr) == RIFFLE_OK);
  }
  CHECK(length[0] == length[1]);
  CHECK(length[0] > quoting_prompt(71).size());
}

TEST_CASE("an end token among tokens computed ahead ends the answer", "[lookup]") {
  Runtime a(with(SelectorKind::DENSE, 0)), b(with(SelectorKind::DENSE, 15));
  // The second answer repeats the first one, which stands in the prompt with its end token.
  const char* question =
      "The pass key is 48213. Remember it. The grass is green. What is the pass key?";
  const riffle_message messages[] = {{"user", question, nullptr},
                                     {"assistant", "The pass key is 48213.", nullptr},
                                     {"user", question, nullptr}};
  std::vector<int32_t> prompt(512);
  size_t n = 0;
  REQUIRE(riffle_chat_prompt(a.model, messages, 3, nullptr, prompt.data(), prompt.size(), &n,
                             nullptr) == RIFFLE_OK);
  prompt.resize(n);
  GenerateOptions g = answer_of(40);
  g.ignore_eos = false;
  const Answered want = answer(a, prompt, g);
  CHECK(want.result.finish == RIFFLE_FINISH_STOP);
  CHECK(want.result.n_tokens > 1);
  CHECK(same_answer(answer(b, prompt, g), want));
  CHECK(b.stats().lookup_accepted > 0);
  // The draw of the end token came from a token computed ahead.
  CHECK(b.stats().decode_steps < want.tokens.size());
}

TEST_CASE("tokens computed ahead do not go beyond the context", "[lookup]") {
  const auto prompt = quoting_prompt(71);
  for (int room = 0; room < 40; room += all_rounds() ? 1 : 7) {
    ContextOptions off = with(psa_or_share(), 0), on = with(psa_or_share(), 15);
    off.n_ctx = on.n_ctx = static_cast<int32_t>(prompt.size()) + room;
    Runtime a(off), b(on);
    const Answered want = answer(a, prompt, answer_of(-1));
    CHECK(want.result.finish == RIFFLE_FINISH_CONTEXT);
    CHECK(same_answer(answer(b, prompt, answer_of(-1)), want));
  }
}

TEST_CASE("sessions that compute ahead together give what each gives alone",
          "[lookup][arithmetic]") {
  const std::vector<std::vector<int32_t>> prompts = {quoting_prompt(81), some_tokens(200, 82),
                                                     quoting_prompt(83, 30), quoting_prompt(84)};
  const std::vector<GenerateOptions> asked = {answer_of(50), answer_of(30, 0.8f, 3),
                                              answer_of(45, 1.1f, 4), answer_of(40)};
  for (const SelectorKind selector : {SelectorKind::DENSE, SelectorKind::SHARE}) {
    Runtime a(with(selector, 0));
    std::vector<Answered> want;
    for (size_t i = 0; i < prompts.size(); ++i) want.push_back(answer(a, prompts[i], asked[i]));
    for (const int64_t slots : {0, 16 * 2 + 9, 16 * 12})
      for (const int lookup : {3, 15}) {
        INFO("selector " << selector << ", " << slots << " slots, lookup " << lookup);
        Runtime b(with(selector, lookup, slots));
        std::vector<riffle_session*> sessions;
        for (const auto& prompt : prompts) {
          sessions.push_back(b.session());
          b.check(riffle_prefill(sessions.back(), prompt.data(), prompt.size(), nullptr, nullptr));
        }
        const auto got = answers(b, sessions, asked);
        for (size_t i = 0; i < prompts.size(); ++i) CHECK(same_answer(got[i], want[i]));
        CHECK(b.stats().lookup_accepted > 3);
      }
  }
}

TEST_CASE("a conversation goes on after tokens were computed ahead", "[lookup][arithmetic]") {
  uint64_t accepted = 0;
  for (const uint32_t seed : {91, 92, 93}) {
    Runtime a(with(SelectorKind::SHARE, 0)), b(with(SelectorKind::SHARE, 9));
    Answered got[2][3];
    Runtime* runtimes[] = {&a, &b};
    for (int i = 0; i < 2; ++i) {
      Runtime& r = *runtimes[i];
      riffle_session* s = r.session();
      auto text = quoting_prompt(seed);
      for (int turn = 0; turn < 3; ++turn) {
        r.check(riffle_prefill_to(s, text.data(), text.size(), nullptr, nullptr));
        got[i][turn] = answers(r, {s}, {answer_of(37 + turn, turn == 1 ? 0.7f : 0, 7)})[0];
        const auto& tokens = got[i][turn].tokens;
        text.insert(text.end(), tokens.begin(), tokens.end());
        // The answer is cut back, or goes on: both from logits of a session that computed ahead.
        if (turn == 1) text.resize(text.size() - 9);
        else text.insert(text.end(), {700, 701, 702});
      }
    }
    for (int turn = 0; turn < 3; ++turn) CHECK(same_answer(got[1][turn], got[0][turn]));
    accepted += b.stats().lookup_accepted;
  }
  // Answers depend on the instruction set, and the tokens of one conversation may all be rejected.
  CHECK(accepted > 3);
}

TEST_CASE("lookup is refused where it cannot work", "[lookup]") {
  riffle_model* model = nullptr;
  REQUIRE(riffle_model_load(shipped_model(), nullptr, &model, nullptr, 0) == RIFFLE_OK);
  const auto refused = [&](const ContextOptions& o, riffle_status status, const std::string& said) {
    riffle_context* context = nullptr;
    char err[512] = "";
    CHECK(context_create(model, &o, &context, err, sizeof err) == status);
    INFO(err);
    CHECK(std::string(err).find(said) != std::string::npos);
    riffle_context_free(context);
  };
  refused(with(SelectorKind::SHARE, 16), RIFFLE_BAD_ARGUMENT, "lookup is 16, expected 0 to 15");
  refused(with(SelectorKind::SHARE, -1), RIFFLE_BAD_ARGUMENT, "lookup is -1");
  riffle_model_free(model);
}
