// GBNF, the notation of llama.cpp for grammars:
//
//     # a comment
//     root   ::= item ("," " "? item)*
//     item   ::= "yes" | "no" | number
//     number ::= [0-9]{1,3} ("." [0-9]+)?
//
// Literals and classes take the escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH; a class
// may be negated with ^; . is any character. A rule may continue on the next line inside
// parentheses, after ::= and after |.
#pragma once
#include <string_view>

#include "grammar/expression.h"

namespace riffle::grammar {

// Reads a grammar, whose rules go to *out, and returns the rule `root`. Throws RIFFLE_BAD_ARGUMENT
// with line and column, RIFFLE_UNSUPPORTED, RIFFLE_BAD_TEXT.
uint32_t read_gbnf(std::string_view text, Expressions* out);

}  // namespace riffle::grammar
