// Tools of a request: functions that the model may call.
#pragma once
#include <string>
#include <vector>

#include "util/json.h"

namespace riffle::requests {

struct Tool {
  std::string name;
  Json definition;  // the whole object: {"type": "function", "function": {...}}
  // Returns the schema of the arguments; null: there is none.
  const Json* parameters() const { return definition.at_pointer("/function/parameters"); }
};

struct ToolUse {
  std::vector<Tool> tools;
  bool given = false;  // the request has the field, which may be an empty list
  enum Choice { AUTO, NONE, REQUIRED, NAMED } choice = AUTO;
  std::string named;     // NAMED: the function
  bool parallel = true;  // the answer may have several calls

  bool must_call() const { return choice == REQUIRED || choice == NAMED; }
  bool offered() const { return !tools.empty() && choice != NONE; }
  const Tool* find(std::string_view name) const {
    for (const Tool& tool : tools)
      if (tool.name == name) return &tool;
    return nullptr;
  }
};

}  // namespace riffle::requests
