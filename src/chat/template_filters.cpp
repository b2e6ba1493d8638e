// Filters: the functions after a bar.
#include "chat/template_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/python_text.h"
#include "chat/template_calls.h"
#include "chat/template_syntax.h"
#include "util/c_locale.h"
#include "util/error.h"

namespace riffle {
namespace {

using Use = FilterUse;

// Reads a number of at most 9 digits.
int64_t whole_number(std::string_view digits) {
  int64_t n = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return n;
}

// Returns a part of an item, such as a.b.0, which filters like map and sort take as attribute.
Value part_of(Value item, const Value& attribute, TemplateBudget& budget) {
  if (!attribute.is(Value::STRING)) return get_item(item, attribute, budget);
  std::string_view left = attribute.text().view();
  for (bool more = true; more;) {
    const size_t point = left.find('.');
    more = point != left.npos;
    const std::string name(left.substr(0, point));
    if (more) left.remove_prefix(point + 1);
    const bool digits = !name.empty() && name.find_first_not_of("0123456789") == name.npos;
    item = digits && name.size() < 10 ? get_item(item, Value::integer(whole_number(name)), budget)
                                      : get_item(item, Value::string(name), budget);
  }
  return item;
}

Value without_case(const Value& value, TemplateBudget& budget) {
  if (!value.is(Value::STRING)) return value;
  budget.bytes(value.text().size() + sizeof(SourcedText));
  return Value::string(with_case(value.text(), Case::LOWER));
}

// Returns the value by which sort, min, max and unique compare an item.
Value key_of(const Value& item, const Value* attribute, bool with_case, TemplateBudget& budget) {
  const Value part = attribute ? part_of(item, *attribute, budget) : item;
  return with_case ? part : without_case(part, budget);
}

const Value* given_or_none(const BoundArguments& arguments, size_t i) {
  return arguments.has(i) && !arguments[i].is(Value::NONE) ? &arguments[i] : nullptr;
}

// Returns the second of each pair, sorted by the first.
Value sorted_by(std::vector<std::pair<Value, Value>> keyed, bool reverse, TemplateBudget& budget) {
  // Equal items keep their order, as in Python, in a reversed sort too.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first, budget) < 0 : compare(a.first, b.first, budget) < 0;
  });
  std::vector<Value> items;
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return Value::list(std::move(items));
}

int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Value::UNDEFINED: return 0;
    case Value::STRING: return static_cast<int64_t>(char_count(value.text().view()));
    case Value::DICT: return static_cast<int64_t>(value.dict().entries.size());
    case Value::LIST:
      if (value.is_list(TemplateList::GENERATOR)) break;
      return static_cast<int64_t>(value.list().items.size());
    case Value::LOOP: return static_cast<int64_t>(value.loop().items.size());
    default: break;
  }
  wrong_type("filter length", value, "one with a length");
}

// ---- text

Value trim(const Use& u) {
  const BoundArguments arguments = u.bound({"chars"});
  TemplateArguments chars;
  if (arguments.has(0)) chars.list.push_back(arguments[0]);
  return call_method(Value::method(u.text(), "strip"), chars, u.budget);
}

Value changed_case(const Use& u, Case what) {
  u.bound({});
  const Value text = u.text();
  u.budget.bytes(text.text().size());
  return Value::string(with_case(text.text(), what), text.markup());
}

// Words begin only after spaces, hyphens and opening brackets, as in Jinja's own title().
Value title(const Use& u) {
  u.bound({});
  const Value text = u.text();
  const std::string_view all = text.text().view();
  u.budget.bytes(2 * all.size() + 16);
  SourcedText out;
  const auto separates = [&](size_t pos) {
    const char32_t c = char_at(all, pos);
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
  };
  for (size_t pos = 0; pos < all.size();) {
    size_t end = pos;
    const bool separator = separates(pos);
    while (end < all.size() && separates(end) == separator) end += char_bytes(all, end);
    const size_t first = pos + char_bytes(all, pos);
    out.append(with_case(text.text().part(pos, first), Case::UPPER));
    out.append(with_case(text.text().part(first, end), Case::LOWER));
    pos = end;
  }
  return Value::string(std::move(out), text.markup());
}

