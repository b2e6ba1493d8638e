// Methods of str, dict and list, and attributes and items.
#include <algorithm>

#include "chat/python_text.h"
#include "chat/template_calls.h"

namespace riffle {

namespace {

// ---- str

// One call of a string's method.
struct StringCall {
  const Value& of;
  const SourcedText& text;
  std::string_view all;
  const std::string& name;
  const TemplateArguments& given;
  TemplateBudget& budget;

  Value made(SourcedText t) const { return Value::string(std::move(t), of.markup()); }
  Value part(size_t begin, size_t end) const { return made(text.part(begin, end)); }
  BoundArguments bound(std::initializer_list<const char*> names, size_t required = 0) const {
    if (!given.keywords.empty() && name != "split" && name != "rsplit" && name != "splitlines" &&
        name != "replace")
      template_stop(TemplateStop::FAILED, "str." + name + "() is given named arguments");
    return BoundArguments("str." + name + "()", given, names, required);
  }
};

bool is_one_of(std::string_view chars, std::string_view one) {
  for (size_t pos = 0; pos < chars.size(); pos += char_bytes(chars, pos)) {
    if (chars.substr(pos, char_bytes(chars, pos)) == one) return true;
  }
  return false;
}

// Finds the last `what`. The quadratic time is charged to the budget.
size_t find_last(const StringCall& c, std::string_view text, std::string_view what) {
  c.budget.bytes(text.size() / 64 * (what.size() / 64));
  return text.rfind(what);
}

Value strip(const StringCall& c, bool left, bool right) {
  const BoundArguments arguments = c.bound({"chars"});
  const SourcedText* const chars = arguments.text(0);
  if (chars) c.budget.bytes(c.all.size() / 16 * (chars->size() / 16));
  const auto drops = [&](size_t pos) {
    return chars ? is_one_of(chars->view(), c.all.substr(pos, char_bytes(c.all, pos)))
                 : is_space(char_at(c.all, pos));
  };
  size_t begin = 0, end = c.all.size();
  while (left && begin < end && drops(begin)) begin += char_bytes(c.all, begin);
  while (right && end > begin && drops(char_begin(c.all, end))) end = char_begin(c.all, end);
  return c.part(begin, end);
}

Value split(const StringCall& c, bool from_right) {
  const BoundArguments arguments = c.bound({"sep", "maxsplit"});
  const SourcedText* const separator = arguments.text(0);
  if (separator && separator->empty())
    template_stop(TemplateStop::FAILED, "it splits at an empty text");
  int64_t left = arguments.whole(1, -1);
  if (left < 0) left = INT64_MAX;
  std::vector<Value> parts;
  const auto put = [&](size_t begin, size_t end) {
    c.budget.bytes(2 * sizeof(Value) + sizeof(SourcedText));
    parts.push_back(c.part(begin, end));
  };
  const std::string_view all = c.all;
  if (separator) {
    const std::string_view sep = separator->view();
    if (from_right) {
      size_t end = all.size();
      c.budget.bytes(all.size() / 64 * (sep.size() / 64));
      for (size_t at;
           left > 0 && end >= sep.size() && (at = all.rfind(sep, end - sep.size())) != all.npos;
           left--) {
        put(at + sep.size(), end);
        end = at;
      }
      put(0, end);
      std::reverse(parts.begin(), parts.end());
    } else {
      size_t begin = 0;
      for (size_t at; left > 0 && (at = find_text(all, sep, begin)) != all.npos; left--) {
        put(begin, at);
        begin = at + sep.size();
      }
      put(begin, all.size());
    }
    return Value::list(std::move(parts));
  }
  if (from_right && left < INT64_MAX)
    template_stop(TemplateStop::UNKNOWN, "it calls rsplit() with white space and a limit");
  for (size_t pos = 0; pos < all.size();) {
    if (is_space(char_at(all, pos))) {
      pos += char_bytes(all, pos);
      continue;
    }
    size_t end = pos;
    while (end < all.size() && !is_space(char_at(all, end))) end += char_bytes(all, end);
    if (left-- == 0) {
      put(pos, all.size());
      break;
    }
    put(pos, end);
    pos = end;
  }
  return Value::list(std::move(parts));
}

Value split_lines(const StringCall& c) {
  const BoundArguments arguments = c.bound({"keepends"});
  const bool keep = arguments.flag(0, false);
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < c.all.size();) {
    const char32_t ch = char_at(c.all, pos);
    size_t next = pos + char_bytes(c.all, pos);
    const bool ends = (ch >= 0x0A && ch <= 0x0D) || (ch >= 0x1C && ch <= 0x1E) || ch == 0x85 ||
                      ch == 0x2028 || ch == 0x2029;
    if (ch == '\r' && next < c.all.size() && c.all[next] == '\n') next++;
    if (ends) {
      c.budget.bytes(2 * sizeof(Value) + sizeof(SourcedText));
      lines.push_back(c.part(begin, keep ? next : pos));
      begin = next;
    }
    pos = next;
  }
  if (begin < c.all.size()) lines.push_back(c.part(begin, c.all.size()));
  return Value::list(std::move(lines));
}

Value begins_or_ends(const StringCall& c, bool begins) {
  const BoundArguments arguments = c.bound({"prefix", "start", "end"}, 1);
  if (arguments.has(1))
    template_stop(TemplateStop::UNKNOWN, "it gives str." + c.name + "() bounds");
  const auto one = [&](const Value& value) {
    if (!value.is(Value::STRING)) wrong_type("str." + c.name + "()", value, "a string");
    return begins ? c.all.starts_with(value.str()) : c.all.ends_with(value.str());
  };
  const Value& what = arguments[0];
  if (!what.is_list(TemplateList::TUPLE)) return Value::boolean(one(what));
  const auto& items = what.list().items;
  return Value::boolean(std::any_of(items.begin(), items.end(), one));
}

Value replace(const StringCall& c) {
  const BoundArguments arguments = c.bound({"old", "new", "count"}, 2);
  const SourcedText *const from = arguments.text(0), *to = arguments.text(1);
  if (!from || !to) wrong_type("str.replace()", Value::none(), "strings");
  const SourcedText escaped_to = c.of.markup() ? escaped(*to) : SourcedText();
  if (c.of.markup() && !arguments[1].markup()) to = &escaped_to;
  int64_t left = arguments.whole(2, -1);
  if (left < 0) left = INT64_MAX;
  SourcedText out;
  size_t begin = 0;
  for (size_t at = 0; left > 0 && (at = find_text(c.all, from->view(), at)) != c.all.npos; left--) {
    c.budget.bytes(to->size() + 16);
    if (from->empty() && at > c.all.size()) break;
    out.append(c.text, begin, at);
    out.append(*to);
    begin = at;
    at = begin + from->size();
    begin = at;
    if (!from->empty()) continue;
    if (at == c.all.size()) break;  // '' is found at each character and at the end
    at += char_bytes(c.all, at);
  }
  out.append(c.text, begin);
  return c.made(std::move(out));
}

// Returns the offset in characters, or -1.
int64_t find(const StringCall& c, bool from_right) {
  const BoundArguments arguments = c.bound({"sub", "start", "end"}, 1);
  const SourcedText* const what = arguments.text(0);
  if (!what) wrong_type("str." + c.name + "()", arguments[0], "a string");
  const int64_t n = static_cast<int64_t>(char_count(c.all));
  const auto bound = [&](size_t i, int64_t otherwise) {
    int64_t at = arguments.has(i) && arguments[i].is(Value::NONE) ? otherwise
                                                                  : arguments.whole(i, otherwise);
    if (at < 0) at = std::max<int64_t>(0, at + n);
    return at;
  };
  const int64_t first = bound(1, 0), last = std::min(bound(2, n), n);
  if (first > last) return -1;
  const size_t begin = char_offset(c.all, static_cast<size_t>(first));
  const size_t end = char_offset(c.all, static_cast<size_t>(last));
  const std::string_view range = c.all.substr(begin, end - begin);
  const size_t at = from_right ? find_last(c, range, what->view()) : find_text(range, what->view());
  if (at == range.npos) return -1;
  return static_cast<int64_t>(char_count(c.all.substr(0, begin + at)));
}

Value count(const StringCall& c) {
  const BoundArguments arguments = c.bound({"sub"}, 1);
  const SourcedText* const what = arguments.text(0);
  if (!what) wrong_type("str.count()", arguments[0], "a string");
  if (what->empty()) return Value::integer(static_cast<int64_t>(char_count(c.all)) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_text(c.all, what->view(), at)) != c.all.npos; at += what->size())
    n++;
  return Value::integer(n);
}

