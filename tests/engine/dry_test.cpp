// DRY against its rule in riffle.h, slowly.
#include "engine/dry.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "engine/penalties.h"
#include "engine/sampler.h"
#include "tests/engine/sampling.h"
#include "tests/engine/test_model.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// Tokens with the given texts. A text in angle brackets is a control token's name.
class Texts final : public Tokenizer {
 public:
  explicit Texts(std::vector<std::string> texts) : texts_(std::move(texts)) {}
  int vocab_size() const override { return static_cast<int>(texts_.size()); }
  int used_size() const override { return vocab_size(); }
  int bos_id() const override { return -1; }
  int eos_id() const override { return -1; }
  std::vector<int32_t> encode(std::string_view, bool, std::span<const TextSpan>) const override {
    return {};
  }
  std::string decode(const int32_t*, size_t) const override { return {}; }
  const char* piece(int32_t id) const override {
    ++n_asked_;
    return id < vocab_size() ? texts_[id].c_str() : nullptr;
  }
  std::string bytes(int32_t id) const override {
    return texts_.at(id).starts_with('<') ? "" : texts_[id];
  }
  uint64_t rules_hash() const override { return 0; }
  int32_t control_id(std::string_view) const override { return -1; }
  size_t n_asked() const { return n_asked_; }  // for a token's text

 private:
  std::vector<std::string> texts_;
  mutable size_t n_asked_ = 0;
};

// The rule, position by position.
std::map<int32_t, double> reference(const Sampling& s, const std::vector<int32_t>& tokens,
                                    const Texts& texts, const std::vector<std::string>& breakers) {
  std::string text;
  std::vector<size_t> ends;  // ends of the tokens' texts
  for (const int32_t t : tokens) ends.push_back((text += texts.piece(t)).size());
  size_t since = tokens.size();  // tokens behind the last one with which a breaker ends
  for (const std::string& b : breakers)
    for (size_t at = text.find(b); at != text.npos; at = text.find(b, at + 1)) {
      const auto token = std::lower_bound(ends.begin(), ends.end(), at + b.size()) - ends.begin();
      since = std::min(since, tokens.size() - 1 - static_cast<size_t>(token));
    }
  const size_t n = tokens.size(),
               first = s.dry_penalty_last_n < 0 ? 0 : n - std::min<size_t>(n, s.dry_penalty_last_n);
  std::map<int32_t, double> out;
  for (size_t at = first + 1; at < n; ++at) {
    size_t same = 0;
    while (same < since && first + same < at && tokens[at - 1 - same] == tokens[n - 1 - same])
      ++same;
    const std::string own = texts.piece(tokens[at]);
    const bool breaks = std::any_of(breakers.begin(), breakers.end(),
                                    [&](const std::string& b) { return own.find(b) != own.npos; });
    if (breaks || same < static_cast<size_t>(s.dry_allowed_length)) continue;
    const double penalty =
        std::min(1e30, double{s.dry_multiplier} *
                           std::pow(double{s.dry_base}, double(same) - s.dry_allowed_length));
    out[tokens[at]] = std::max(out[tokens[at]], penalty);
  }
  return out;
}

std::string refusal(const Sampling& s) {
  return refusal_of([&] { check_dry(s); });
}

}  // namespace

