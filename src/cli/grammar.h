// --grammar and --json-schema: what an answer may say.
#pragma once
#include <memory>
#include <string>

#include "cli/common.h"

namespace riffle::cli {

struct GrammarFlags {
  std::string gbnf, schema;  // a file, or the text itself; "": not given
};
void add_grammar_flags(CLI::App& app, GrammarFlags& flags);

struct GrammarDeleter {
  void operator()(riffle_grammar* p) const { riffle_grammar_free(p); }
};
using Grammar = std::unique_ptr<riffle_grammar, GrammarDeleter>;

// Null if no flag was given. Throws Exit, with the file's name.
Grammar load_grammar(riffle_model* model, const GrammarFlags& flags);

// Whether an answer may begin with reasoning before what the grammar constrains. message: the
// prompt was formed by a chat template.
riffle_reasoning reasoning_of(bool message, bool in_reasoning, riffle_thinking thinking);

}  // namespace riffle::cli
