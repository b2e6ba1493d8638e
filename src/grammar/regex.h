// Regular expressions of ECMA 262, as JSON Schema's `pattern` has them: alternatives, groups,
// classes, repetitions (greedy or not: they have the same texts), ^ and $ at the ends. No
// look-around, back references, \b and \p.
#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "grammar/expression.h"

namespace riffle::grammar {

struct Regex {
  ExprId expr = Expressions::kNever;
  uint64_t min = 0, max = 0;  // characters of its texts; max UINT64_MAX: no limit
  // If the expression is one class, repeated min to max times: the class.
  std::optional<ExprId> repeated;
};

struct RegexOptions {
  // True: a text matches if a part of it does, as in JSON Schema. False: the whole text must.
  bool search = false;
  // Makes the expression of one character of a class; null: the character itself.
  std::function<ExprId(std::vector<CodeRange>)> chars;
};

// Throws RIFFLE_BAD_ARGUMENT with line and column, RIFFLE_UNSUPPORTED, RIFFLE_BAD_TEXT.
Regex read_regex(std::string_view text, const RegexOptions& options, Expressions* out);

}  // namespace riffle::grammar
