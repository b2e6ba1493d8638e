#include "engine/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/answer.h"
#include "tests/engine/sampling.h"
#include "util/error.h"
#include "util/settings.h"

using namespace riffle;
using riffle::test::refusal_of;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The documented rules in float64, slowly: probability of every id. xtc_threshold: of a draw on
// which XTC acts.
std::vector<double> reference(const std::vector<float>& logits, double temperature, int top_k,
                              double top_p, double min_p, double xtc_threshold = 1) {
  const int n = static_cast<int>(logits.size());
  std::vector<int> rank(n);
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  const double max = logits[rank[0]];
  std::vector<double> result(n, 0);
  if (temperature == 0) {
    result[rank[0]] = 1;
    return result;
  }
  if (top_k > 0 && top_k < n) rank.resize(top_k);
  if (top_p < 1) {
    double total = 0, covered = 0;
    for (const int id : rank) total += std::exp(logits[id] - max);
    size_t keep = 0;
    while (keep < rank.size() && (keep == 0 || covered < top_p * total))
      covered += std::exp(logits[rank[keep++]] - max);
    rank.resize(keep);
  }
  std::erase_if(rank, [&](int id) { return !(std::exp(logits[id] - max) >= min_p); });
  if (xtc_threshold <= 0.5) {
    double all = 0;
    for (const int id : rank) all += std::exp(logits[id] - max);
    const auto below = std::find_if(rank.begin(), rank.end(), [&](int id) {
      return std::exp(logits[id] - max) < xtc_threshold * all;
    });
    if (below - rank.begin() > 1) rank.erase(rank.begin(), below - 1);
  }
  double total = 0;
  for (const int id : rank)
    total += result[id] = std::exp((logits[id] - logits[rank[0]]) / temperature);
  for (double& p : result) p /= total;
  return result;
}

riffle_status status_of_sample(const std::vector<float>& logits, Sampler sampler,
                               std::string* text = nullptr) {
  try {
    sampler.sample(logits.data(), static_cast<int>(logits.size()));
  } catch (const Error& error) {
    if (text) *text = error.what();
    return error.status();
  }
  return RIFFLE_OK;
}

std::string refusal(float temperature, int top_k, float top_p, float min_p) {
  return refusal_of([&] { check_sampling(temperature, top_k, top_p, min_p); });
}

}  // namespace

TEST_CASE("Random is xoshiro256** seeded by SplitMix64", "[sampler]") {
  // By an independent computation with unbounded integers (Python).
  Random random(1234567);
  for (const uint64_t expected :
       {3504822795582309479ull, 1819558768956484042ull, 1250851346055027673ull,
        16940231675099994102ull, 11585879347611423030ull}) {
    CHECK(random.next() == expected);
  }
  Random a(0), b(0), c(1);
  double sum = 0, least = 1, most = 0;
  bool differs = false;
  for (int i = 0; i < 100000; i++) {
    const double u = a.uniform();
    REQUIRE(u == b.uniform());
    differs |= u != c.uniform();
    sum += u;
    least = std::min(least, u);
    most = std::max(most, u);
  }
  CHECK(differs);
  CHECK(least >= 0);
  CHECK(most < 1);
  CHECK(std::abs(sum / 100000 - 0.5) < 0.005);  // 5.5 standard errors
}

