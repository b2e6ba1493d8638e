// Grammars for a model's vocabulary.
#pragma once
#include <memory>
#include <string_view>

#include "grammar/grammar.h"
#include "model/model.h"

namespace riffle::grammar {

// Returns the tries of a model with a tokenizer. All grammars of a model share them.
std::shared_ptr<const TokenTries> token_tries(const Model& model);

// Compile a grammar. Throw the errors of riffle_grammar_create. The second takes the tags of
// reasoning from the model.
std::shared_ptr<const Grammar> compile_grammar(std::shared_ptr<const TokenTries> tokens,
                                               ReasoningTokens reasoning, riffle_grammar_kind kind,
                                               std::string_view text);
std::shared_ptr<const Grammar> compile_grammar(const Model& model,
                                               std::shared_ptr<const TokenTries> tokens,
                                               riffle_grammar_kind kind, std::string_view text);

}  // namespace riffle::grammar
