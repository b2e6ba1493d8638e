// The members of an object in a fixed order, for objects with more members than a frame can hold as
// a set (Members).
#pragma once
#include <string>
#include <vector>

#include "grammar/expression.h"

namespace riffle::grammar {

struct OrderedMember {
  std::string key;  // as JSON spells it, with its quotation marks
  ExprId value;     // the member's value, after the key
  bool required;
};

// Returns members in this order, each at most once, then any number of others. extra: another
// member, or Expressions::kNever. separator: between two members.
ExprId ordered_members(const std::vector<OrderedMember>& members, ExprId extra, ExprId separator,
                       Expressions* out);

}  // namespace riffle::grammar