TEST_CASE("samples follow the documented distribution", "[sampler]") {
  const std::vector<std::vector<float>> cases = {{0, 0, 0, 0},
                                                 {2, 1, 0, -1, -2, -3},
                                                 {-3, 5, 1, 4.5f, 4.5f, 0, -kInf, 2},
                                                 {1000, 999, 998, -1000},
                                                 {1e30f, -1e30f, 1e30f},
                                                 {kInf, 0, kInf, 5},
                                                 {-kInf, 7},
                                                 {3}};
  const int draws = 5000;
  uint64_t seed = 0;
  for (const auto& logits : cases) {
    for (const float temperature : {0.5f, 1.f, 3.f}) {
      for (const int top_k : {0, 2, 3, 100}) {
        for (const float top_p : {0.f, 0.3f, 0.8f, 1.f}) {
          for (const float min_p : {0.f, 0.2f, 1.f}) {
            INFO("temperature " << temperature << " top_k " << top_k << " top_p " << top_p
                                << " min_p " << min_p << " case of " << logits.size());
            std::vector<float> finite = logits;  // for the reference, infinity is just very large
            for (float& x : finite) x = std::clamp(x, -1e30f, 1e30f);
            const std::vector<double> p = reference(finite, temperature, top_k, top_p, min_p);
            Sampler sampler(++seed, temperature, top_k, top_p, min_p);
            std::vector<int> count(logits.size(), 0);
            for (int i = 0; i < draws; i++) {
              const int id = sampler.sample(logits.data(), static_cast<int>(logits.size()));
              if (id < 0 || id >= static_cast<int>(logits.size())) FAIL("token " << id);
              count[id]++;
            }
            double chi_square = 0;
            int cells = 0;
            for (size_t id = 0; id < p.size(); id++) {
              if (p[id] == 0) CHECK(count[id] == 0);
              if (p[id] * draws < 5) continue;
              const double d = count[id] - p[id] * draws;
              chi_square += d * d / (p[id] * draws);
              cells++;
            }
            // Mean cells - 1, variance 2 (cells - 1); 8 deviations above, as there are over a
            // thousand cases.
            CHECK(chi_square <= cells - 1 + 8 * std::sqrt(2.0 * cells) + 1e-9);
          }
        }
      }
    }
  }
}

TEST_CASE("XTC: a million draws follow the documented distribution", "[sampler]") {
  const std::vector<float> logits = {2, 1.5f, 1, 0.5f, 0, -0.5f, -1, -1.5f, 3, 3, -2, 0.25f};
  const int n = static_cast<int>(logits.size()), draws = 1000000;
  struct Setting {
    float temperature;
    int top_k;
    float top_p, min_p;
    Xtc xtc;
  };
  for (const Setting& s : {Setting{1, 0, 1, 0, {0.5f, 0.1f}},
                           {0.8f, 40, 0.95f, 0.05f, {0.3f, 0.1f}},
                           {0.7f, 6, 1, 0, {1, 0.05f}},
                           {1.5f, 0, 0.9f, 0, {0.9f, 0.2f}},  // acts on the two best alone
                           {1, 0, 1, 0.1f, {0.75f, 0}},       // leaves the last candidate
                           {1, 0, 1, 0, {1, 0.4f}},           // acts on none
                           {1, 0, 1, 0, {1, 0.51f}}}) {       // off
    INFO("temperature " << s.temperature << " top_k " << s.top_k << " top_p " << s.top_p
                        << " min_p " << s.min_p << " probability " << s.xtc.probability
                        << " threshold " << s.xtc.threshold);
    const auto off = reference(logits, s.temperature, s.top_k, s.top_p, s.min_p),
               on = reference(logits, s.temperature, s.top_k, s.top_p, s.min_p, s.xtc.threshold);
    Sampler sampler(23, s.temperature, s.top_k, s.top_p, s.min_p, s.xtc);
    std::vector<double> count(n, 0);
    for (int i = 0; i < draws; i++) count[sampler.sample(logits.data(), n)]++;
    double chi_square = 0;
    int cells = 0;
    for (int id = 0; id < n; id++) {
      const double p = s.xtc.probability * on[id] + (1 - s.xtc.probability) * off[id];
      if (p == 0) CHECK(count[id] == 0);
      if (p == 0) continue;
      chi_square += (count[id] - p * draws) * (count[id] - p * draws) / (p * draws);
      cells++;
    }
    CHECK(chi_square <= cells - 1 + 6 * std::sqrt(2.0 * cells));
  }
}

