// Operations of templates on values: attributes, items, methods, filters, tests, operators. Each
// does the same as Jinja's immutable sandbox, or throws TemplateStop.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/template_value.h"

namespace riffle {

struct TemplateArguments {
  std::vector<Value> list;
  std::vector<std::pair<std::string, Value>> keywords;
  // Adds an argument given by name; for "*" the items of a list, for "**" the entries of a dict.
  void add(const std::string& name, Value value, TemplateBudget& budget);
};

// The arguments of one call, matched to its parameters. Throws TemplateStop if there are too many,
// or if one is unknown, repeated or missing.
class BoundArguments {
 public:
  BoundArguments(std::string_view what, const TemplateArguments& given,
                 std::initializer_list<const char*> names, size_t required = 0);
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  bool flag(size_t i, bool otherwise) const { return has(i) ? truth(*values_[i]) : otherwise; }
  int64_t whole(size_t i, int64_t otherwise) const;
  // Returns a string; null if the argument is left out or none.
  const SourcedText* text(size_t i) const;

 private:
  std::string what_;
  std::vector<const Value*> values_;
};

// Return of.name and of[key], or UNDEFINED if there is none.
Value get_attribute(const Value& of, const std::string& name, TemplateBudget& budget);
Value get_item(const Value& of, const Value& key, TemplateBudget& budget);
// Returns of[start:stop:step]. bounds: the three; UNDEFINED or NONE: left out.
Value get_slice(const Value& of, const Value (&bounds)[3], TemplateBudget& budget);

Value apply_filter(std::string_view name, const Value& of, const TemplateArguments& given,
                   TemplateBudget& budget);
bool apply_test(std::string_view name, const Value& of, const TemplateArguments& given,
                TemplateBudget& budget);
// Calls a method. of: a value of kind METHOD.
Value call_method(const Value& of, const TemplateArguments& given, TemplateBudget& budget);
bool has_method(const Value& of, std::string_view name);

// + - * / // % ** ~
Value binary(std::string_view sign, const Value& a, const Value& b, TemplateBudget& budget);
Value negative(const Value& value);

// format % arguments and format.format(arguments).
SourcedText percent_format(const SourcedText& format, const Value& arguments,
                           TemplateBudget& budget);
SourcedText brace_format(const SourcedText& format, const TemplateArguments& given,
                         TemplateBudget& budget);
// Returns text with the characters < > & ' " as HTML entities.
SourcedText escaped(const SourcedText& text);

[[noreturn]] void wrong_type(std::string_view what, const Value& found, const char* expected);

}  // namespace riffle
