// Answers with and without tokens computed ahead, and what must be the same.
#pragma once
#include <memory>
#include <string>

#include "grammar/grammar.h"
#include "tests/engine/steps.h"

namespace riffle::test {

// An answer: all that a caller sees of it.
struct Answered {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // from which each token was chosen
  riffle_result result{};
  size_t length = 0;  // length of the session afterwards
};

inline bool same_answer(const Answered& a, const Answered& b) {
  return a.text == b.text && a.tokens == b.tokens && same_bits(a.logits, b.logits) &&
         a.result.finish == b.result.finish && a.result.n_tokens == b.result.n_tokens &&
         a.length == b.length;
}

// A prompt in which a phrase comes several times, the last time cut off.
inline std::vector<int32_t> quoting_prompt(uint32_t seed, int phrase = 60, int times = 4) {
  const auto words = some_tokens(phrase, seed), other = some_tokens(phrase, seed + 1000);
  std::vector<int32_t> out = {1};
  for (int i = 0; i < times; ++i) {
    out.insert(out.end(), words.begin() + 1, words.end());
    if (i + 1 < times) out.insert(out.end(), other.begin() + 1, other.begin() + 4 + 3 * i);
  }
  out.resize(out.size() - phrase / 2);
  return out;
}

inline GenerateOptions answer_of(int max_tokens, float temperature = 0, uint64_t seed = 0) {
  GenerateOptions g;
  g.max_tokens = max_tokens;
  g.sampling.temperature = temperature;
  g.sampling.seed = seed;
  g.ignore_eos = true;
  return g;
}

// The answers of several sessions at once. stop_after: this many tokens end the first answer; < 0:
// none do. abort: by riffle_abort in place of the callback's result.
inline std::vector<Answered> answers(Runtime& r, const std::vector<riffle_session*>& sessions,
                                     const std::vector<GenerateOptions>& options,
                                     int stop_after = -1, bool abort = false) {
  struct Taker {
    Runtime& r;
    const std::vector<riffle_session*>& sessions;
    std::vector<Answered> out;
    int stop_after;
    bool abort;
  } taker{r, sessions, std::vector<Answered>(sessions.size()), stop_after, abort};
  const auto on_token = [](void* user, size_t i, const riffle_token* token) {
    auto* t = static_cast<Taker*>(user);
    Answered& a = t->out[i];
    a.text.append(token->text, token->text_len);
    if (token->id < 0) return true;
    a.tokens.push_back(token->id);
    a.logits.push_back(t->r.logits(t->sessions[i]));
    if (i > 0 || static_cast<int>(a.tokens.size()) != t->stop_after) return true;
    if (t->abort) riffle_abort(t->r.context, true);
    return t->abort;
  };
  std::vector<riffle_result> results(sessions.size());
  r.check(generate_many(r.context, sessions.data(), options.data(), sessions.size(), on_token,
                        &taker, results.data()));
  for (size_t i = 0; i < sessions.size(); ++i) {
    taker.out[i].result = results[i];
    taker.out[i].length = riffle_session_length(sessions[i]);
  }
  return taker.out;
}

// A grammar that lives as long as its runtime is used.
struct TestGrammar {
  riffle_grammar* handle = nullptr;
  TestGrammar(const Runtime& r, const std::string& gbnf) {
    char err[256];
    REQUIRE(riffle_grammar_create(r.model, RIFFLE_GRAMMAR_GBNF, gbnf.data(), gbnf.size(), &handle,
                                  err, sizeof err) == RIFFLE_OK);
  }
  ~TestGrammar() { riffle_grammar_free(handle); }
  TestGrammar(const TestGrammar&) = delete;
  TestGrammar& operator=(const TestGrammar&) = delete;
};

// An answer of names, by a grammar. Its end is clear without a further step.
inline GenerateOptions names(const TestGrammar& grammar, uint64_t seed) {
  GenerateOptions g = answer_of(200, 0.8f, seed);
  g.grammar = std::make_shared<const riffle_grammar>(*grammar.handle);
  return g;
}
inline constexpr const char* kNames = R"(root ::= ("Anna " | "Otto " | [a-d]{2,9} "; "){20} "end")";

inline Answered answer(Runtime& r, const std::vector<int32_t>& prompt, const GenerateOptions& g,
                       int stop_after = -1, bool abort = false) {
  riffle_session* s = r.session(prompt);
  return answers(r, {s}, {g}, stop_after, abort)[0];
}

// The same questions to a context with tokens computed ahead and to one without.
inline void compare_with_lookup(const ContextOptions& off, int lookup) {
  ContextOptions on = off;
  on.lookup = lookup;
  Runtime a(off), b(on);
  for (const float temperature : {0.f, 0.8f})
    for (const auto& prompt :
         {quoting_prompt(31), quoting_prompt(33, 400, 5), some_tokens(900, 32)}) {
      const auto g = answer_of(70, temperature, 5);
      CHECK(same_answer(answer(b, prompt, g), answer(a, prompt, g)));
    }
  const Stats sa = a.stats(), sb = b.stats();
  CHECK(sa.decode_tokens == sb.decode_tokens);
  CHECK(sb.lookup_accepted > 5);
  CHECK(sb.lookup_accepted < sb.lookup_proposed);
}

}  // namespace riffle::test