TEST_CASE("XTC: the same seed gives the same tokens; off, it changes nothing", "[sampler]") {
  std::vector<float> logits(300);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = 5 * std::sin(static_cast<float>(i));
  const int n = static_cast<int>(logits.size());
  Sampler plain(9, 0.9f, 40, 0.95f, 0), off(9, 0.9f, 40, 0.95f, 0, {0, 0.1f}),
      high(9, 0.9f, 40, 0.95f, 0, {1, 0.6f}), a(9, 0.9f, 40, 0.95f, 0, {0.5f, 0.01f}),
      b(9, 0.9f, 40, 0.95f, 0, {0.5f, 0.01f}), greedy(9, 0, 40, 0.95f, 0, {1, 0.01f}),
      one(9, 1, 1, 0.95f, 0, {1, 0.01f});
  const auto best =
      static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  int differ = 0;
  for (int i = 0; i < 200; i++) {
    const int id = plain.sample(logits.data(), n), other = a.sample(logits.data(), n);
    REQUIRE(off.sample(logits.data(), n) == id);
    REQUIRE(high.sample(logits.data(), n) == id);
    REQUIRE(b.sample(logits.data(), n) == other);
    REQUIRE(greedy.sample(logits.data(), n) == best);
    REQUIRE(one.sample(logits.data(), n) == best);
    differ += id != other;
  }
  CHECK(differ > 50);
}

TEST_CASE("XTC: ties, infinities and small temperatures", "[sampler]") {
  const auto drawn = [](const std::vector<float>& logits, float temperature, float threshold) {
    Sampler sampler(3, temperature, 0, 1, 0, {1, threshold});
    return sampler.sample(logits.data(), static_cast<int>(logits.size()));
  };
  for (const float temperature : {1e-30f, 1e-3f}) {
    CHECK(drawn({5, 0, 5, -1}, temperature, 0.1f) ==
          2);  // the higher id of two equal ones is less likely
    CHECK(drawn({kInf, 0, kInf, -1}, temperature, 0.5f) == 2);
    CHECK(drawn({0, 4, 3, 2}, temperature, 0.05f) == 3);
    CHECK(drawn({0, -kInf, -900}, temperature, 0) == 2);  // -inf is no candidate
    CHECK(drawn({0, -40}, temperature, 0.1f) == 0);       // one candidate reaches the threshold
    CHECK(drawn({7}, temperature, 0) == 0);
  }
}

TEST_CASE("large vocabularies: what may be drawn is what the rules leave", "[sampler]") {
  Random random(11);
  for (const int n : {127, 128, 129, 640, 2000, 32000}) {
    std::vector<float> logits(n);
    for (float& x : logits)
      x = static_cast<float>(std::floor(random.uniform() * 200) / 20);  // many ties
    for (const int top_k : {0, 40, 1000}) {
      for (const float top_p : {0.1f, 0.9f, 0.999f, 1.f}) {
        for (const float min_p : {0.f, 0.05f}) {
          const std::vector<double> p = reference(logits, 2, top_k, top_p, min_p);
          Sampler sampler(n, 2, top_k, top_p, min_p);
          double log_likelihood = 0, entropy = 0, square = 0;
          for (const double x : p) {
            if (x > 0) entropy -= x * std::log(x);
            if (x > 0) square += x * std::log(x) * std::log(x);
          }
          const int draws = n > 2000 ? 30 : 200;
          for (int i = 0; i < draws; i++) {
            const double x = p[sampler.sample(logits.data(), n)];
            if (!(x > 0)) FAIL("drawn against the rules");
            log_likelihood += std::log(x);
          }
          // The mean log-likelihood of the draws is the distribution's.
          const double deviation = std::sqrt(std::max(0.0, square - entropy * entropy) / draws);
          CHECK(std::abs(log_likelihood / draws + entropy) <= 6 * deviation + 1e-6);
        }
      }
    }
  }
}

TEST_CASE("greedy takes the largest logit, the lowest id of equal ones", "[sampler]") {
  Sampler greedy(1, 0, 0, 1, 0);
  const std::vector<float> logits = {-1, 3, 2, 3, 3};
  const std::vector<float> low = {-kInf, -kInf, -3e38f};
  for (int i = 0; i < 10; i++) {
    CHECK(greedy.sample(logits.data(), 5) == 1);
    CHECK(greedy.sample(low.data(), 3) == 2);
  }
  for (uint64_t seed = 0; seed < 50; seed++) {
    CHECK(Sampler(seed, 1, 1, 1, 0).sample(logits.data(), 5) == 1);  // top_k 1
    CHECK(Sampler(seed, 1, 0, 0, 0).sample(logits.data(), 5) == 1);  // top_p 0
    CHECK(Sampler(seed, 1, 0, 1e-6f, 0).sample(logits.data(), 5) == 1);
    CHECK(Sampler(seed, 1, 2, 1, 1).sample(logits.data(), 5) !=
          4);  // ties at the border: lowest ids stay
    CHECK(Sampler(seed, 1e-45f, 0, 1, 0).sample(low.data(), 3) == 2);
  }
}