Value replace(const Use& u) {
  const BoundArguments arguments = u.bound({"old", "new", "count"}, 2);
  TemplateArguments given;
  given.list = {to_text(arguments[0], u.budget), to_text(arguments[1], u.budget)};
  if (given_or_none(arguments, 2)) given.list.push_back(arguments[2]);
  const Value plain = Value::string(u.text().text());
  return call_method(Value::method(plain, "replace"), given, u.budget);
}

Value join(const Use& u) {
  const BoundArguments arguments = u.bound({"d", "attribute"});
  const Value between = arguments.has(0) ? to_text(arguments[0], u.budget) : Value::string("");
  const Value* const attribute = given_or_none(arguments, 1);
  SourcedText out;
  bool first = true;
  for (const Value& item : items_of(u.of, u.budget)) {
    u.budget.bytes(between.text().size() + 16);
    if (!first) out.append(between.text());
    first = false;
    append_text(attribute ? part_of(item, *attribute, u.budget) : item, &out, u.budget);
  }
  return Value::string(std::move(out));
}

Value indent(const Use& u) {
  const BoundArguments arguments = u.bound({"width", "first", "blank"});
  const Value text = u.text();
  SourcedText margin;
  if (arguments.has(0) && arguments[0].is(Value::STRING)) {
    margin = arguments[0].text();
  } else {
    const int64_t width = std::clamp<int64_t>(arguments.whole(0, 4), 0, 1 << 20);
    margin.append(std::string(static_cast<size_t>(width), ' '));
  }
  const bool first = arguments.flag(1, false), blank = arguments.flag(2, false);
  TemplateArguments none;
  // A line break is added, as in Jinja, so that a text that ends in one keeps it.
  SourcedText whole = text.text();
  whole.append("\n");
  const std::vector<Value> lines = items_of(
      call_method(Value::method(Value::string(whole), "splitlines"), none, u.budget), u.budget);
  SourcedText out;
  for (size_t i = 0; i < lines.size(); i++) {
    u.budget.bytes(margin.size() + lines[i].text().size() + 1);
    if (i > 0) out.append("\n");
    if (i == 0 ? first : blank || !lines[i].text().empty()) out.append(margin);
    out.append(lines[i].text());
  }
  return Value::string(std::move(out), text.markup());
}