TEST_CASE("DRY: penalties are those of the rule, token by token", "[sampler]") {
  const Texts texts({"a", "b", "ab", "x\n", "###", "\n", "<end>", "c", "#", "\n#"});
  const std::vector<std::vector<std::string>> lists = {
      {"\n", ":", "\"", "*"}, {}, {"x"}, {"####"}, {"b\n##", "<end>"}, {"ab", "\n"}};
  std::mt19937 g(5);
  size_t n_penalties = 0;
  for (int round = 0; round < 1500; ++round) {
    Sampling s = sampling();
    s.dry_multiplier = 0.25f + static_cast<float>(round % 5);
    s.dry_base = round % 7 == 0 ? 1.f : round % 11 == 0 ? 1e6f : 1.75f;
    s.dry_allowed_length = round % 4;
    s.dry_penalty_last_n = round % 3 == 0 ? -1 : 1 + static_cast<int>(g() % 30);
    const std::vector<std::string>& breakers = lists[round % lists.size()];
    if (round % lists.size() > 0) s.dry_sequence_breakers = breakers;  // the first are the defaults
    const auto draw = [&] {
      // Few tokens that end a repetition, so that some become long.
      return static_cast<int32_t>(g() % 8 > 0 ? g() % (1 + round % 3) : g() % 10);
    };
    std::vector<int32_t> tokens(g() % 60);
    for (int32_t& t : tokens) t = draw();
    Dry dry(s, tokens, &texts);
    for (int step = 0; step < 50; ++step) {
      const std::map<int32_t, double> want = reference(s, tokens, texts, breakers);
      const std::unordered_map<int32_t, float> got = dry.penalties();
      INFO("round " << round << " step " << step);
      REQUIRE(got.size() == want.size());
      for (const auto& [token, penalty] : want) {
        REQUIRE(got.count(token));
        REQUIRE(got.at(token) == Approx(penalty));
      }
      n_penalties += want.size();
      tokens.push_back(draw());
      dry.take(tokens.back());
    }
  }
  CHECK(n_penalties > 50000);
}

TEST_CASE("DRY: examples", "[sampler]") {
  const Texts texts({"a", "b", "c", "y", "\n"});
  Sampling s = sampling();
  s.dry_multiplier = 0.8f;
  const auto penalties = [&](const std::vector<int32_t>& tokens) {
    return Dry(s, tokens, &texts).penalties();
  };
  // a b c c b c y a b c: "a b c" went on with c, "b c" with y.
  const auto found = penalties({0, 1, 2, 2, 1, 2, 3, 0, 1, 2});
  REQUIRE(found.size() == 2);
  CHECK(found.at(2) == Approx(0.8 * 1.75));
  CHECK(found.at(3) == Approx(0.8));
  // Across a line break, and of a line break, nothing repeats.
  CHECK(penalties({0, 1, 4, 2, 0, 1, 4}).empty());
  CHECK(penalties({0, 1, 4, 0, 1}).empty());
  // Off, and without texts.
  CHECK(Dry(s, std::vector<int32_t>{0, 1, 4, 0, 1}, nullptr).penalties().size() == 1);
  s.dry_penalty_last_n = 0;
  CHECK_FALSE(Dry(s, {}, &texts).on());
  CHECK_FALSE(Dry(sampling(), {}, &texts).on());
}

TEST_CASE("DRY: a penalty joins the other changes of its token", "[sampler]") {
  const Texts texts({"a", "b", "c", "d"});
  Sampling s = sampling();
  s.dry_multiplier = 2;
  s.dry_allowed_length = 1;
  s.presence_penalty = 0.5f;
  Penalties penalties(s, std::vector<int32_t>{0, 1, 2}, &texts);
  REQUIRE(penalties.any());
  for (const int32_t t : {1, 0}) penalties.take(t);
  const std::vector<LogitChange> changes = penalties.changes(4);
  REQUIRE(changes.size() == 2);
  CHECK(changes[0].minus == 0.5f);
  CHECK(changes[1].token == 1);
  CHECK(changes[1].minus == 2.5f);
}

