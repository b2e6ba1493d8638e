#include "chat/template_value.h"

#include <algorithm>
#include <cmath>

#include "chat/python_text.h"
#include "util/error.h"

namespace riffle {
namespace {

constexpr int64_t kMaxSteps = 8 << 20;  // for any conversation, and one for 8 bytes of this one
constexpr size_t kFreeBytes = size_t{128} << 20;  // for any conversation
constexpr size_t kBytesPerByte = 24;              // and for each byte of this one

}  // namespace

void template_stop(TemplateStop::Kind kind, const std::string& text) {
  throw TemplateStop{kind, text};
}

TemplateBudget::TemplateBudget(size_t input_bytes)
    : steps_(kMaxSteps + static_cast<int64_t>(input_bytes / 8)),
      bytes_(kFreeBytes + kBytesPerByte * input_bytes) {}

TemplateBudget::Nested::Nested(TemplateBudget& budget) : budget_(budget) {
  if (budget.nested_ >= kDeepestValue)
    template_stop(TemplateStop::LIMIT, "it nests filters too deep");
  budget.nested_++;
}

void TemplateBudget::steps_ended() {
  template_stop(TemplateStop::LIMIT, "it is stopped after more than " +
                                         std::to_string(kMaxSteps >> 20) + " million steps");
}
void TemplateBudget::bytes_ended() {
  template_stop(TemplateStop::LIMIT, "it is stopped, since its values take more than " +
                                         std::to_string(kFreeBytes >> 20) + " MiB");
}

Value Value::boolean(bool flag) {
  Value v(BOOL);
  v.number_ = flag;
  return v;
}
Value Value::integer(int64_t number) {
  Value v(INTEGER);
  v.number_ = number;
  return v;
}
Value Value::real(double number) {
  Value v(REAL);
  v.real_ = number;
  return v;
}
Value Value::string(SourcedText text, bool markup) {
  Value v(STRING);
  v.markup_ = markup;
  v.data_ = std::make_shared<SourcedText>(std::move(text));
  return v;
}
Value Value::undefined(std::string name) {
  Value v(UNDEFINED);
  v.data_ = std::make_shared<SourcedText>(name);
  return v;
}
Value Value::function(std::string name) {
  Value v(FUNCTION);
  v.data_ = std::make_shared<SourcedText>(name);
  return v;
}

namespace {
int checked_depth(int depth) {
  if (depth > kDeepestValue) template_stop(TemplateStop::LIMIT, "it nests lists too deep");
  return depth;
}
}  // namespace

Value Value::list(std::vector<Value> items, TemplateList::Form form) {
  auto data = std::make_shared<TemplateList>();
  for (const Value& item : items) data->depth = std::max(data->depth, item.depth() + 1);
  checked_depth(data->depth);
  data->form = form;
  data->items = std::move(items);
  Value v(LIST);
  v.data_ = std::move(data);
  return v;
}

Value Value::dict(Entries entries) {
  auto data = std::make_shared<TemplateDict>();
  for (const auto& [key, value] : entries)
    data->depth = std::max({data->depth, key.depth() + 1, value.depth() + 1});
  checked_depth(data->depth);
  data->entries = std::move(entries);
  Value v(DICT);
  v.data_ = std::move(data);
  return v;
}

Value Value::loop(std::shared_ptr<TemplateLoop> state) {
  for (const Value& item : state->items) state->depth = std::max(state->depth, item.depth() + 1);
  checked_depth(state->depth);
  Value v(LOOP);
  v.data_ = std::move(state);
  return v;
}
Value Value::name_space(std::shared_ptr<TemplateNamespace> state) {
  Value v(NAMESPACE);
  v.data_ = std::shared_ptr<void>(std::shared_ptr<void>(), state.get());
  return v;
}
Value Value::macro(std::shared_ptr<TemplateMacro> state) {
  Value v(MACRO);
  v.data_ = std::shared_ptr<void>(std::shared_ptr<void>(), state.get());
  return v;
}
Value Value::method(Value of, std::string name) {
  Value v(METHOD);
  checked_depth(of.depth() + 1);
  v.data_ = std::make_shared<std::pair<Value, std::string>>(std::move(of), std::move(name));
  return v;
}

int Value::depth() const {
  switch (kind_) {
    case LIST: return list().depth;
    case DICT: return dict().depth;
    case METHOD: return method().first.depth() + 1;
    case LOOP: return loop().depth;
    default: return 0;
  }
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [k, v] : dict().entries) {
    if (k.is(STRING) && k.str() == key) return &v;
  }
  return nullptr;
}

