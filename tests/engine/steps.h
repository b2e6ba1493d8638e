// Running a few steps and comparing what came out bit by bit.
#pragma once
#include <cstring>

#include "tests/engine/test_model.h"
#include "tests/rounds.h"

namespace riffle::test {

// Prefills, then takes steps with given tokens; the logits after each.
inline std::vector<std::vector<float>> run(Runtime& r, riffle_session* s,
                                           const std::vector<int32_t>& prompt,
                                           const std::vector<int32_t>& steps) {
  r.check(riffle_prefill(s, prompt.data(), prompt.size(), nullptr, nullptr));
  std::vector<std::vector<float>> out{r.logits(s)};
  for (int32_t t : steps) {
    r.check(riffle_step(r.context, &s, &t, 1));
    out.push_back(r.logits(s));
  }
  return out;
}

// Settings under which psa and topk leave out many blocks of a prompt of a thousand tokens.
inline ContextOptions selective(SelectorKind selector) {
  ContextOptions o = options();
  o.n_ctx = 4096;
  o.n_threads = usual_threads();
  o.block_size = 32;
  o.selection.selector = selector;
  o.selection.microbatch = 4;
  o.selection.epsilon = 0.9f;
  o.selection.budget = 0.2f;
  return o;
}

// Does the same as run in a session that steps together with two shorter ones.
inline std::vector<std::vector<float>> run_first_of_three(Runtime& r,
                                                          const std::vector<int32_t>& prompt,
                                                          const std::vector<int32_t>& steps) {
  riffle_session* s[3] = {r.session(), r.session(), r.session()};
  for (int i = 0; i < 3; ++i) {
    const auto own = i == 0 ? prompt : some_tokens(i == 1 ? 40 : 600, 40 + i);
    r.check(riffle_prefill(s[i], own.data(), own.size(), nullptr, nullptr));
  }
  std::vector<std::vector<float>> out{r.logits(s[0])};
  for (int32_t t : steps) {
    const int32_t tokens[3] = {t, 500, 600};
    r.check(riffle_step(r.context, s, tokens, 3));
    out.push_back(r.logits(s[0]));
  }
  return out;
}

inline bool same_bits(const std::vector<std::vector<float>>& a,
                      const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  return true;
}

}  // namespace riffle::test