Value join(const StringCall& c) {
  const BoundArguments arguments = c.bound({"iterable"}, 1);
  SourcedText out;
  bool first = true;
  for (const Value& item : items_of(arguments[0], c.budget)) {
    if (!item.is(Value::STRING)) wrong_type("str.join()", item, "strings");
    c.budget.bytes(item.text().size() + c.text.size());
    if (!first) out.append(c.text);
    first = false;
    out.append(c.of.markup() && !item.markup() ? escaped(item.text()) : item.text());
  }
  return c.made(std::move(out));
}

Value padded(const StringCall& c) {
  const BoundArguments arguments =
      c.name == "zfill" ? c.bound({"width"}, 1) : c.bound({"width", "fillchar"}, 1);
  const int64_t width = arguments.whole(0, 0);
  const int64_t missing = width - static_cast<int64_t>(char_count(c.all));
  SourcedText fill(c.name == "zfill" ? "0" : " ");
  if (c.name != "zfill" && arguments.text(1)) fill = *arguments.text(1);
  if (char_count(fill.view()) != 1)
    template_stop(TemplateStop::FAILED, "it pads with a text that is not one character");
  if (missing <= 0) return c.of;
  c.budget.bytes(static_cast<size_t>(missing) * 8);
  int64_t left = c.name == "ljust" ? 0 : missing;
  if (c.name == "center") left = missing / 2 + (missing & width & 1);
  const bool sign = c.name == "zfill" && (c.all.starts_with('-') || c.all.starts_with('+'));
  SourcedText out;
  if (sign) out.append(c.text, 0, 1);
  for (int64_t i = 0; i < left; i++) out.append(fill);
  out.append(c.text, sign ? 1 : 0);
  for (int64_t i = left; i < missing; i++) out.append(fill);
  return c.made(std::move(out));
}