const Value* Value::find(const Value& key) const {
  if (key.is(STRING)) return find(key.text().view());
  TemplateBudget budget(0);
  for (const auto& [k, v] : dict().entries) {
    if (equal(k, key, budget)) return &v;
  }
  return nullptr;
}

void check_attribute(const std::string& name) {
  if (!name.starts_with('_')) return;
  template_stop(TemplateStop::FAILED, "it names the attribute '" + name +
                                          "' of a namespace, which begins with an underscore");
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Value::UNDEFINED: return "Undefined";
    case Value::NONE: return "NoneType";
    case Value::BOOL: return "bool";
    case Value::INTEGER: return "int";
    case Value::REAL: return "float";
    case Value::STRING: return "str";
    case Value::LIST:
      switch (value.list().form) {
        case TemplateList::LIST: return "list";
        case TemplateList::TUPLE: return "tuple";
        case TemplateList::GENERATOR: return "generator";
        case TemplateList::VIEW: return "view";
      }
      return "list";
    case Value::DICT: return "dict";
    case Value::LOOP: return "LoopContext";
    case Value::NAMESPACE: return "Namespace";
    case Value::MACRO: return "Macro";
    case Value::FUNCTION:
    case Value::METHOD: return "function";
  }
  return "object";
}

bool truth(const Value& value) {
  switch (value.kind()) {
    case Value::UNDEFINED:
    case Value::NONE: return false;
    case Value::BOOL:
    case Value::INTEGER: return value.integer() != 0;
    case Value::REAL: return value.real() != 0;
    case Value::STRING: return !value.text().empty();
    case Value::LIST: return value.is_list(TemplateList::GENERATOR) || !value.list().items.empty();
    case Value::DICT: return !value.dict().entries.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b, TemplateBudget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? a.integer() == b.integer() : a.real() == b.real();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::UNDEFINED:
    case Value::NONE: return true;
    case Value::STRING:
      budget.bytes(std::min(a.text().size(), b.text().size()) / 16);
      return a.str() == b.str();
    case Value::LIST: {
      const TemplateList &x = a.list(), &y = b.list();
      if (&x == &y) return true;
      if (x.form != y.form || x.form == TemplateList::GENERATOR || x.items.size() != y.items.size())
        return false;
      for (size_t i = 0; i < x.items.size(); i++) {
        if (!equal(x.items[i], y.items[i], budget)) return false;
      }
      return true;
    }
    case Value::DICT: {
      if (&a.dict() == &b.dict()) return true;
      if (a.dict().entries.size() != b.dict().entries.size()) return false;
      for (const auto& [key, value] : a.dict().entries) {
        budget.bytes(b.dict().entries.size());
        const Value* const other = b.find(key);
        if (!other || !equal(value, *other, budget)) return false;
      }
      return true;
    }
    case Value::FUNCTION: return a.str() == b.str();
    default: return a.identity() == b.identity();
  }
}

int compare(const Value& a, const Value& b, TemplateBudget& budget) {
  budget.step();
  const auto order = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_number() && b.is_number()) {
    return a.is_whole() && b.is_whole() ? order(a.integer(), b.integer())
                                        : order(a.real(), b.real());
  }
  if (a.is(Value::STRING) && b.is(Value::STRING)) {
    budget.bytes(std::min(a.text().size(), b.text().size()) / 16);
    return order(a.str().compare(b.str()), 0);  // UTF-8 has the order of characters
  }
  if (a.is(Value::LIST) && b.is(Value::LIST) && a.list().form == b.list().form &&
      a.list().form <= TemplateList::TUPLE) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); i++) {
      if (!equal(x[i], y[i], budget)) return compare(x[i], y[i], budget);
    }
    return order(x.size(), y.size());
  }
  template_stop(TemplateStop::FAILED,
                std::string("it compares the order of ") + type_name(a) + " and " + type_name(b));
}

