// Biases, penalties and log-probabilities of answers, against the documented rules in double.
#include "engine/penalties.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>

#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "tests/engine/sampling.h"
#include "tests/engine/test_model.h"
#include "util/error.h"

using namespace riffle;
using namespace riffle::test;

namespace {

// riffle.h's rules, one after the other over all that is there.
std::vector<double> penalised(const std::vector<float>& logits, const Sampling& s,
                              const std::vector<int32_t>& prompt,
                              const std::vector<int32_t>& answer) {
  std::vector<double> out(logits.begin(), logits.end());
  for (const riffle_logit_bias& b : s.logit_bias) out[b.token] += b.bias;
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  const size_t back =
      s.repeat_last_n < 0 ? all.size() : std::min<size_t>(all.size(), s.repeat_last_n);
  for (int32_t t = 0; t < static_cast<int32_t>(out.size()); ++t) {
    if (std::find(all.end() - back, all.end(), t) != all.end())
      out[t] = out[t] > 0 ? out[t] / s.repeat_penalty : out[t] * s.repeat_penalty;
    const auto n = std::count(answer.begin(), answer.end(), t);
    out[t] -= static_cast<double>(n) * s.frequency_penalty + (n > 0 ? s.presence_penalty : 0.f);
  }
  return out;
}

std::string refusal(const Sampling& s) {
  return refusal_of([&] { check_penalties(s); });
}

}  // namespace

TEST_CASE("penalties: changes are those of the rules, whatever was drawn", "[sampler]") {
  std::mt19937 g(3);
  const int n_ids = 50;
  for (int round = 0; round < 200; ++round) {
    Sampling s = sampling();
    s.repeat_penalty = round % 3 == 0 ? 1.f : 0.5f + static_cast<float>(round % 7) / 4;
    s.repeat_last_n = round % 5 == 0 ? -1 : round % 11;
    s.frequency_penalty = round % 2 == 0 ? 0.f : static_cast<float>(round % 9) / 4 - 1;
    s.presence_penalty = round % 4 == 0 ? 0.f : static_cast<float>(round % 5) / 2 - 1;
    const riffle_logit_bias bias[] = {{7, 1.5f}, {3, -2}, {20, -INFINITY}};
    s.logit_bias.assign(bias, bias + round % 4);
    std::vector<int32_t> prompt(g() % 30), answer;
    for (int32_t& t : prompt) t = static_cast<int32_t>(g() % n_ids);
    std::vector<float> logits(n_ids);
    for (float& x : logits) x = std::uniform_real_distribution<float>(-5, 5)(g);
    Penalties penalties(s, prompt);
    for (int step = 0; step < 40; ++step) {
      const std::vector<double> want = penalised(logits, s, prompt, answer);
      std::vector<float> got = logits;
      int32_t last = -1;
      for (const LogitChange& c : penalties.changes(n_ids)) {
        REQUIRE(c.token > last);
        REQUIRE(c.token < n_ids);
        last = c.token;
        got[c.token] = changed_logit(got[c.token], c);
      }
      for (int t = 0; t < n_ids; ++t) {
        INFO("round " << round << " step " << step << " token " << t);
        if (std::isinf(want[t])) CHECK(got[t] == -INFINITY);
        else CHECK(std::abs(got[t] - want[t]) <= 1e-5 * (1 + std::abs(want[t])));
      }
      answer.push_back(static_cast<int32_t>(g() % n_ids));
      penalties.take(answer.back());
    }
    // Padding of the vocabulary is never drawn, so it is not changed.
    for (const LogitChange& c : penalties.changes(10)) CHECK(c.token < 10);
  }
}

