// Arguments of calls in templates.
#include <algorithm>

#include "chat/template_calls.h"

namespace riffle {

void TemplateArguments::add(const std::string& name, Value value, TemplateBudget& budget) {
  if (name == "*") {
    for (Value& item : items_of(value, budget)) list.push_back(std::move(item));
  } else if (name == "**") {
    if (!value.is(Value::DICT)) wrong_type("**", value, "a dict");
    budget.bytes(value.dict().entries.size() * sizeof(keywords[0]));
    for (const auto& [key, item] : value.dict().entries) {
      if (!key.is(Value::STRING)) wrong_type("**", key, "names");
      for (const auto& known : keywords) {
        budget.step();
        if (known.first == key.str())
          template_stop(TemplateStop::FAILED, "it gives the argument " + known.first + " twice");
      }
      keywords.emplace_back(key.str(), item);
    }
  } else {
    keywords.emplace_back(name, std::move(value));
  }
}

void wrong_type(std::string_view what, const Value& found, const char* expected) {
  template_stop(TemplateStop::FAILED, std::string(what) + " has a value of type " +
                                          type_name(found) + ", expected " + expected);
}

BoundArguments::BoundArguments(std::string_view what, const TemplateArguments& given,
                               std::initializer_list<const char*> names, size_t required)
    : what_(what), values_(names.size()) {
  const auto refuse = [&](const std::string& why) {
    template_stop(TemplateStop::FAILED, what_ + " is given " + why);
  };
  if (given.list.size() > names.size())
    refuse(std::to_string(given.list.size()) + " arguments, expected at most " +
           std::to_string(names.size()));
  for (size_t i = 0; i < given.list.size(); i++) values_[i] = &given.list[i];
  for (const auto& keyword : given.keywords) {
    const std::string& name = keyword.first;
    const auto at =
        std::find_if(names.begin(), names.end(), [&](const char* known) { return name == known; });
    const size_t i = static_cast<size_t>(at - names.begin());
    if (at == names.end() || values_[i])
      refuse("the argument " + name + ", which it does not take or has already");
    values_[i] = &keyword.second;
  }
  for (size_t i = 0; i < required; i++) {
    if (!values_[i]) refuse("too few arguments");
  }
}

int64_t BoundArguments::whole(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  if (!values_[i]->is_whole()) wrong_type(what_, *values_[i], "a whole number");
  return values_[i]->integer();
}

const SourcedText* BoundArguments::text(size_t i) const {
  if (!has(i) || values_[i]->is(Value::NONE)) return nullptr;
  if (!values_[i]->is(Value::STRING)) wrong_type(what_, *values_[i], "a string");
  return &values_[i]->text();
}

}  // namespace riffle