bool contains(const Value& item, const Value& of, TemplateBudget& budget) {
  switch (of.kind()) {
    case Value::UNDEFINED: return false;
    case Value::STRING:
      if (!item.is(Value::STRING)) {
        template_stop(TemplateStop::FAILED,
                      std::string("it looks for ") + type_name(item) + " in a string");
      }
      budget.bytes(of.text().size() / 16);
      return find_text(of.text().view(), item.text().view()) != std::string::npos;
    case Value::DICT:
      budget.bytes(of.dict().entries.size());
      if (item.is(Value::DICT) || item.is_list(TemplateList::LIST)) {
        template_stop(TemplateStop::FAILED,
                      std::string("it looks for ") + type_name(item) + " among a dict's keys");
      }
      return of.find(item) != nullptr;
    case Value::LIST:
      for (const Value& one : items_of(of, budget)) {
        if (equal(one, item, budget)) return true;
      }
      return false;
    default:
      template_stop(TemplateStop::FAILED, std::string("it looks for a value in ") + type_name(of));
  }
}

std::vector<Value> items_of(const Value& value, TemplateBudget& budget) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Value::UNDEFINED: return items;
    case Value::LIST: {
      const TemplateList& list = value.list();
      if (list.form == TemplateList::GENERATOR && std::exchange(list.consumed, true)) return items;
      budget.bytes(list.items.size() * sizeof(Value));
      return list.items;
    }
    case Value::DICT:
      budget.bytes(value.dict().entries.size() * sizeof(Value));
      for (const auto& entry : value.dict().entries) items.push_back(entry.first);
      return items;
    case Value::STRING: {
      const SourcedText& text = value.text();
      for (size_t pos = 0; pos < text.size();) {
        budget.bytes(2 * sizeof(Value) + sizeof(SourcedText));
        const size_t n = char_bytes(text.view(), pos);
        items.push_back(Value::string(text.part(pos, pos + n), value.markup()));
        pos += n;
      }
      return items;
    }
    case Value::LOOP: {
      TemplateLoop& loop = value.loop();
      budget.bytes(loop.items.size() * sizeof(Value));
      items.assign(loop.items.begin() + static_cast<std::ptrdiff_t>(loop.index + 1),
                   loop.items.end());
      return items;
    }
    default:
      template_stop(TemplateStop::FAILED, std::string("it goes through ") + type_name(value) +
                                              ", expected a list, a dict or a string");
  }
}

namespace {

void append_items(const std::vector<Value>& items, SourcedText* out, TemplateBudget& budget) {
  for (size_t i = 0; i < items.size(); i++) {
    if (i > 0) out->append(", ");
    append_repr(items[i], out, budget);
  }
}

void append_entries(const Entries& entries, SourcedText* out, TemplateBudget& budget) {
  out->append("{");
  for (size_t i = 0; i < entries.size(); i++) {
    if (i > 0) out->append(", ");
    append_repr(entries[i].first, out, budget);
    out->append(": ");
    append_repr(entries[i].second, out, budget);
  }
  out->append("}");
}

}  // namespace

void append_repr(const Value& value, SourcedText* out, TemplateBudget& budget) {
  budget.step();
  switch (value.kind()) {
    case Value::UNDEFINED: return out->append("Undefined");
    case Value::STRING:
      budget.bytes(2 * value.text().size());
      if (value.markup()) out->append("Markup(");
      append_repr(value.text(), out);
      if (value.markup()) out->append(")");
      return;
    case Value::LIST: {
      const TemplateList& list = value.list();
      const bool tuple = list.form == TemplateList::TUPLE;
      if (list.form > TemplateList::TUPLE)
        template_stop(TemplateStop::UNKNOWN, std::string("it prints a ") + type_name(value));
      out->append(tuple ? "(" : "[");
      append_items(list.items, out, budget);
      out->append(tuple ? list.items.size() == 1 ? ",)" : ")" : "]");
      return;
    }
    case Value::DICT: return append_entries(value.dict().entries, out, budget);
    case Value::NONE:
    case Value::BOOL:
    case Value::INTEGER:
    case Value::REAL: return append_text(value, out, budget);
    default: template_stop(TemplateStop::UNKNOWN, std::string("it prints a ") + type_name(value));
  }
}

void append_text(const Value& value, SourcedText* out, TemplateBudget& budget) {
  switch (value.kind()) {
    case Value::UNDEFINED: return;
    case Value::NONE: return out->append("None");
    case Value::BOOL: return out->append(value.flag() ? "True" : "False");
    case Value::INTEGER: return out->append(std::to_string(value.integer()));
    case Value::REAL: return out->append(repr_of(value.real()));
    case Value::STRING: budget.bytes(value.text().size()); return out->append(value.text());
    default: return append_repr(value, out, budget);
  }
}

