// JSON Schema (drafts 6 to 2020-12) as a grammar: its texts are JSON texts that are valid by the
// schema. A schema that the grammar cannot express is refused with the place in it
// (schema_keywords.cpp has the keywords), so no text is invalid. Some valid texts are not in the
// grammar:
//   - white space only where models write it (JsonPieces::space)
//   - whole numbers only without fraction and exponent, other numbers with limits without exponent
//   - formats only as far as the patterns in formats.cpp
//   - names, and strings of enum, const, pattern and format, with the necessary escapes only
//   - more than Members::kMost properties only in the schema's order
#pragma once
#include <string_view>

#include "grammar/expression.h"

namespace riffle::grammar {

// Reads a schema; returns its rule. Throws RIFFLE_BAD_ARGUMENT with line and column or the place in
// the schema, RIFFLE_UNSUPPORTED, RIFFLE_BAD_TEXT.
uint32_t read_json_schema(std::string_view text, Expressions* out);

}  // namespace riffle::grammar
