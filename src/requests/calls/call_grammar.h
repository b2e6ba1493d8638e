// Grammars of calls: the functions' schemas in the syntax of each format (CallFormat::grammar).
#pragma once
#include <span>

#include "grammar/expression.h"
#include "requests/tools.h"

namespace riffle::requests {

using ToolList = std::span<const Tool* const>;

grammar::ExprId hermes_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId xml_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId glm_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId mistral_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId mistral_list_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId llama_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId gemma_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId lfm_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId harmony_grammar(ToolList tools, bool several, grammar::Expressions* e);
grammar::ExprId llama_answers(ToolList tools, bool several, grammar::ExprId text,
                              grammar::Expressions* e);
grammar::ExprId harmony_answers(ToolList tools, bool several, grammar::ExprId text,
                                grammar::Expressions* e);

}  // namespace riffle::requests
