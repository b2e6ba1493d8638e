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
#include <memory>
#include <string_view>

#include "grammar/expression.h"

namespace riffle::grammar {

// Reads a schema; returns its rule. Throws RIFFLE_BAD_ARGUMENT with line and column or the place in
// the schema, RIFFLE_UNSUPPORTED, RIFFLE_BAD_TEXT.
uint32_t read_json_schema(std::string_view text, Expressions* out);

// Reads parts of a schema one by one.
class JsonSchemaParts {
 public:
  // Throws as read_json_schema does. *out outlives the parts.
  JsonSchemaParts(std::string_view text, Expressions* out);
  ~JsonSchemaParts();
  // Returns the rule of the schema at a JSON pointer (RFC 6901); "": the whole. References in it
  // are to places in the whole text.
  uint32_t rule(std::string_view pointer);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace riffle::grammar
