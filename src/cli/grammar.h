// --grammar and --json-schema: constraints on an answer.
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

// The grammar that a flag asks for, before there is a model.
struct GrammarText {
  riffle_grammar_kind kind = RIFFLE_GRAMMAR_GBNF;
  std::string name;  // the file's name, or the flag's if it holds the text; "": no flag
  std::string text;
};
// Throws Exit: EXIT_RUN if a file cannot be read.
GrammarText read_grammar(const GrammarFlags& flags);
// Compiles the grammar; null if no flag was given. Throws Exit: EXIT_USAGE if the text is wrong.
Grammar make_grammar(riffle_model* model, const GrammarText& grammar);

}  // namespace riffle::cli
