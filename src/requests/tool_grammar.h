// Constrains answers to calls of tools.
#pragma once
#include "requests/calls/formats.h"
#include "requests/prepare.h"

namespace riffle::requests {

// Makes the answers with these tools. text: answers without a call, Expressions::kNever: any text.
// Throws RIFFLE_UNSUPPORTED and RIFFLE_BAD_ARGUMENT with the function and the place in its schema.
grammar::ExprId tool_answers(const ToolUse& tools, const CallFormat& format, grammar::ExprId text,
                             grammar::Expressions* e);

// Returns the grammar of an answer with these tools; null: none. With a choice that asks for a call
// the answer is calls alone. Otherwise text is free, or follows answer's grammar, and the calls in
// it are constrained from their beginning on if the schemas allow it.
// Throws Refused.
GrammarCache::Grammar tool_grammar(const ToolUse& tools, const std::optional<AnswerGrammar>& answer,
                                   const CallFormat& format, const Answering& by);

}  // namespace riffle::requests