TEST_CASE("the same seed gives the same tokens; what is off changes nothing", "[sampler]") {
  std::vector<float> logits(500);
  for (size_t i = 0; i < logits.size(); i++) logits[i] = std::sin(static_cast<float>(i));
  const int n = static_cast<int>(logits.size());
  Sampler a(42, 0.8f, 0, 1, 0), b(42, 0.8f, 0, 1, 0), wide(42, 0.8f, 500, 1, 0),
      wider(42, 0.8f, 9999, 1, 0), other(43, 0.8f, 0, 1, 0);
  int differ = 0;
  for (int i = 0; i < 200; i++) {
    const int id = a.sample(logits.data(), n);
    REQUIRE(b.sample(logits.data(), n) == id);
    REQUIRE(wide.sample(logits.data(), n) == id);
    REQUIRE(wider.sample(logits.data(), n) == id);
    differ += other.sample(logits.data(), n) != id;
  }
  CHECK(differ > 150);
  Sampler fixed(7, 1, 40, 0.95f, 0.05f);
  std::vector<int> ids(8);
  for (int& id : ids) id = fixed.sample(logits.data(), n);
  Sampler again(7, 1, 40, 0.95f, 0.05f);
  for (const int id : ids) CHECK(again.sample(logits.data(), n) == id);
}

TEST_CASE("logits that are not numbers are errors", "[sampler]") {
  const float nan = std::nanf("");
  for (const Sampler& sampler : {Sampler(1, 0, 0, 1, 0), Sampler(1, 0.8f, 40, 0.95f, 0.05f)}) {
    std::string text;
    CHECK(status_of_sample({1, 2, nan}, sampler, &text) == RIFFLE_BAD_MODEL);
    CHECK(text.find("token 2") != std::string::npos);
    CHECK(status_of_sample({nan, 2}, sampler) == RIFFLE_BAD_MODEL);
    CHECK(status_of_sample({-kInf, -kInf}, sampler) == RIFFLE_BAD_MODEL);
    CHECK(status_of_sample({}, sampler) == RIFFLE_BAD_ARGUMENT);
    CHECK(status_of_sample({kInf, 0}, sampler) == RIFFLE_OK);
  }
}

TEST_CASE("sampling settings are checked", "[sampler]") {
  CHECK(refusal(0.8f, 40, 0.95f, 0.05f) == "");
  CHECK(refusal(0, 0, 1, 0) == "");
  CHECK(refusal(100, 1 << 30, 0, 1) == "");
  for (const float bad : {-0.1f, kInf, std::nanf("")}) {
    CHECK(refusal(bad, 0, 1, 0).find("temperature is ") == 0);
    CHECK(refusal(1, 0, bad, 0).find("top_p is ") == 0);
    CHECK(refusal(1, 0, 1, bad).find("min_p is ") == 0);
  }
  CHECK(refusal(1, -1, 1, 0) == "");
  CHECK(refusal(1, -2, 1, 0) == "top_k is -2, expected -1 to 2147483647");
  CHECK(refusal(1, 0, 1.5f, 0) == "top_p is 1.5, expected 0 to 1");
  CHECK_THROWS_AS(Sampler(0, -1, 0, 1, 0), Error);
  CHECK_THROWS_WITH(check_xtc({1.5f, 0}), "xtc_probability is 1.5, expected 0 to 1");
  CHECK_THROWS_WITH(check_xtc({std::nanf(""), 0}), "xtc_probability is nan, expected 0 to 1");
  CHECK_THROWS_WITH(check_xtc({0, -1}), "xtc_threshold is -1, expected 0 to 1");
}