TEST_CASE("penalties: a million draws follow the changed probabilities", "[sampler]") {
  const std::vector<float> logits = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f, 3, 3, -2, 0.25f};
  Sampling s = sampling();
  s.repeat_penalty = 1.5f;
  s.frequency_penalty = 0.4f;
  s.presence_penalty = 0.3f;
  const riffle_logit_bias bias[] = {{0, 0.5f}, {9, -INFINITY}};
  s.logit_bias.assign(bias, bias + 2);
  const std::vector<int32_t> prompt = {1, 2, 5}, answer = {8, 8, 4, 2};
  Penalties penalties(s, prompt);
  for (const int32_t t : answer) penalties.take(t);
  const std::vector<LogitChange> changes = penalties.changes(12);
  std::vector<double> weight = penalised(logits, s, prompt, answer);
  double total = 0;
  const double temperature = 0.9f;
  for (double& w : weight) total += w = std::exp(w / temperature);
  Sampler sampler(17, 0.9f, 0, 1, 0);
  std::vector<double> count(logits.size(), 0);
  const int draws = 1000000;
  for (int i = 0; i < draws; ++i) {
    SampleRequest r = sampler.request();
    r.changes = changes.data();
    r.n_changes = static_cast<int32_t>(changes.size());
    count[sampler.sample(logits.data(), static_cast<int>(logits.size()), r)]++;
  }
  double chi_square = 0;
  for (size_t t = 0; t < weight.size(); ++t) {
    const double expected = weight[t] / total * draws;
    if (expected == 0) CHECK(count[t] == 0);
    else chi_square += (count[t] - expected) * (count[t] - expected) / expected;
  }
  CHECK(chi_square < 10 + 6 * std::sqrt(20.0));  // 10 degrees of freedom
}

TEST_CASE("penalties: bad values are named", "[sampler]") {
  Sampling s = sampling();
  CHECK(refusal(s).empty());
  s.repeat_penalty = 0;
  CHECK(refusal(s) == "repeat_penalty is 0, expected more than 0, and finite");
  s = sampling();
  s.repeat_last_n = -2;
  CHECK(refusal(s) == "repeat_last_n is -2, expected -1 to 2147483647");
  s = sampling();
  s.frequency_penalty = NAN;
  CHECK(refusal(s) == "frequency_penalty is nan, expected -2 to 2");
  s = sampling();
  s.presence_penalty = 2.5f;
  CHECK(refusal(s) == "presence_penalty is 2.5, expected -2 to 2");
  s = sampling();
  s.top_logprobs = 21;
  CHECK(refusal(s) == "top_logprobs is 21, expected 0 to 20");
  s = sampling();
  std::vector<riffle_logit_bias>& bias = s.logit_bias;
  bias = {{4, 1}, {4, 2}};
  CHECK(refusal(s) == "logit_bias: token 4 occurs more than once, expected once");
  bias[1] = {-1, 0};
  CHECK(refusal(s) == "logit_bias[1]: token is -1, expected 0 or more");
  bias[1] = {5, INFINITY};
  CHECK(refusal(s) == "logit_bias[1]: bias is inf, expected -100 to 100, or -infinity");
  for (const float wrong : {101.f, -101.f, 1e30f, -1e30f, NAN}) {
    bias[1].bias = wrong;
    CHECK(refusal(s).find("expected -100 to 100, or -infinity") != std::string::npos);
  }
  for (const float right : {RIFFLE_MAX_LOGIT_BIAS, -RIFFLE_MAX_LOGIT_BIAS, -INFINITY, 0.f}) {
    bias[1].bias = right;
    CHECK(refusal(s).empty());
  }
}

