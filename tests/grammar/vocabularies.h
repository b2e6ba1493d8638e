// Grammars over small vocabularies that a test can look through.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/model_grammar.h"

namespace riffle::test {

struct Vocabulary {
  std::vector<std::string> texts;  // "": a control token
  int32_t end = 0;
  std::shared_ptr<const grammar::TokenTries> tokens;

  explicit Vocabulary(std::vector<std::string> all) : texts(std::move(all)) {
    texts.insert(texts.begin(), {"", ""});  // an end token and another control token
    tokens = std::make_shared<const grammar::TokenTries>(
        static_cast<int32_t>(texts.size()), [&](int32_t id) { return texts[id]; },
        std::vector<int32_t>{end});
  }
};

// Every byte is a token.
inline Vocabulary bytes() {
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  return Vocabulary(std::move(all));
}

inline std::shared_ptr<const grammar::Grammar> compiled(
    const Vocabulary& v, std::string_view text, riffle_grammar_kind kind = RIFFLE_GRAMMAR_GBNF,
    grammar::ReasoningTokens reasoning = {}) {
  return grammar::compile_grammar(v.tokens, std::move(reasoning), kind, text);
}

// Tells whether the grammar has this text.
inline bool accepts(const std::shared_ptr<const grammar::Grammar>& g, std::string_view text,
                    grammar::Before before = {}) {
  grammar::Matcher m(g, before);
  return m.accept(text) && m.complete();
}
// Tells whether a text of the grammar may begin with this text.
inline bool begins(const std::shared_ptr<const grammar::Grammar>& g, std::string_view text) {
  return grammar::Matcher(g, {}).accept(text);
}

inline bool bit(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

}  // namespace riffle::test