TEST_CASE("top_k -1 keeps all tokens, as 0 does", "[sampler]") {
  const std::vector<float> logits = {0, 1, 0.5f, -1};
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Sampler all(seed, 1.5f, 0, 1, 0), same(seed, 1.5f, -1, 1, 0);
    CHECK(all.sample(logits.data(), 4, all.request()) ==
          same.sample(logits.data(), 4, same.request()));
  }
}

// Flags and fields of a batch give the same ranges: tests/cli/flags_test.py.
TEST_CASE("numbers of an answer beyond their ranges are refused by name, value and range",
          "[sampler]") {
  int checked = 0;
  for (const Setting& setting : settings()) {
    const Setting* const s = &setting;
    if (s->options != OptionsKind::SAMPLING && s->options != OptionsKind::ANSWER) continue;
    if (s->type != MemberType::INT32 && s->type != MemberType::FLOAT) continue;
    if (*s->words) continue;
    INFO(s->id);
    const bool whole = s->type == MemberType::INT32;
    const std::string id = s->id, name = id.substr(id.find('.') + 1);
    for (const double v : {s->above_low ? s->low : s->low - 1, s->high + 1, std::nan("")}) {
      if (whole && !(std::fabs(v) < 2147483648.0)) continue;
      GenerateOptions o;
      o.sampling.dry_multiplier = 1;  // dry_base counts
      char* const at = reinterpret_cast<char*>(s->options == OptionsKind::SAMPLING
                                                   ? static_cast<void*>(&o.sampling)
                                                   : static_cast<void*>(&o)) +
                       s->offset;
      const auto number = static_cast<float>(v == s->high + 1 ? v * 2 : v);
      const auto integer = static_cast<int32_t>(whole ? v : 0);
      std::memcpy(at, whole ? static_cast<const void*>(&integer) : &number, 4);
      std::string text;
      try {
        check_generate_options(o);
      } catch (const Error& e) {
        text = e.what();
      }
      CHECK(text.find(name + " is ") == 0);
      CHECK(text.find(std::string(", expected ") + s->range) != std::string::npos);
      ++checked;
    }
  }
  CHECK(checked > 30);
}

TEST_CASE("sampler: tokens that are not allowed count as -inf, before every filter", "[sampler]") {
  struct Setting {
    float temperature;
    int top_k;
    float top_p, min_p;
  };
  Random random(3);
  for (const Setting& s : {Setting{0, 0, 1, 0},
                           {1, 0, 1, 0},
                           {0.8f, 3, 1, 0},
                           {1, 0, 0.6f, 0},
                           {1, 0, 1, 0.3f},
                           {1.5f, 5, 0.9f, 0.1f}}) {
    for (int round = 0; round < 200; ++round) {
      const int n = 1 + static_cast<int>(random.next() % 70);
      std::vector<float> logits(n), masked(n, -kInf);
      std::vector<uint32_t> allowed(3, 0xffffffff);  // bits beyond n are not looked at
      for (int i = 0; i < n; ++i) {
        logits[i] = static_cast<float>(random.uniform() * 8);
        if (i != n / 2 && random.next() % 2) allowed[i / 32] &= ~(1u << (i % 32));
        else masked[i] = logits[i];
      }
      Sampler a(round, s.temperature, s.top_k, s.top_p, s.min_p),
          b(round, s.temperature, s.top_k, s.top_p, s.min_p);
      SampleRequest request = a.request();
      request.allowed = allowed.data();
      CHECK(a.sample(logits.data(), n, request) == b.sample(masked.data(), n));
    }
  }
  // A damaged logit is an error wherever it stands.
  const std::vector<float> damaged = {1, std::numeric_limits<float>::quiet_NaN()};
  const uint32_t first = 1;
  Sampler sampler(1, 0, 0, 1, 0);
  SampleRequest request = sampler.request();
  request.allowed = &first;
  CHECK_THROWS_WITH(sampler.sample(damaged.data(), 2, request),
                    Catch::Contains("the logits are not finite: found not a number for token 1"));
}