TEST_CASE("logprobs: the softmax in double, best first", "[sampler]") {
  std::mt19937 g(11);
  std::vector<float> logits(1000);
  for (float& x : logits) x = std::round(std::normal_distribution<float>(0, 4)(g) * 4) / 4;  // ties
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  std::vector<int32_t> rank(logits.size());
  for (size_t i = 0; i < rank.size(); ++i) rank[i] = static_cast<int32_t>(i);
  std::stable_sort(rank.begin(), rank.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (const int n : {0, 1, 5, 20}) {
    const Logprobs got = logprobs_of(logits, 77, n);
    CHECK(got.of_token == Approx(logits[77] - std::log(sum)).margin(1e-5));
    REQUIRE(static_cast<int>(got.top.size()) == n);
    for (int i = 0; i < n; ++i) {
      CHECK(got.top[i].token == rank[i]);
      CHECK(got.top[i].logprob == Approx(logits[rank[i]] - std::log(sum)).margin(1e-5));
    }
  }
  const std::vector<float> two = {-INFINITY, 3};
  const Logprobs forbidden = logprobs_of(two, 0, 2);
  CHECK(forbidden.of_token == -INFINITY);
  CHECK(forbidden.top[0].logprob == 0);
}

// Compares the tokens that riffle_generate draws with those drawn by steps and the rules.
TEST_CASE("penalties: answers are those of the rules, also with tokens computed ahead",
          "[sampler]") {
  ContextOptions o;
  o.device = DeviceKind::CPU;
  for (const int lookup : {0, 4}) {
    o.lookup = lookup;
    Runtime r(o);
    GenerateOptions g;
    g.max_tokens = 40;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    g.sampling.repeat_penalty = 1.3f;
    g.sampling.repeat_last_n = 16;
    g.sampling.frequency_penalty = 0.5f;
    g.sampling.presence_penalty = -0.25f;
    const riffle_logit_bias bias[] = {{300, 2}, {13, -INFINITY}};
    g.sampling.logit_bias.assign(bias, bias + 2);
    g.sampling.logprobs = true;
    g.sampling.top_logprobs = 3;
    std::vector<int32_t> prompt;
    for (int i = 0; i < 60; ++i) prompt.push_back(300 + i % 7);
    riffle_session *one = r.session(), *other = r.session();
    r.check(riffle_prefill(one, prompt.data(), prompt.size(), nullptr, nullptr));
    r.check(riffle_prefill(other, prompt.data(), prompt.size(), nullptr, nullptr));
    struct Got {
      std::vector<int32_t> tokens;
      std::vector<float> logprobs;
      std::vector<int32_t> best;
    } got;
    const auto take = [](void* user, size_t, const riffle_token* t) {
      auto& to = *static_cast<Got*>(user);
      if (t->id < 0) return true;
      to.tokens.push_back(t->id);
      to.logprobs.push_back(t->logprob);
      to.best.push_back(t->n_top == 3 ? t->top[0].token : -1);
      return true;
    };
    r.check(generate(one, &g, take, &got, nullptr));
    REQUIRE(got.tokens.size() == 40);
    std::vector<int32_t> answer;
    for (int i = 0; i < 40; ++i) {
      const float* const raw = riffle_logits(other);
      const std::vector<float> logits(raw, raw + model_number(r.model, "vocab_size"));
      const std::vector<double> want = penalised(logits, g.sampling, prompt, answer);
      const auto token =
          static_cast<int32_t>(std::max_element(want.begin(), want.end()) - want.begin());
      INFO("lookup " << lookup << " token " << i);
      REQUIRE(got.tokens[i] == token);
      const Logprobs logprobs = logprobs_of(logits, token, 1);
      CHECK(got.logprobs[i] == logprobs.of_token);
      CHECK(got.best[i] == logprobs.top[0].token);
      answer.push_back(token);
      r.check(riffle_step(r.context, &other, &token, 1));
    }
  }
}

TEST_CASE("penalties: biases that leave no token are an error of the caller", "[sampler]") {
  ContextOptions o;
  o.device = DeviceKind::CPU;
  o.n_ctx = 64;
  Runtime r(o);
  riffle_session* s = r.session();
  const int32_t prompt[] = {1, 300};
  r.check(riffle_prefill(s, prompt, 2, nullptr, nullptr));
  std::vector<riffle_logit_bias> all;
  for (int32_t t = 0; t < model_number(r.model, "vocab_size"); ++t) all.push_back({t, -INFINITY});
  GenerateOptions g;
  g.sampling.logit_bias = all;
  CHECK(generate(s, &g, nullptr, nullptr, nullptr) == RIFFLE_BAD_ARGUMENT);
  CHECK(std::string(riffle_context_error(r.context)).find("no token can be drawn") == 0);
}