Value partition(const StringCall& c) {
  const BoundArguments arguments = c.bound({"sep"}, 1);
  const SourcedText* const sep = arguments.text(0);
  if (!sep || sep->empty()) template_stop(TemplateStop::FAILED, "it splits at an empty text");
  const bool right = c.name == "rpartition";
  const size_t at = right ? find_last(c, c.all, sep->view()) : find_text(c.all, sep->view());
  if (at == c.all.npos) {
    const Value nothing = Value::string("");
    return Value::list(right ? std::vector<Value>{nothing, nothing, c.of}
                             : std::vector<Value>{c.of, nothing, nothing},
                       TemplateList::TUPLE);
  }
  return Value::list({c.part(0, at), arguments[0], c.part(at + sep->size(), c.all.size())},
                     TemplateList::TUPLE);
}

Value without_end(const StringCall& c) {
  const BoundArguments arguments = c.bound({"end"}, 1);
  const SourcedText* const end = arguments.text(0);
  if (!end) wrong_type("str." + c.name + "()", arguments[0], "a string");
  const bool prefix = c.name == "removeprefix";
  if (!(prefix ? c.all.starts_with(end->view()) : c.all.ends_with(end->view()))) return c.of;
  return prefix ? c.part(end->size(), c.all.size()) : c.part(0, c.all.size() - end->size());
}

// Evaluates isdigit() and the like: true if all characters qualify and there is at least one;
// isascii() also if there is none. isupper(), islower() and istitle() read only cased characters,
// and need at least one.
Value is_all(const StringCall& c) {
  c.bound({});
  const std::string what = c.name.substr(2);
  bool any = false, all = true, after_cased = false;
  for (size_t pos = 0; pos < c.all.size() && all; pos += char_bytes(c.all, pos)) {
    const char32_t ch = char_at(c.all, pos);
    const CharKind kind = char_kind(ch);
    if (what == "upper" || what == "lower") {
      all = !is_titled(ch) && !(what == "upper" ? is_lower(ch) : is_upper(ch));
      any = any || is_cased(ch);
    } else if (what == "title") {
      const bool upper = is_upper(ch) || is_titled(ch);
      if (is_cased(ch)) all = upper != after_cased;
      any = any || is_cased(ch);
      after_cased = is_cased(ch);
    } else {
      any = true;
      if (what == "space") all = is_space(ch);
      else if (what == "alpha") all = kind == CharKind::LETTER;
      else if (what == "decimal") all = kind == CharKind::DECIMAL;
      else if (what == "digit") all = kind == CharKind::DECIMAL || kind == CharKind::DIGIT;
      else if (what == "numeric") all = kind != CharKind::LETTER && kind != CharKind::OTHER;
      else if (what == "alnum") all = kind != CharKind::OTHER;
      else all = static_cast<uint32_t>(ch) < 0x80;  // isascii
    }
  }
  return Value::boolean(all && (any || what == "ascii"));
}