Value to_json(const Use& u) {
  const BoundArguments arguments = u.bound({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = arguments.flag(0, false);
  style.sort_keys = arguments.flag(3, false);
  if (const Value* margin = given_or_none(arguments, 1)) {
    style.lines = true;
    if (margin->is(Value::STRING)) style.indent = margin->str();
    else
      style.indent.assign(
          static_cast<size_t>(std::clamp<int64_t>(arguments.whole(1, 0), 0, 1 << 16)), ' ');
  }
  style.between = style.lines ? "," : ", ";
  style.colon = ": ";
  if (const Value* separators = given_or_none(arguments, 2)) {
    const std::vector<Value> both = items_of(*separators, u.budget);
    if (both.size() != 2 || !both[0].is(Value::STRING) || !both[1].is(Value::STRING))
      wrong_type("filter tojson", *separators, "two separators");
    style.between = both[0].str();
    style.colon = both[1].str();
  }
  SourcedText out;
  append_json(u.of, style, &out, u.budget);
  return Value::string(std::move(out));
}

// ---- lists

Value first(const Use& u) {
  u.bound({});
  const std::vector<Value> items = items_of(u.of, u.budget);
  return items.empty() ? Value::undefined("first item") : items[0];
}

Value last(const Use& u) {
  u.bound({});
  if (u.of.is_list(TemplateList::GENERATOR)) wrong_type("filter last", u.of, "a list");
  const std::vector<Value> items = items_of(u.of, u.budget);
  return items.empty() ? Value::undefined("last item") : items.back();
}

Value reversed(const Use& u) {
  u.bound({});
  if (u.of.is_list(TemplateList::GENERATOR)) {
    std::vector<Value> items = items_of(u.of, u.budget);
    std::reverse(items.begin(), items.end());
    return Value::list(std::move(items));
  }
  std::vector<Value> items = items_of(u.of, u.budget);
  std::reverse(items.begin(), items.end());
  if (!u.of.is(Value::STRING)) return u.generator(std::move(items));
  SourcedText out;
  for (const Value& item : items) out.append(item.text());
  return Value::string(std::move(out), u.of.markup());
}

Value sum(const Use& u) {
  const BoundArguments arguments = u.bound({"attribute", "start"});
  const Value* const attribute = given_or_none(arguments, 0);
  Value total = arguments.has(1) ? arguments[1] : Value::integer(0);
  if (total.is(Value::STRING)) wrong_type("filter sum", total, "numbers");
  for (const Value& item : items_of(u.of, u.budget))
    total = binary("+", total, attribute ? part_of(item, *attribute, u.budget) : item, u.budget);
  return total;
}

Value smallest(const Use& u, bool largest) {
  const BoundArguments arguments = u.bound({"case_sensitive", "attribute"});
  const Value* const attribute = given_or_none(arguments, 1);
  const bool with_case = arguments.flag(0, false);
  const std::vector<Value> items = items_of(u.of, u.budget);
  if (items.empty()) return Value::undefined("item of an empty list");
  size_t best = 0;
  Value best_key = key_of(items[0], attribute, with_case, u.budget);
  for (size_t i = 1; i < items.size(); i++) {
    const Value key = key_of(items[i], attribute, with_case, u.budget);
    const int order = compare(key, best_key, u.budget);
    if (largest ? order <= 0 : order >= 0) continue;
    best = i;
    best_key = key;
  }
  return items[best];
}

Value sorted(const Use& u) {
  const BoundArguments arguments = u.bound({"reverse", "case_sensitive", "attribute"});
  const bool with_case = arguments.flag(1, false);
  const Value* const attribute = given_or_none(arguments, 2);
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items_of(u.of, u.budget)) {
    Value key;
    if (attribute && attribute->is(Value::STRING) &&
        attribute->str().find(',') != std::string::npos) {
      std::vector<Value> keys;
      std::string_view left = attribute->text().view();
      for (bool more = true; more;) {
        const size_t comma = left.find(',');
        more = comma != left.npos;
        const Value part = Value::string(left.substr(0, comma));
        keys.push_back(key_of(item, &part, with_case, u.budget));
        if (more) left.remove_prefix(comma + 1);
      }
      key = Value::list(std::move(keys));
    } else {
      key = key_of(item, attribute, with_case, u.budget);
    }
    keyed.emplace_back(std::move(key), std::move(item));
  }
  return sorted_by(std::move(keyed), arguments.flag(0, false), u.budget);
}

Value unique(const Use& u) {
  const BoundArguments arguments = u.bound({"case_sensitive", "attribute"});
  const Value* const attribute = given_or_none(arguments, 1);
  std::vector<Value> kept, keys;
  for (const Value& item : items_of(u.of, u.budget)) {
    Value key = key_of(item, attribute, arguments.flag(0, false), u.budget);
    if (key.is(Value::DICT) || key.is_list(TemplateList::LIST))
      wrong_type("filter unique", key, "a key");
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& other) { return equal(key, other, u.budget); });
    if (seen) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return u.generator(std::move(kept));
}

// Returns the arguments from number `from` on: map, select and the like pass them on.
TemplateArguments rest_of(const TemplateArguments& given, size_t from) {
  TemplateArguments rest;
  rest.keywords = given.keywords;
  for (size_t i = from; i < given.list.size(); i++) rest.list.push_back(given.list[i]);
  return rest;
}

std::string name_argument(const Use& u, size_t i) {
  if (u.given.list.size() <= i)
    template_stop(TemplateStop::FAILED, "filter " + u.name + " is given no name");
  if (!u.given.list[i].is(Value::STRING)) wrong_type("filter " + u.name, u.given.list[i], "a name");
  return u.given.list[i].str();
}

Value map(const Use& u) {
  std::vector<Value> out;
  if (!truth(u.of)) return u.generator({});  // false values, including none, give no items
  if (u.given.list.empty()) {
    const BoundArguments arguments = u.bound({"attribute", "default"}, 1);
    for (const Value& item : items_of(u.of, u.budget)) {
      Value part = part_of(item, arguments[0], u.budget);
      if (part.is(Value::UNDEFINED) && given_or_none(arguments, 1)) part = arguments[1];
      out.push_back(std::move(part));
    }
    return u.generator(std::move(out));
  }
  const std::string name = name_argument(u, 0);
  const TemplateArguments rest = rest_of(u.given, 1);
  for (const Value& item : items_of(u.of, u.budget))
    out.push_back(apply_filter(name, item, rest, u.budget));
  return u.generator(std::move(out));
}

