#include "cli/grammar.h"

#include <algorithm>

#include "cli/help.h"

namespace riffle::cli {
namespace {

// Standard input may hold the prompt.
std::string not_stdin(const std::string& value) {
  return value == "-" ? "'-' would be standard input, which holds the prompt; expected a file's "
                        "name or the text itself"
                      : not_empty(value);
}

}  // namespace

void add_grammar_flags(CLI::App& app, GrammarFlags& flags) {
  const Flag schema = add_text(app, "--json-schema", flags.schema,
                               "JSON Schema that the answer follows: a file, or the schema itself")
                          .group(kAnswerGroup)
                          .value("FILE")
                          .check(not_stdin);
  add_text(app, "--grammar", flags.gbnf,
           "GBNF grammar (llama.cpp's format) that the answer follows: a file, or the grammar "
           "itself")
      .group(kSamplingGroup)
      .value("FILE")
      .check(not_stdin)
      .excludes(schema);
}

GrammarText read_grammar(const GrammarFlags& flags) {
  const bool gbnf = !flags.gbnf.empty();
  const std::string flag = gbnf ? "--grammar" : "--json-schema";
  const std::string& value = gbnf ? flags.gbnf : flags.schema;
  GrammarText out;
  if (value.empty()) return out;
  if (!gbnf) out.kind = RIFFLE_GRAMMAR_JSON_SCHEMA;
  // llama.cpp's flags take the text itself. No file name looks like this.
  const size_t first = value.find_first_not_of(kSpaces);
  if (gbnf ? value.find("::=") != value.npos : first != value.npos && value[first] == '{') {
    out.name = flag;
    out.text = value;
    return out;
  }
  out.name = value;
  try {
    out.text = read_file(value);
  } catch (const Exit& e) {
    throw Exit(e.code(), flag + ": " + e.what() +
                             (gbnf ? "; expected a file, or a grammar, which holds ::="
                                   : "; expected a file, or a schema, which begins with {"));
  }
  return out;
}

Grammar make_grammar(riffle_model* model, const GrammarText& grammar) {
  if (grammar.name.empty()) return nullptr;
  char err[1024];
  riffle_grammar* made = nullptr;
  const riffle_status status = riffle_grammar_create(model, grammar.kind, grammar.text.data(),
                                                     grammar.text.size(), &made, err, sizeof err);
  if (status != RIFFLE_OK) {
    const bool wrong =
        status == RIFFLE_BAD_ARGUMENT || status == RIFFLE_UNSUPPORTED || status == RIFFLE_BAD_TEXT;
    throw Exit(wrong ? EXIT_USAGE : exit_code_of(status), grammar.name + ": " + err);
  }
  return Grammar(made);
}

}  // namespace riffle::cli