constexpr const char* kStringMethods[] = {
    "strip",     "lstrip",  "rstrip",     "split",        "rsplit",      "splitlines", "upper",
    "lower",     "title",   "capitalize", "swapcase",     "casefold",    "replace",    "startswith",
    "endswith",  "find",    "rfind",      "index",        "rindex",      "count",      "join",
    "format",    "zfill",   "ljust",      "rjust",        "center",      "partition",  "rpartition",
    "isupper",   "islower", "istitle",    "isspace",      "isalpha",     "isdecimal",  "isdigit",
    "isnumeric", "isalnum", "isascii",    "removeprefix", "removesuffix"};

Value string_method(const Value& of, const std::string& name, const TemplateArguments& given,
                    TemplateBudget& budget) {
  const StringCall c{of, of.text(), of.text().view(), name, given, budget};
  budget.bytes(c.all.size() + 16);
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip(c, name != "rstrip", name != "lstrip");
  if (name == "split" || name == "rsplit") return split(c, name == "rsplit");
  if (name == "splitlines") return split_lines(c);
  if (name == "startswith" || name == "endswith") return begins_or_ends(c, name == "startswith");
  if (name == "replace") return replace(c);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex") {
    const int64_t at = find(c, name[0] == 'r');
    if (at < 0 && name.ends_with("index"))
      template_stop(TemplateStop::FAILED, "it finds no such text");
    return Value::integer(at);
  }
  if (name == "count") return count(c);
  if (name == "join") return join(c);
  if (name == "format") return c.made(brace_format(c.text, given, budget));
  if (name == "zfill" || name == "ljust" || name == "rjust" || name == "center") return padded(c);
  if (name == "partition" || name == "rpartition") return partition(c);
  if (name == "removeprefix" || name == "removesuffix") return without_end(c);
  if (name.starts_with("is")) return is_all(c);
  c.bound({});
  const Case what = name == "upper"        ? Case::UPPER
                    : name == "title"      ? Case::TITLE
                    : name == "capitalize" ? Case::CAPITAL
                    : name == "swapcase"   ? Case::SWAPPED
                                           : Case::LOWER;
  return c.made(with_case(c.text, what));
}

// ---- dict and list

constexpr const char* kDictMethods[] = {"get", "items", "keys", "values", "copy"};
constexpr const char* kListMethods[] = {"index", "count", "copy"};
// Methods that change the object. The immutable sandbox refuses them.
constexpr const char* kDictChanges[] = {"clear",      "pop",    "popitem",
                                        "setdefault", "update", "fromkeys"};
constexpr const char* kListChanges[] = {"append", "clear",  "extend",  "insert",
                                        "pop",    "remove", "reverse", "sort"};

template <size_t N>
bool among(const char* const (&names)[N], std::string_view name) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* known) { return name == known; });
}

Value dict_method(const Value& of, const std::string& name, const TemplateArguments& given,
                  TemplateBudget& budget) {
  const Entries& entries = of.dict().entries;
  budget.bytes(entries.size() * 2 * sizeof(Value));
  const std::string what = "dict." + name + "()";
  if (name == "get") {
    const BoundArguments arguments(what, given, {"key", "default"}, 1);
    if (!given.keywords.empty()) template_stop(TemplateStop::FAILED, what + " is given a name");
    if (arguments[0].is(Value::DICT) || arguments[0].is_list(TemplateList::LIST))
      wrong_type(what, arguments[0], "a key");
    if (const Value* found = of.find(arguments[0])) return *found;
    return arguments.has(1) ? arguments[1] : Value::none();
  }
  BoundArguments(what, given, {});
  if (name == "copy") return of;
  std::vector<Value> items;
  for (const auto& [key, value] : entries) {
    if (name == "keys") items.push_back(key);
    else if (name == "values") items.push_back(value);
    else items.push_back(Value::list({key, value}, TemplateList::TUPLE));
  }
  return Value::list(std::move(items), TemplateList::VIEW);
}