Value to_text(const Value& value, TemplateBudget& budget) {
  if (value.is(Value::STRING)) return value;
  SourcedText text;
  append_text(value, &text, budget);
  return Value::string(std::move(text));
}

// ---- JSON

namespace {

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, SourcedText* out, TemplateBudget& budget)
      : style_(style), out_(*out), budget_(budget) {}

  void put(const Value& value) {
    budget_.step();
    switch (value.kind()) {
      case Value::NONE: return out_.append("null");
      case Value::BOOL: return out_.append(value.flag() ? "true" : "false");
      case Value::INTEGER: return out_.append(std::to_string(value.integer()));
      case Value::REAL: return out_.append(number(value.real()));
      case Value::STRING: return put(value.text());
      case Value::LIST: {
        if (value.list().form > TemplateList::TUPLE) break;
        const auto& items = value.list().items;
        return structure('[', ']', items.size(), [&](size_t i) { put(items[i]); });
      }
      case Value::DICT: {
        budget_.bytes(value.dict().entries.size() * 2 * sizeof(Value));
        Entries entries = value.dict().entries;
        if (style_.sort_keys) {
          std::stable_sort(entries.begin(), entries.end(), [&](const auto& a, const auto& b) {
            return compare(a.first, b.first, budget_) < 0;
          });
        }
        return structure('{', '}', entries.size(), [&](size_t i) {
          key(entries[i].first);
          out_.append(style_.colon);
          put(entries[i].second);
        });
      }
      default: break;
    }
    template_stop(TemplateStop::FAILED,
                  std::string("it writes a value of type ") + type_name(value) + " as JSON");
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return repr_of(value);
  }

  template <class Put>
  void structure(char open, char close, size_t n, Put put_item) {
    out_.append(std::string_view(&open, 1));
    depth_++;
    for (size_t i = 0; i < n; i++) {
      if (i > 0) out_.append(style_.between);
      line();
      put_item(i);
    }
    depth_--;
    if (n > 0) line();
    out_.append(std::string_view(&close, 1));
  }

  void line() {
    if (!style_.lines) return;
    budget_.bytes(style_.indent.size() * depth_ + 1);
    out_.append("\n");
    for (size_t i = 0; i < depth_; i++) out_.append(style_.indent);
  }

  void key(const Value& value) {
    switch (value.kind()) {
      case Value::STRING: return put(value.text());
      case Value::NONE: return out_.append("\"null\"");
      case Value::BOOL: return out_.append(value.flag() ? "\"true\"" : "\"false\"");
      case Value::INTEGER: return out_.append('"' + std::to_string(value.integer()) + '"');
      case Value::REAL: return out_.append('"' + number(value.real()) + '"');
      default:
        template_stop(TemplateStop::FAILED,
                      std::string("it writes a key of type ") + type_name(value) + " as JSON");
    }
  }

  void put(const SourcedText& text) {
    budget_.bytes(2 * text.size());
    out_.append("\"");
    const std::string_view all = text.view();
    size_t begin = 0;
    for (size_t pos = 0; pos < all.size();) {
      const char32_t c = char_at(all, pos);
      const size_t n = char_bytes(all, pos);
      if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !style_.ascii || c == 0x7F)) {
        pos += n;
        continue;
      }
      out_.append(text, begin, pos);
      out_.append(escaped(c), text.source_at(pos));
      begin = pos += n;
    }
    out_.append(text, begin);
    out_.append("\"");
  }

  static std::string escaped(char32_t c) {
    const auto unit = [](char32_t u) {
      return format("\\u%04x", static_cast<unsigned>(u & 0xFFFF));
    };
    switch (c) {
      case '"': return "\\\"";
      case '\\': return "\\\\";
      case '\n': return "\\n";
      case '\r': return "\\r";
      case '\t': return "\\t";
      case '\b': return "\\b";
      case '\f': return "\\f";
      default: break;
    }
    if (c < 0x10000) return unit(c);
    return unit(0xD800 + ((c - 0x10000) >> 10)) + unit(0xDC00 + ((c - 0x10000) & 0x3FF));
  }

  const JsonStyle& style_;
  SourcedText& out_;
  TemplateBudget& budget_;
  size_t depth_ = 0;
};

}  // namespace

void append_json(const Value& value, const JsonStyle& style, SourcedText* out,
                 TemplateBudget& budget) {
  JsonWriter(style, out, budget).put(value);
}

}  // namespace riffle