Value select(const Use& u, bool wanted, bool by_attribute) {
  const size_t at = by_attribute ? 1 : 0;
  if (!truth(u.of)) return u.generator({});  // false values, including none, give no items
  if (by_attribute && u.given.list.empty())
    template_stop(TemplateStop::FAILED, "filter " + u.name + " is given no attribute");
  std::string test;
  if (u.given.list.size() > at) test = name_argument(u, at);
  const TemplateArguments rest = rest_of(u.given, at + 1);
  std::vector<Value> out;
  for (const Value& item : items_of(u.of, u.budget)) {
    const Value tested = by_attribute ? part_of(item, u.given.list[0], u.budget) : item;
    const bool so = test.empty() ? truth(tested) : apply_test(test, tested, rest, u.budget);
    if (so == wanted) out.push_back(item);
  }
  return u.generator(std::move(out));
}

Value batch(const Use& u) {
  const BoundArguments arguments = u.bound({"linecount", "fill_with"}, 1);
  const int64_t n = arguments.whole(0, 0);
  const std::vector<Value> items = items_of(u.of, u.budget);
  std::vector<Value> out, row;
  const auto put = [&] {
    out.push_back(Value::list(std::move(row)));
    row.clear();
  };
  for (const Value& item : items) {
    if (static_cast<int64_t>(row.size()) == n) put();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (const Value* fill = given_or_none(arguments, 1)) {
      u.budget.bytes(static_cast<size_t>(std::clamp<int64_t>(n, 0, 1 << 30)) * sizeof(Value));
      while (static_cast<int64_t>(row.size()) < n) row.push_back(*fill);
    }
    put();
  }
  return u.generator(std::move(out));
}

// ---- dictionaries

Value items(const Use& u) {
  u.bound({});
  if (u.of.is(Value::UNDEFINED)) return u.generator({});
  if (!u.of.is(Value::DICT)) wrong_type("filter items", u.of, "a dict");
  std::vector<Value> out;
  u.budget.bytes(u.of.dict().entries.size() * 4 * sizeof(Value));
  for (const auto& [key, value] : u.of.dict().entries)
    out.push_back(Value::list({key, value}, TemplateList::TUPLE));
  return u.generator(std::move(out));
}

Value dictsort(const Use& u) {
  const BoundArguments arguments = u.bound({"case_sensitive", "by", "reverse"});
  if (!u.of.is(Value::DICT)) wrong_type("filter dictsort", u.of, "a dict");
  const SourcedText* const by = arguments.text(1);
  if (by && by->str() != "key" && by->str() != "value")
    template_stop(TemplateStop::FAILED,
                  "filter dictsort has by='" + by->str() + "', expected 'key' or 'value'");
  const bool by_value = by && by->str() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : u.of.dict().entries) {
    keyed.emplace_back(key_of(by_value ? value : key, nullptr, arguments.flag(0, false), u.budget),
                       Value::list({key, value}, TemplateList::TUPLE));
  }
  return sorted_by(std::move(keyed), arguments.flag(2, false), u.budget);
}

// ---- the rest

Value otherwise(const Use& u) {
  const BoundArguments arguments = u.bound({"default_value", "boolean"});
  if (!u.of.is(Value::UNDEFINED) && !(arguments.flag(1, false) && !truth(u.of))) return u.of;
  return arguments.has(0) ? arguments[0] : Value::string("");
}

Value attribute(const Use& u) {
  const BoundArguments arguments = u.bound({"name"}, 1);
  if (!u.of.is(Value::NAMESPACE) && !u.of.is(Value::LOOP)) {
    // Items of a dict do not count, only attributes of Python's objects.
    if (u.of.is(Value::UNDEFINED)) get_attribute(u.of, "attr", u.budget);
    const std::string name = to_text(arguments[0], u.budget).str();
    return has_method(u.of, name) ? Value::method(u.of, name) : Value::undefined(name);
  }
  return get_attribute(u.of, to_text(arguments[0], u.budget).str(), u.budget);
}