Value list_method(const Value& of, const std::string& name, const TemplateArguments& given,
                  TemplateBudget& budget) {
  const std::vector<Value>& items = of.list().items;
  const std::string what = "list." + name + "()";
  if (name == "copy") {
    BoundArguments(what, given, {});
    return of;
  }
  const BoundArguments arguments(what, given, {"value"}, 1);
  int64_t n = 0;
  for (size_t i = 0; i < items.size(); i++) {
    if (!equal(items[i], arguments[0], budget)) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    n++;
  }
  if (name == "index") template_stop(TemplateStop::FAILED, "it finds no such item");
  return Value::integer(n);
}

constexpr const char* kLoopMethods[] = {"cycle", "changed"};

Value loop_method(const Value& of, const std::string& name, const TemplateArguments& given,
                  TemplateBudget& budget) {
  TemplateLoop& loop = of.loop();
  if (name == "cycle") {
    if (given.list.empty()) template_stop(TemplateStop::FAILED, "loop.cycle() has no items");
    return given.list[loop.index % given.list.size()];
  }
  for (const Value& value : given.list) {
    if (value.depth() > 8) template_stop(TemplateStop::LIMIT, "loop.changed() has a deep value");
    if (value.is(Value::LOOP) || value.is(Value::LIST) || value.is(Value::DICT)) {
      SourcedText text;  // refuses a loop in the value, since the loop could then own itself
      append_repr(value, &text, budget);
    }
  }
  bool same = loop.seen && loop.last_seen.size() == given.list.size();
  for (size_t i = 0; same && i < given.list.size(); i++)
    same = equal(loop.last_seen[i], given.list[i], budget);
  loop.seen = true;
  loop.last_seen = given.list;
  return Value::boolean(!same);
}

Value loop_attribute(const Value& of, const std::string& name) {
  const TemplateLoop& loop = of.loop();
  const int64_t index = static_cast<int64_t>(loop.index);
  const int64_t n = static_cast<int64_t>(loop.items.size());
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(n - index);
  if (name == "revindex0") return Value::integer(n - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == n);
  if (name == "length") return Value::integer(n);
  if (name == "depth") return Value::integer(1);  // recursive loops are not supported
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : Value::undefined("loop.previtem");
  if (name == "nextitem")
    return index + 1 < n ? loop.items[loop.index + 1] : Value::undefined("loop.nextitem");
  if (among(kLoopMethods, name)) return Value::method(of, name);
  return Value::undefined("loop." + name);
}

[[noreturn]] void undefined_part(const Value& of, const std::string& part) {
  template_stop(TemplateStop::FAILED,
                "'" + of.str() + "' is undefined, but it asks for its " + part);
}

}  // namespace

bool has_method(const Value& of, std::string_view name) {
  switch (of.kind()) {
    case Value::STRING: return among(kStringMethods, name);
    case Value::DICT: return among(kDictMethods, name) || among(kDictChanges, name);
    case Value::LIST:
      switch (of.list().form) {
        case TemplateList::LIST: return among(kListMethods, name) || among(kListChanges, name);
        case TemplateList::TUPLE: return name == "index" || name == "count";
        default: return false;
      }
    case Value::LOOP: return among(kLoopMethods, name);
    default: return false;
  }
}

Value call_method(const Value& method, const TemplateArguments& given, TemplateBudget& budget) {
  const auto& [of, name] = method.method();
  switch (of.kind()) {
    case Value::STRING: return string_method(of, name, given, budget);
    case Value::DICT:
      if (among(kDictChanges, name)) break;
      return dict_method(of, name, given, budget);
    case Value::LIST:
      if (among(kListChanges, name)) break;
      return list_method(of, name, given, budget);
    case Value::LOOP: return loop_method(of, name, given, budget);
    default: break;
  }
  template_stop(TemplateStop::FAILED,
                std::string("it calls ") + type_name(of) + "." + name +
                    "(), which the immutable sandbox of chat templates refuses");
}

