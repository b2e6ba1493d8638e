// Grammars for a model's vocabulary.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "grammar/grammar.h"
#include "model/model.h"

namespace riffle::grammar {

// Returns the tries of a model with a tokenizer. All grammars of a model share them.
std::shared_ptr<const TokenTries> token_tries(const Model& model);

// Marks a marker that only a control token can produce. No text in UTF-8 has this byte.
inline constexpr char kOnlyControl = '\xff';
// Does the same for grammars in whose texts these control tokens stand as the vocabulary spells
// them. If a marker begins with kOnlyControl, it stands in the grammar with this byte, and tokens
// of text cannot spell it.
std::shared_ptr<const TokenTries> marked_tries(const Model& model,
                                               std::span<const std::string_view> markers);

// Reads a grammar, whose rules go to *out, and returns its rule. Throws the errors of
// riffle_grammar_create.
uint32_t read_grammar(riffle_grammar_kind kind, std::string_view text, Expressions* out);
// Compiles expressions for the model; rule: the one with which texts begin.
std::shared_ptr<const Grammar> compiled_grammar(const Model& model,
                                                std::shared_ptr<const TokenTries> tokens,
                                                Expressions expressions, uint32_t rule);

// Compile a grammar. Throw the errors of riffle_grammar_create. The second takes the tags of
// reasoning from the model.
std::shared_ptr<const Grammar> compile_grammar(std::shared_ptr<const TokenTries> tokens,
                                               ReasoningTokens reasoning, riffle_grammar_kind kind,
                                               std::string_view text);
std::shared_ptr<const Grammar> compile_grammar(const Model& model,
                                               std::shared_ptr<const TokenTries> tokens,
                                               riffle_grammar_kind kind, std::string_view text);

// Makes the grammar of answers that continue a text. Throws the error of riffle_grammar_continue.
std::shared_ptr<const riffle_grammar> continued(const riffle_grammar& grammar,
                                                std::string_view text);

}  // namespace riffle::grammar
