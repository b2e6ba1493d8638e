// Filters in files of their own: those of numbers.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "chat/template_calls.h"

namespace riffle {

// One use of a filter, with its value and arguments.
struct FilterUse {
  const std::string name;
  const Value& of;
  const TemplateArguments& given;
  TemplateBudget& budget;

  BoundArguments bound(std::initializer_list<const char*> names, size_t required = 0) const {
    return BoundArguments("filter " + name, given, names, required);
  }
  Value text() const { return to_text(of, budget); }
  Value generator(std::vector<Value> items) const {
    return Value::list(std::move(items), TemplateList::GENERATOR);
  }
};

namespace number_filters {

Value to_int(const FilterUse& use);
Value to_float(const FilterUse& use);
Value rounded(const FilterUse& use);
Value absolute(const FilterUse& use);

}  // namespace number_filters
}  // namespace riffle