Value get_attribute(const Value& of, const std::string& name, TemplateBudget& budget) {
  budget.step();
  switch (of.kind()) {
    case Value::UNDEFINED: undefined_part(of, "attribute " + name);
    case Value::LOOP: return loop_attribute(of, name);
    case Value::NAMESPACE:
      for (const auto& [key, value] : of.name_space().attributes) {
        if (key.str() == name) return value;
      }
      return Value::undefined(name);
    default: break;
  }
  if (has_method(of, name)) return Value::method(of, name);
  if (of.is(Value::DICT)) {
    budget.bytes(of.dict().entries.size());
    if (const Value* found = of.find(name)) return *found;
  }
  return Value::undefined(name);
}

Value get_item(const Value& of, const Value& key, TemplateBudget& budget) {
  budget.step();
  switch (of.kind()) {
    case Value::UNDEFINED: undefined_part(of, "item");
    case Value::DICT: {
      budget.bytes(of.dict().entries.size());
      if (const Value* found = of.find(key)) return *found;
      break;
    }
    case Value::LIST:
    case Value::STRING: {
      if (of.is(Value::LIST) && of.list().form > TemplateList::TUPLE) break;
      if (!key.is_whole()) break;
      const bool list = of.is(Value::LIST);
      const int64_t n =
          static_cast<int64_t>(list ? of.list().items.size() : char_count(of.text().view()));
      if (!list) budget.bytes(of.text().size() / 8 + sizeof(SourcedText));
      const int64_t at = key.integer() < 0 ? key.integer() + n : key.integer();
      if (at < 0 || at >= n) return Value::undefined("item " + std::to_string(key.integer()));
      if (list) return of.list().items[static_cast<size_t>(at)];
      const std::string_view all = of.text().view();
      const size_t pos = char_offset(all, static_cast<size_t>(at));
      return Value::string(of.text().part(pos, pos + char_bytes(all, pos)), of.markup());
    }
    default: break;
  }
  if (key.is(Value::STRING)) {
    if (has_method(of, key.str())) return Value::method(of, key.str());
    if (of.is(Value::NAMESPACE) || of.is(Value::LOOP)) return get_attribute(of, key.str(), budget);
    return Value::undefined(key.str());
  }
  return Value::undefined("item");
}

Value get_slice(const Value& of, const Value (&bounds)[3], TemplateBudget& budget) {
  if (of.is(Value::UNDEFINED)) undefined_part(of, "slice");
  const bool list = of.is_list(TemplateList::LIST) || of.is_list(TemplateList::TUPLE);
  if (!list && !of.is(Value::STRING)) return Value::undefined("slice");
  const auto left_out = [&](int i) {
    return bounds[i].is(Value::UNDEFINED) || bounds[i].is(Value::NONE);
  };
  for (int i = 0; i < 3; i++) {
    if (!left_out(i) && !bounds[i].is_whole()) wrong_type("a slice", bounds[i], "whole numbers");
  }
  const int64_t step = left_out(2) ? 1 : bounds[2].integer();
  if (step == 0) template_stop(TemplateStop::FAILED, "a slice has step 0");
  const std::string_view all = list ? std::string_view() : of.text().view();
  const int64_t n = static_cast<int64_t>(list ? of.list().items.size() : char_count(all));
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
  const auto bound = [&](int i, int64_t otherwise) {
    if (left_out(i)) return otherwise;
    int64_t at = bounds[i].integer();
    if (at < 0) at = at < -n ? low : at + n;
    return std::clamp(at, low, high);
  };
  const int64_t from = bound(0, step > 0 ? 0 : n - 1), to = bound(1, step > 0 ? n : -1);
  if (!list && step == 1) {
    const size_t begin = char_offset(all, static_cast<size_t>(from));
    const size_t end =
        to <= from ? begin : begin + char_offset(all.substr(begin), static_cast<size_t>(to - from));
    budget.bytes(all.size() / 8 + (end - begin) + sizeof(SourcedText));
    return Value::string(of.text().part(begin, end), of.markup());
  }
  const std::vector<Value> items = list ? of.list().items : items_of(of, budget);
  budget.bytes(items.size() * sizeof(Value));
  std::vector<Value> kept;
  for (int64_t i = from; step > 0 ? i < to : i > to;) {
    kept.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (list) return Value::list(std::move(kept), of.list().form);
  SourcedText out;
  for (const Value& one : kept) out.append(one.text());
  return Value::string(std::move(out), of.markup());
}

}  // namespace riffle
