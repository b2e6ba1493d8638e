// The golden logits and texts of the shipped model (tests/golden), and how a runtime is held
// against them.
#pragma once
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/engine/test_model.h"

namespace riffle::test {

inline nlohmann::json golden() {
  std::ifstream in("tests/golden/riffle-27m-32k-q8_0.golden.json");
  REQUIRE(in.good());
  return nlohmann::json::parse(in);
}

struct Difference {
  double logit = 0, logsumexp = 0;
};

inline Difference compare(Runtime& r, const nlohmann::json& g) {
  const auto ids = g["ids"].get<std::vector<int32_t>>();
  riffle_session* s = r.session();
  std::vector<TokenScore> scores(ids.size());
  r.context->engine->prefill(*s->sequence, ids, scores.data(), {});
  const float* logits = riffle_logits(s);
  Difference d;
  for (size_t i = 0; i < g["last_top_ids"].size(); ++i) {
    const double diff =
        std::fabs(logits[g["last_top_ids"][i].get<int>()] - g["last_top_logits"][i].get<double>());
    d.logit = std::isnan(diff) || diff > d.logit ? diff : d.logit;
    REQUIRE(!std::isnan(d.logit));
  }
  const auto lse = g["logsumexp_first64"];
  for (size_t i = 0; i < lse.size(); ++i) {
    const double diff = std::fabs(scores[i].logsumexp - lse[i].get<double>());
    d.logsumexp = std::isnan(diff) || diff > d.logsumexp ? diff : d.logsumexp;
    REQUIRE(!std::isnan(d.logsumexp));
  }
  return d;
}

inline std::vector<int32_t> greedy(Runtime& r, const nlohmann::json& g) {
  const auto ids = g["ids"].get<std::vector<int32_t>>();
  riffle_session* s = r.session(ids);
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_tokens = static_cast<int32_t>(g["greedy"].size());
  std::vector<int32_t> out;
  const auto take = [](void* user, size_t, const riffle_token* token) {
    if (token->id >= 0) static_cast<std::vector<int32_t>*>(user)->push_back(token->id);
    return true;
  };
  riffle_result result;
  r.check(generate(s, &o, take, &out, &result));
  if (result.finish == RIFFLE_FINISH_STOP) out.push_back(2);
  return out;
}

}  // namespace riffle::test
