// A hostile text as a grammar: it is refused, or compiled and followed for a few tokens. A mask
// must say the same as a look at each token.
#pragma once
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/model_grammar.h"
#include "util/error.h"

namespace riffle::test {

inline void follow_grammar(riffle_grammar_kind kind, std::string_view text) {
  static const std::vector<std::string> words = {"",
                                                 "{\"",
                                                 "\": ",
                                                 "\", \"",
                                                 "[1, 2",
                                                 "true",
                                                 "null",
                                                 "\xc3",
                                                 "\xa9",
                                                 "\xc3\xa9",
                                                 "abc",
                                                 "  ",
                                                 "a long token, which limits may cut",
                                                 "-0.5e",
                                                 "\\u00",
                                                 "}"};
  static const auto tokens = std::make_shared<const grammar::TokenTries>(
      static_cast<int32_t>(words.size()) + 256,
      [](int32_t id) {
        const auto i = static_cast<size_t>(id);
        return i < words.size() ? words[i] : std::string(1, static_cast<char>(i - words.size()));
      },
      std::vector<int32_t>{0});
  try {
    const auto made = grammar::compile_grammar(tokens, {}, kind, text);
    grammar::Matcher m(made, {});
    std::vector<uint32_t> mask(tokens->mask_words());
    for (int step = 0; step < 6; ++step) {
      if (!m.allowed(true, mask)) return;
      std::string next;
      for (int32_t t = 1; t < tokens->n_tokens(); ++t) {
        const auto i = static_cast<size_t>(t);
        const std::string one =
            i < words.size() ? words[i] : std::string(1, static_cast<char>(i - words.size()));
        grammar::Matcher copy = m;
        const bool allowed = (mask[i / 32] >> (i % 32) & 1) != 0;
        if (copy.accept(one) != allowed) std::abort();
        if (allowed && (next.empty() || t % 7 == step)) next = one;
      }
      if (next.empty()) return;
      m.accept(next);
    }
  } catch (const Error&) {
  }
}

}  // namespace riffle::test
