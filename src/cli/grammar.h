// --grammar and --json-schema: constraints on an answer.
#pragma once
#include <list>
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

// Grammars by text, so that equal texts are compiled once. A few grammars are kept.
class GrammarCache {
 public:
  // Throws Exit if the text is refused, each time that it is asked for.
  std::shared_ptr<const riffle_grammar> get(riffle_model* model, riffle_grammar_kind kind,
                                            const std::string& text);

 private:
  struct Entry {
    riffle_grammar_kind kind;
    std::string text;
    std::shared_ptr<const riffle_grammar> grammar;  // null: `error` says why
    std::string error;
    int code = EXIT_OK;
  };
  std::list<Entry> entries_;  // most recently used first
};

// Returns the same grammar for an answer that continues a text. Throws Exit, whose text does not
// name the continued text.
std::shared_ptr<const riffle_grammar> continued_grammar(const riffle_grammar* grammar,
                                                        const std::string& text);

// Returns whether an answer may begin with reasoning, before the part that the grammar constrains.
// message: the prompt was formed by a chat template.
const char* reasoning_of(bool message, bool in_reasoning, const Thinking& thinking);

}  // namespace riffle::cli
