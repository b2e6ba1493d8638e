// Constrains answers to calls of tools.
#pragma once
#include "requests/calls/formats.h"
#include "requests/prepare.h"

namespace riffle::requests {

// Returns the grammar of an answer with these tools; null: none. With a choice that asks for a call
// the answer is calls alone. Otherwise text is free, or follows answer's grammar, and the calls in
// it are constrained from their begin marker on, if the format has one and the schemas allow it.
// Throws Refused.
GrammarCache::Grammar tool_grammar(const ToolUse& tools, const std::optional<AnswerGrammar>& answer,
                                   const CallFormat& format, const Answering& by);

}  // namespace riffle::requests