TEST_CASE("DRY: a long context, whatever repeats in it", "[sampler]") {
  const Texts texts({"a", "b", "c", "y", "\n"});
  Sampling s = sampling();
  s.dry_multiplier = 1;
  std::vector<int32_t> tokens(200000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 1000 == 999;
  Dry dry(s, tokens, &texts);
  for (int i = 0; i < 5; ++i) {
    // The text has gone on with 0 everywhere, after 199,000 equal tokens.
    const auto found = dry.penalties();
    REQUIRE(found.count(0));
    CHECK(found.at(0) == 1e30f);
    dry.take(0);
  }
  // Each token is looked at once for breakers, and those with a penalty once a step.
  CHECK(texts.n_asked() <= tokens.size() + 5 * (1 + 2));
}

TEST_CASE("DRY: bad values are named", "[sampler]") {
  Sampling s = sampling();
  CHECK(refusal(s).empty());
  s.dry_base = 0;  // refused while DRY is off, too
  CHECK(refusal(s) == "dry_base is 0, expected 1 or more, and finite");
  s = sampling();
  s.dry_multiplier = -1;
  CHECK(refusal(s) == "dry_multiplier is -1, expected 0 or more, and finite");
  s.dry_multiplier = NAN;
  CHECK(refusal(s) == "dry_multiplier is nan, expected 0 or more, and finite");
  s = sampling();
  s.dry_allowed_length = -1;
  CHECK(refusal(s) == "dry_allowed_length is -1, expected 0 to 2147483647");
  s = sampling();
  s.dry_penalty_last_n = -2;
  CHECK(refusal(s) == "dry_penalty_last_n is -2, expected -1 to 2147483647");
  s = sampling();
  s.dry_sequence_breakers = {"\n", ""};
  CHECK(refusal(s) == "dry_sequence_breakers[1] is empty, expected a text");
}

// Compares the tokens that riffle_generate draws with those drawn by steps and the rule, and by a
// scheduler.
TEST_CASE("DRY: answers are those of the rule, also with tokens computed ahead",
          "[sampler][long]") {
  for (const int lookup : {0, 4}) {
    ContextOptions o;
    o.device = DeviceKind::CPU;
    o.lookup = lookup;
    Runtime r(o);
    std::vector<int32_t> prompt;
    for (int i = 0; i < 60; ++i) prompt.push_back(300 + i % 7);
    GenerateOptions g;
    g.max_tokens = 40;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    g.sampling.dry_multiplier = 1.5f;
    const std::vector<std::string> breakers = {"."};
    g.sampling.dry_sequence_breakers = breakers;
    std::vector<std::string> words;
    for (int id = 0; id < r.vocab_size(); ++id) {
      const char* const piece = riffle_token_piece(r.model, id);
      words.emplace_back(piece ? piece : "");
    }
    const Texts texts(words);
    riffle_session *one = r.session(prompt), *other = r.session(prompt);
    using Tokens = std::vector<int32_t>;
    Tokens got, scheduled;
    const auto take = [](void* user, size_t, const riffle_token* t) {
      if (t->id >= 0) static_cast<Tokens*>(user)->push_back(t->id);
      return true;
    };
    r.check(generate(one, &g, take, &got, nullptr));
    REQUIRE(got.size() == 40);
    riffle_scheduler* scheduler = nullptr;
    r.check(scheduler_create(r.context, nullptr, &scheduled, &scheduler));
    riffle_scheduler_on_token(scheduler, [](void* user, uint64_t, const riffle_token* t) {
      if (t->id >= 0) static_cast<Tokens*>(user)->push_back(t->id);
      return true;
    });
    r.check(scheduler_submit(scheduler, prompt.data(), prompt.size(), &g, nullptr));
    for (int i = 0; i < 60; ++i) r.check(scheduler_step(scheduler, nullptr));
    riffle_scheduler_free(scheduler);
    CHECK(scheduled == got);
    Tokens all = prompt;
    size_t changed = 0;
    for (int i = 0; i < 40; ++i) {
      const float* const raw = riffle_logits(other);
      std::vector<double> logits(raw, raw + r.vocab_size());
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      for (const auto& [token, penalty] : reference(g.sampling, all, texts, breakers))
        logits[token] -= penalty;
      const auto token =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      changed += token != best;
      INFO("lookup " << lookup << " token " << i);
      REQUIRE(got[i] == token);
      all.push_back(token);
      r.check(riffle_step(r.context, &other, &token, 1));
    }
    CHECK(changed > 0);
  }
}
