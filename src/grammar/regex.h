// Regular expressions of ECMA 262, as JSON Schema's `pattern` has them: alternatives, groups,
// classes, repetitions (greedy or not, which match the same texts), ^ and $ at the ends.
// Look-around, back references, \b and \p are not supported.
#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/expression.h"

namespace riffle::grammar {

struct Regex {
  ExprId expr = Expressions::kNever;
  uint64_t min = 0, max = 0;  // lengths of its texts in characters; max UINT64_MAX: no limit
  // The class, if the expression is one class repeated min to max times.
  std::optional<ExprId> repeated;
};

struct RegexOptions {
  // True: a text matches if a part of it does, as in JSON Schema. False: the whole text must match.
  bool search = false;
  // Makes the expression of one character of a class; null: the character itself.
  std::function<ExprId(std::vector<CodeRange>)> chars;
};

// Reads a regular expression. Throws RIFFLE_BAD_ARGUMENT with line and column, RIFFLE_UNSUPPORTED,
// RIFFLE_BAD_TEXT.
Regex read_regex(std::string_view text, const RegexOptions& options, Expressions* out);

}  // namespace riffle::grammar
