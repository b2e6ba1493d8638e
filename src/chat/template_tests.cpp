// Tests: the functions after `is`.
#include <algorithm>

#include "chat/python_text.h"
#include "chat/template_calls.h"
#include "chat/template_syntax.h"

namespace riffle {
namespace {

constexpr const char* kKindTests[] = {
    "defined", "undefined", "none",   "boolean", "true",     "false",    "integer",
    "float",   "number",    "string", "mapping", "sequence", "iterable", "callable",
    "odd",     "even",      "lower",  "upper",   "escaped",  "filter",   "test"};
constexpr const char* kPairTests[] = {
    "eq", "==", "equalto", "ne",          "!=", "lt", "<",  "lessthan", "le",
    "<=", "gt", ">",       "greaterthan", "ge", ">=", "in", "sameas",   "divisibleby"};

template <size_t N>
bool among(const char* const (&names)[N], std::string_view name) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* known) { return name == known; });
}

bool of_pair(std::string_view name, const Value& a, const Value& b, TemplateBudget& budget) {
  if (name == "eq" || name == "==" || name == "equalto") return equal(a, b, budget);
  if (name == "ne" || name == "!=") return !equal(a, b, budget);
  if (name == "in") return contains(a, b, budget);
  if (name == "sameas") {
    if (a.kind() != b.kind()) return false;
    // In Python, equal strings and small numbers are usually one object.
    return a.identity()
               ? a.identity() == b.identity() || (a.is(Value::STRING) && a.str() == b.str())
               : equal(a, b, budget);
  }
  if (name == "divisibleby")
    return truth(equal(binary("%", a, b, budget), Value::integer(0), budget)
                     ? Value::boolean(true)
                     : Value::boolean(false));
  const int order = compare(a, b, budget);
  if (name == "lt" || name == "<" || name == "lessthan") return order < 0;
  if (name == "le" || name == "<=") return order <= 0;
  if (name == "gt" || name == ">" || name == "greaterthan") return order > 0;
  return order >= 0;
}

bool is_in_case(const Value& value, bool upper, TemplateBudget& budget) {
  const Value text = to_text(value, budget);
  bool any = false, all = true;
  const std::string_view view = text.text().view();
  for (size_t pos = 0; pos < view.size(); pos += char_bytes(view, pos)) {
    const char32_t c = char_at(view, pos);
    any = any || is_cased(c);
    all = all && !is_titled(c) && !(upper ? is_lower(c) : is_upper(c));
  }
  return any && all;
}

}  // namespace

bool is_template_test(std::string_view name) {
  return among(kKindTests, name) || among(kPairTests, name);
}

bool apply_test(std::string_view name, const Value& of, const TemplateArguments& given,
                TemplateBudget& budget) {
  budget.step();
  if (name == "lower" || name == "upper")
    budget.bytes(of.is(Value::STRING) ? of.text().size() / 8 : 0);
  const std::string what = "test " + std::string(name);
  if (among(kPairTests, name)) {
    const BoundArguments arguments(what, given, {"other"}, 1);
    return of_pair(name, of, arguments[0], budget);
  }
  if (!among(kKindTests, name))
    template_stop(TemplateStop::UNKNOWN, "it has the test '" + std::string(name) + "'");
  const BoundArguments arguments(what, given, {});
  if (name == "defined") return !of.is(Value::UNDEFINED);
  if (name == "undefined") return of.is(Value::UNDEFINED);
  if (name == "none") return of.is(Value::NONE);
  if (name == "boolean") return of.is(Value::BOOL);
  if (name == "true") return of.is(Value::BOOL) && of.flag();
  if (name == "false") return of.is(Value::BOOL) && !of.flag();
  if (name == "integer") return of.is(Value::INTEGER);
  if (name == "float") return of.is(Value::REAL);
  if (name == "number") return of.is_number();
  if (name == "string") return of.is(Value::STRING);
  if (name == "mapping") return of.is(Value::DICT);
  if (name == "sequence")
    return of.is(Value::STRING) || of.is(Value::DICT) || of.is(Value::UNDEFINED) ||
           of.is_list(TemplateList::LIST) || of.is_list(TemplateList::TUPLE);
  if (name == "iterable")
    return of.is(Value::STRING) || of.is(Value::DICT) || of.is(Value::UNDEFINED) ||
           of.is(Value::LIST) || of.is(Value::LOOP);
  if (name == "callable")
    return of.is(Value::FUNCTION) || of.is(Value::METHOD) || of.is(Value::MACRO) ||
           of.is(Value::UNDEFINED) || of.is(Value::LOOP);
  if (name == "odd" || name == "even") {
    const Value rest = binary("%", of, Value::integer(2), budget);
    return equal(rest, Value::integer(name == "odd"), budget);
  }
  if (name == "lower" || name == "upper") return is_in_case(of, name == "upper", budget);
  if (name == "escaped") return of.is(Value::STRING) && of.markup();
  if (!of.is(Value::STRING)) wrong_type(what, of, "a string");
  return name == "filter" ? is_template_filter(of.str()) : is_template_test(of.str());
}

}  // namespace riffle