Value format(const Use& u) {
  if (!u.given.list.empty() && !u.given.keywords.empty())
    template_stop(TemplateStop::FAILED, "filter format is given both names and values");
  Entries entries;
  for (const auto& [name, value] : u.given.keywords)
    entries.emplace_back(Value::string(name), value);
  const Value arguments = u.given.keywords.empty() ? Value::list(u.given.list, TemplateList::TUPLE)
                                                   : Value::dict(std::move(entries));
  return Value::string(percent_format(u.text().text(), arguments, u.budget));
}

Value word_count(const Use& u) {
  u.bound({});
  const Value text = u.text();
  int64_t n = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.text().size(); pos += char_bytes(text.text().view(), pos)) {
    const char32_t c = char_at(text.text().view(), pos);
    const bool word = char_kind(c) != CharKind::OTHER || c == '_';
    n += word && !in_word;
    in_word = word;
  }
  return Value::integer(n);
}

struct Filter {
  const char* name;
  Value (*apply)(const Use&);
};

constexpr Filter kFilters[] = {
    {"abs", number_filters::absolute},
    {"attr", attribute},
    {"batch", batch},
    {"capitalize", [](const Use& u) { return changed_case(u, Case::CAPITAL); }},
    {"count", [](const Use& u) { return u.bound({}), Value::integer(length_of(u.of)); }},
    {"d", otherwise},
    {"default", otherwise},
    {"dictsort", dictsort},
    {"e",
     [](const Use& u) {
       const Value t = u.text();
       u.budget.bytes(6 * t.text().size());
       return t.markup() ? t : Value::string(escaped(t.text()), true);
     }},
    {"escape",
     [](const Use& u) {
       const Value t = u.text();
       u.budget.bytes(6 * t.text().size());
       return t.markup() ? t : Value::string(escaped(t.text()), true);
     }},
    {"first", first},
    {"float", number_filters::to_float},
    {"forceescape",
     [](const Use& u) {
       const Value t = u.text();
       u.budget.bytes(6 * t.text().size());
       return Value::string(escaped(t.text()), true);
     }},
    {"format", format},
    {"indent", indent},
    {"int", number_filters::to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", [](const Use& u) { return u.bound({}), Value::integer(length_of(u.of)); }},
    {"list", [](const Use& u) { return u.bound({}), Value::list(items_of(u.of, u.budget)); }},
    {"lower", [](const Use& u) { return changed_case(u, Case::LOWER); }},
    {"map", map},
    {"max", [](const Use& u) { return smallest(u, true); }},
    {"min", [](const Use& u) { return smallest(u, false); }},
    {"reject", [](const Use& u) { return select(u, false, false); }},
    {"rejectattr", [](const Use& u) { return select(u, false, true); }},
    {"replace", replace},
    {"reverse", reversed},
    {"round", number_filters::rounded},
    {"safe", [](const Use& u) { return u.bound({}), Value::string(u.text().text(), true); }},
    {"select", [](const Use& u) { return select(u, true, false); }},
    {"selectattr", [](const Use& u) { return select(u, true, true); }},
    {"sort", sorted},
    {"string", [](const Use& u) { return u.bound({}), u.text(); }},
    {"sum", sum},
    {"title", title},
    {"tojson", to_json},
    {"trim", trim},
    {"unique", unique},
    {"upper", [](const Use& u) { return changed_case(u, Case::UPPER); }},
    {"wordcount", word_count},
};

const Filter* filter_named(std::string_view name) {
  for (const Filter& filter : kFilters) {
    if (name == filter.name) return &filter;
  }
  return nullptr;
}

}  // namespace

bool is_template_filter(std::string_view name) { return filter_named(name) != nullptr; }

Value apply_filter(std::string_view name, const Value& of, const TemplateArguments& given,
                   TemplateBudget& budget) {
  budget.step();
  const TemplateBudget::Nested nested(budget);
  if (of.is(Value::STRING)) budget.bytes(of.text().size() / 8);  // most filters read all of it
  const Filter* const filter = filter_named(name);
  if (!filter)
    template_stop(TemplateStop::UNKNOWN, "it has the filter '" + std::string(name) + "'");
  return filter->apply({std::string(name), of, given, budget});
}

}  // namespace riffle
