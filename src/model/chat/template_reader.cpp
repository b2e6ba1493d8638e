#include "model/chat/template_reader.h"

#include <algorithm>
#include <map>
#include <utility>

namespace riffle {
namespace {

using Expression = TemplateExpression;
using Statement = TemplateStatement;
using Outcome = TemplateReader::Outcome;

constexpr int64_t kMaxWork = 1 << 20;  // steps, and 16 bytes of text each, for one reading
constexpr size_t kMaxText = 64 << 10;  // bytes of literals in one text
constexpr size_t kMaxPieces = 4096;
constexpr int kMaxTrims = 8;  // of each other's insides
constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
// Of Python's dict, which a message is one of.
constexpr const char* kMessageMethods[] = {"clear",      "copy",   "fromkeys", "get",
                                           "items",      "keys",   "pop",      "popitem",
                                           "setdefault", "update", "values"};

// Ends a reading.
struct Stop {
  Outcome outcome;
};

struct Value {
  enum Kind {
    UNKNOWN,
    UNDEFINED,
    NONE,
    BOOL,
    INTEGER,
    TEXT,
    LIST,
    MESSAGE,
    LOOP,
    NAMESPACE
  } kind = UNKNOWN;
  bool flag = false;         // BOOL
  bool plain = false;        // INTEGER: written as such; TEXT: not put together from others
  int64_t number = 0;        // INTEGER; MESSAGE: which; LOOP: index0; NAMESPACE: which
  int64_t length = 0;        // LOOP
  TextPieces text;           // TEXT
  std::vector<Value> items;  // LIST
};

Value value_of(Value::Kind kind, int64_t number = 0) {
  Value v;
  v.kind = kind;
  v.number = number;
  return v;
}
Value boolean(bool flag) {
  Value v = value_of(Value::BOOL);
  v.flag = flag;
  return v;
}
Value literal(std::string_view text) {
  Value v = value_of(Value::TEXT);
  v.plain = true;
  append_literal(&v.text, text);
  return v;
}

bool is_number(const Value& v) { return v.kind == Value::INTEGER || v.kind == Value::BOOL; }
int64_t number_of(const Value& v) { return v.kind == Value::BOOL ? v.flag : v.number; }

// The text of a value if nothing in it is a stand-in.
bool known(const Value& v, std::string* text) {
  if (v.kind != Value::TEXT || v.text.size() > 1 ||
      (v.text.size() == 1 && v.text[0].kind != TextPiece::LITERAL)) {
    return false;
  }
  *text = v.text.empty() ? "" : v.text[0].text;
  return true;
}

size_t literal_bytes(const TextPieces& text) {
  size_t n = 0;
  for (const TextPiece& piece : text) n += piece.text.size() + literal_bytes(piece.inside) + 1;
  return n;
}
size_t bytes_of(const Value& v) {
  size_t n = sizeof v + literal_bytes(v.text);
  for (const Value& item : v.items) n += bytes_of(item);
  return n;
}
int trims(const TextPieces& text) {
  int deepest = 0;
  for (const TextPiece& piece : text) {
    if (piece.kind == TextPiece::TRIMMED) deepest = std::max(deepest, 1 + trims(piece.inside));
  }
  return deepest;
}

// One reading of a template.
class Reading {
 public:
  Reading(const TemplateTree& tree, const std::vector<std::string>& roles, const std::string& bos,
          const std::string& eos, std::vector<bool>* met)
      : tree_(tree), roles_(roles), bos_(bos), eos_(eos), met_(*met), scopes_(1) {}

  void run(const std::vector<int>& body) {
    for (const int index : body) run(tree_.statements[index]);
  }
  TextPieces take() { return std::move(out_); }

 private:
  [[noreturn]] static void unknown() { throw Stop{Outcome::UNKNOWN}; }
  void spend(size_t bytes = 0) {
    work_ += 1 + static_cast<int64_t>(bytes / 16);
    if (work_ > kMaxWork) unknown();
  }

  void print(const TextPieces& text) {
    out_bytes_ += literal_bytes(text);
    spend(literal_bytes(text));
    if (out_bytes_ > kMaxText || out_.size() > kMaxPieces) unknown();
    append(&out_, text);
  }

  void run(const Statement& s) {
    spend();
    switch (s.kind) {
      case Statement::TEXT: return print({{TextPiece::LITERAL, s.text, 0, {}}});
      case Statement::OUTPUT: {
        const Value v = evaluate(s.expression);
        if (v.kind == Value::TEXT) return print(v.text);
        if (v.kind != Value::UNDEFINED) unknown();
        return;
      }
      case Statement::SET: return set(s);
      case Statement::IF:
        for (size_t i = 0; i < s.bodies.size(); i++) {
          if (i == s.conditions.size() || truth(evaluate(s.conditions[i]))) return run(s.bodies[i]);
        }
        return;
      case Statement::FOR: return loop(s);
      case Statement::OTHER: unknown();
    }
  }

  void set(const Statement& s) {
    Value v = evaluate(s.expression);
    if (s.attribute.empty()) {
      scopes_.back()[s.text] = std::move(v);
      return;
    }
    // What outlives a round of a loop can count messages. Numbers do that in steps that numbers()
    // knows.
    const Value target = variable(s.text);
    if (target.kind != Value::NAMESPACE) unknown();
    auto& attributes = namespaces_[target.number];
    attributes[s.attribute] = is_number(v) || v.kind == Value::NONE ? v : Value();
    if (attributes.size() > 4) unknown();
  }

  void loop(const Statement& s) {
    Value list = evaluate(s.expression);
    if (list.kind != Value::LIST) unknown();
    if (s.condition >= 0) {
      std::vector<Value> kept;
      for (const Value& item : list.items) {
        scopes_.emplace_back()[s.text] = item;
        if (truth(evaluate(s.condition))) kept.push_back(item);
        scopes_.pop_back();
      }
      list.items = std::move(kept);
    }
    for (size_t i = 0; i < list.items.size(); i++) {
      Value round = value_of(Value::LOOP, static_cast<int64_t>(i));
      round.length = static_cast<int64_t>(list.items.size());
      auto& scope = scopes_.emplace_back();
      scope[s.text] = list.items[i];
      scope["loop"] = round;
      run(s.bodies[0]);
      scopes_.pop_back();
    }
    if (list.items.empty()) run(s.bodies[1]);
  }

  Value variable(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto it = scope->find(name); it != scope->end()) return it->second;
    }
    if (name == "true" || name == "True") return boolean(true);
    if (name == "false" || name == "False") return boolean(false);
    if (name == "none" || name == "None" || name == "tools" || name == "documents")
      return value_of(Value::NONE);
    if (name == "add_generation_prompt") return boolean(true);
    if (name == "messages") {
      Value list = value_of(Value::LIST);
      for (size_t i = 0; i < roles_.size(); i++)
        list.items.push_back(value_of(Value::MESSAGE, static_cast<int64_t>(i)));
      return list;
    }
    if (name == "bos_token") return bos_.empty() ? value_of(Value::UNDEFINED) : literal(bos_);
    if (name == "eos_token") return eos_.empty() ? value_of(Value::UNDEFINED) : literal(eos_);
    if (name.ends_with("_token")) return Value();  // other special tokens of the vocabulary
    for (const char* other :
         {"range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception"}) {
      if (name == other) return Value();
    }
    // strftime_now is one of these: a template that asks for today's date gets the date it falls
    // back to.
    return value_of(Value::UNDEFINED);
  }

  bool truth(const Value& v) {
    switch (v.kind) {
      case Value::UNDEFINED:
      case Value::NONE: return false;
      case Value::BOOL: return v.flag;
      case Value::INTEGER: return v.number != 0;
      case Value::LIST: return !v.items.empty();
      case Value::MESSAGE:
      case Value::LOOP: return true;
      case Value::TEXT:
        if (v.text.empty()) return false;
        for (const TextPiece& piece : v.text) {
          if (piece.kind == TextPiece::LITERAL) return true;
        }
        unknown();  // a content: it may be empty or not
      default: unknown();
    }
  }

  Value evaluate(int index) {
    spend();
    const Expression& e = tree_.expressions[index];
    switch (e.kind) {
      case Expression::BAD: unknown();
      case Expression::STRING: spend(e.text.size()); return literal(e.text);
      case Expression::INTEGER: {
        met_[static_cast<size_t>(index)] = true;
        Value v = value_of(Value::INTEGER, e.number);
        v.plain = true;
        return v;
      }
      case Expression::NAME: {
        Value v = variable(e.text);
        spend(bytes_of(v));
        return v;
      }
      case Expression::LIST: {
        Value list = value_of(Value::LIST);
        for (const int item : e.operands) list.items.push_back(evaluate(item));
        return list;
      }
      case Expression::ATTRIBUTE: return member(evaluate(e.operands[0]), e.text);
      case Expression::ITEM: return item(evaluate(e.operands[0]), evaluate(e.operands[1]));
      case Expression::SLICE: return slice(e);
      case Expression::CALL: return call(e);
      case Expression::FILTER: return filter(e);
      case Expression::TEST: return test(e);
      case Expression::NOT: return boolean(!truth(evaluate(e.operands[0])));
      case Expression::MINUS: {
        Value v = evaluate(e.operands[0]);
        if (v.kind != Value::INTEGER) return Value();
        v.number = -v.number;
        return v;
      }
      case Expression::BINARY: return binary(e);
      case Expression::COMPARE:
        return compare(e.text, evaluate(e.operands[0]), evaluate(e.operands[1]));
      case Expression::CHOICE:
        if (truth(evaluate(e.operands[1]))) return evaluate(e.operands[0]);
        return e.operands[2] < 0 ? value_of(Value::UNDEFINED) : evaluate(e.operands[2]);
    }
    unknown();
  }

  Value member(const Value& of, const std::string& name) {
    switch (of.kind) {
      case Value::MESSAGE: {
        for (const char* method : kMessageMethods) {
          if (name == method) return Value();
        }
        if (name == "role") return literal(roles_[static_cast<size_t>(of.number)]);
        if (name != "content") return value_of(Value::UNDEFINED);
        Value v = value_of(Value::TEXT);
        v.text.push_back({TextPiece::CONTENT, "", static_cast<int>(of.number), {}});
        return v;
      }
      case Value::LOOP:
        if (name == "index0") return value_of(Value::INTEGER, of.number);
        if (name == "index") return value_of(Value::INTEGER, of.number + 1);
        if (name == "length") return value_of(Value::INTEGER, of.length);
        if (name == "first") return boolean(of.number == 0);
        if (name == "last") return boolean(of.number + 1 == of.length);
        return Value();
      case Value::NAMESPACE: {
        const auto& attributes = namespaces_[of.number];
        const auto it = attributes.find(name);
        return it == attributes.end() ? value_of(Value::UNDEFINED) : it->second;
      }
      case Value::TEXT:
        return name == "content" || name == "type" ? value_of(Value::UNDEFINED) : Value();
      case Value::UNDEFINED: unknown();  // Jinja stops with an error
      default: return Value();
    }
  }

  Value item(const Value& of, const Value& key) {
    std::string name;
    if ((of.kind == Value::MESSAGE || of.kind == Value::UNDEFINED) && known(key, &name))
      return member(of, name);
    if (of.kind != Value::LIST || key.kind != Value::INTEGER) return Value();
    const int64_t n = static_cast<int64_t>(of.items.size());
    const int64_t at = key.number < 0 ? key.number + n : key.number;
    return at >= 0 && at < n ? of.items[static_cast<size_t>(at)] : value_of(Value::UNDEFINED);
  }

  Value slice(const Expression& e) {
    Value of = evaluate(e.operands[0]);
    if (of.kind != Value::LIST) return Value();
    const int64_t n = static_cast<int64_t>(of.items.size());
    int64_t bounds[2] = {0, n};
    for (int i = 0; i < 2; i++) {
      if (e.operands[i + 1] < 0) continue;
      const Value bound = evaluate(e.operands[i + 1]);
      if (bound.kind != Value::INTEGER) return Value();
      bounds[i] = std::clamp<int64_t>(bound.number < 0 ? bound.number + n : bound.number, 0, n);
    }
    bounds[0] = std::min(bounds[0], bounds[1]);
    of.items = std::vector<Value>(of.items.begin() + bounds[0], of.items.begin() + bounds[1]);
    return of;
  }

  // Text without white space around it, or with other letters; name: a filter's or a method's,
  // without arguments.
  Value text_operation(const std::string& name, Value v) {
    if (v.kind != Value::TEXT) return Value();
    if (name == "trim" || name == "strip") {
      spend(literal_bytes(v.text));
      v.text = trimmed(std::move(v.text));
      if (trims(v.text) > kMaxTrims) unknown();
      return v;
    }
    if (name == "string") return v;
    std::string text;
    if (!known(v, &text) || !v.plain || text.find_first_not_of(kLetters) != std::string::npos)
      return Value();
    if (name != "upper" && name != "lower" && name != "capitalize" && name != "title")
      return Value();
    for (size_t i = 0; i < text.size(); i++) {
      const bool up = name == "upper" || (name != "lower" && i == 0);
      text[i] = static_cast<char>(up ? text[i] & ~0x20 : text[i] | 0x20);
    }
    return literal(text);
  }

  Value call(const Expression& e) {
    const Expression& callee = tree_.expressions[e.operands[0]];
    const size_t arguments = e.operands.size() - 1 + e.keywords.size();
    if (callee.kind == Expression::NAME && callee.text == "raise_exception")
      throw Stop{Outcome::RAISED};
    if (callee.kind == Expression::NAME && callee.text == "namespace" && e.operands.size() == 1) {
      std::map<std::string, Value> attributes;
      for (const auto& [name, expression] : e.keywords) {
        const Value v = evaluate(expression);
        attributes[name] = is_number(v) || v.kind == Value::NONE ? v : Value();
      }
      namespaces_.push_back(std::move(attributes));
      if (namespaces_.size() > 4) unknown();
      return value_of(Value::NAMESPACE, static_cast<int64_t>(namespaces_.size()) - 1);
    }
    if (callee.kind == Expression::ATTRIBUTE) {
      const Value of = evaluate(callee.operands[0]);
      if (arguments == 0 && of.kind == Value::TEXT) return text_operation(callee.text, of);
      std::string name;
      if (of.kind == Value::MESSAGE && callee.text == "get" && arguments == 1 &&
          e.keywords.empty() && known(evaluate(e.operands[1]), &name)) {
        const Value v = member(of, name);
        return v.kind == Value::UNDEFINED ? value_of(Value::NONE) : v;
      }
    }
    unknown();  // it may raise
  }

  Value filter(const Expression& e) {
    Value of = evaluate(e.operands[0]);
    if (e.operands.size() == 1 && of.kind == Value::TEXT)
      return text_operation(e.text, std::move(of));
    if (e.text == "default" && e.operands.size() == 2) {
      return of.kind == Value::UNDEFINED ? evaluate(e.operands[1]) : of;
    }
    if (of.kind == Value::LIST && (e.text == "selectattr" || e.text == "rejectattr"))
      return select(e, of);
    if (of.kind != Value::LIST || e.operands.size() != 1) return Value();
    if (e.text == "length" || e.text == "count")
      return value_of(Value::INTEGER, static_cast<int64_t>(of.items.size()));
    if (e.text == "list") return of;
    if ((e.text == "first" || e.text == "last") && !of.items.empty()) {
      return e.text == "first" ? of.items.front() : of.items.back();
    }
    return Value();
  }

  // Messages with or without an attribute, or one of some value: list | selectattr("role",
  // "equalto", "user").
  Value select(const Expression& e, const Value& list) {
    std::string name, test;
    if (e.operands.size() < 3 || !known(evaluate(e.operands[1]), &name) ||
        !known(evaluate(e.operands[2]), &test)) {
      return Value();
    }
    const bool equal =
        (test == "equalto" || test == "eq" || test == "==") && e.operands.size() == 4;
    const bool defined = test == "defined" && e.operands.size() == 3;
    if (!equal && !defined && !(test == "undefined" && e.operands.size() == 3)) return Value();
    const Value wanted = equal ? evaluate(e.operands[3]) : Value();
    Value out = value_of(Value::LIST);
    for (const Value& item : list.items) {
      if (item.kind != Value::MESSAGE) return Value();
      const Value v = member(item, name);
      const Value holds = equal ? compare("==", v, wanted)
                          : v.kind == Value::UNKNOWN
                              ? Value()
                              : boolean((v.kind != Value::UNDEFINED) == defined);
      if (holds.kind != Value::BOOL) return Value();
      if (holds.flag == (e.text == "selectattr")) out.items.push_back(item);
    }
    return out;
  }

  Value test(const Expression& e) {
    const Value of = evaluate(e.operands[0]);
    if (of.kind == Value::UNKNOWN) return Value();
    if (e.operands.size() == 2 && (e.text == "equalto" || e.text == "eq")) {
      return compare("==", of, evaluate(e.operands[1]));
    }
    if (e.operands.size() != 1) return Value();
    if (e.text == "defined") return boolean(of.kind != Value::UNDEFINED);
    if (e.text == "undefined") return boolean(of.kind == Value::UNDEFINED);
    if (e.text == "none") return boolean(of.kind == Value::NONE);
    if (e.text == "string") return boolean(of.kind == Value::TEXT);
    if (e.text == "mapping" && of.kind != Value::NAMESPACE)
      return boolean(of.kind == Value::MESSAGE);
    if (e.text == "true") return boolean(of.kind == Value::BOOL && of.flag);
    if (e.text == "false") return boolean(of.kind == Value::BOOL && !of.flag);
    const bool many = of.kind == Value::TEXT || of.kind == Value::LIST || of.kind == Value::MESSAGE;
    if (e.text == "iterable" && (many || is_number(of) || of.kind == Value::NONE))
      return boolean(many);
    if (e.text == "odd" && of.kind == Value::INTEGER) return boolean(of.number % 2 != 0);
    if (e.text == "even" && of.kind == Value::INTEGER) return boolean(of.number % 2 == 0);
    return Value();
  }

  Value binary(const Expression& e) {
    const Value left = evaluate(e.operands[0]);
    if (e.text == "and") return truth(left) ? evaluate(e.operands[1]) : left;
    if (e.text == "or") return truth(left) ? left : evaluate(e.operands[1]);
    const Value right = evaluate(e.operands[1]);
    if ((e.text == "+" || e.text == "~") && left.kind == Value::TEXT && right.kind == Value::TEXT) {
      Value v = value_of(Value::TEXT);
      v.text = left.text;
      append(&v.text, right.text);
      spend(literal_bytes(v.text));
      if (literal_bytes(v.text) > kMaxText) unknown();
      return v;
    }
    // Numbers: counting in steps that are written down, and taking turns; nothing by which a
    // template could tell a conversation of many messages from one of a few more.
    if (left.kind == Value::INTEGER && right.kind == Value::INTEGER) {
      if (e.text == "%" && right.plain && right.number == 2) {
        return value_of(Value::INTEGER, ((left.number % 2) + 2) % 2);
      }
      if (left.plain || right.plain) {
        if (e.text == "+") return value_of(Value::INTEGER, left.number + right.number);
        if (e.text == "-") return value_of(Value::INTEGER, left.number - right.number);
      }
    }
    return Value();
  }

  Value compare(const std::string& sign, const Value& left, const Value& right) {
    if (left.kind == Value::UNKNOWN || right.kind == Value::UNKNOWN) return Value();
    if (sign == "in" || sign == "not in") return contains(right, left, sign == "in");
    const bool numbers = is_number(left) && is_number(right);
    const int64_t a = number_of(left), b = number_of(right);
    if (sign != "==" && sign != "!=") {
      if (!numbers) return Value();
      return boolean(sign == "<" ? a < b : sign == "<=" ? a <= b : sign == ">" ? a > b : a >= b);
    }
    bool equal = false;
    if (numbers) {
      equal = a == b;
    } else if (left.kind == right.kind) {
      if (left.kind == Value::TEXT) {
        std::string x, y;
        // What was put together over several rounds could count them.
        if (!known(left, &x) || !known(right, &y) || !left.plain || !right.plain) return Value();
        equal = x == y;
      } else if (left.kind == Value::NONE || left.kind == Value::UNDEFINED) {
        equal = true;
      } else {
        return Value();
      }
    }
    return boolean(equal == (sign == "=="));
  }

  Value contains(const Value& where, const Value& what, bool wanted) {
    std::string text, part;
    if (where.kind == Value::MESSAGE && known(what, &part)) {
      return boolean((part == "role" || part == "content") == wanted);
    }
    if (where.kind == Value::TEXT && where.plain && what.plain && known(where, &text) &&
        known(what, &part)) {
      return boolean((text.find(part) != std::string::npos) == wanted);
    }
    if (where.kind != Value::LIST) return Value();
    for (const Value& item : where.items) {
      const Value same = compare("==", item, what);
      if (same.kind != Value::BOOL) return Value();
      if (same.flag) return boolean(wanted);
    }
    return boolean(!wanted);
  }

  const TemplateTree& tree_;
  const std::vector<std::string>& roles_;
  const std::string &bos_, &eos_;
  std::vector<bool>& met_;
  std::vector<std::map<std::string, Value>> scopes_;
  std::vector<std::map<std::string, Value>> namespaces_;
  TextPieces out_;
  size_t out_bytes_ = 0;
  int64_t work_ = 0;
};

}  // namespace

void append(TextPieces* text, const TextPieces& more) {
  for (const TextPiece& piece : more) {
    if (piece.kind == TextPiece::LITERAL && piece.text.empty()) continue;
    if (piece.kind == TextPiece::LITERAL && !text->empty() &&
        text->back().kind == TextPiece::LITERAL) {
      text->back().text += piece.text;
    } else {
      text->push_back(piece);
    }
  }
}

void append_literal(TextPieces* text, std::string_view more) {
  append(text, {{TextPiece::LITERAL, std::string(more), 0, {}}});
}

TextPieces trimmed(TextPieces text) {
  const auto is_literal = [](const TextPiece& piece) { return piece.kind == TextPiece::LITERAL; };
  while (!text.empty() && is_literal(text.front())) {
    text.front().text = strip_left(text.front().text);
    if (!text.front().text.empty()) break;
    text.erase(text.begin());
  }
  while (!text.empty() && is_literal(text.back())) {
    text.back().text = strip_right(text.back().text);
    if (!text.back().text.empty()) break;
    text.pop_back();
  }
  if (text.empty() || (is_literal(text.front()) && is_literal(text.back()))) return text;
  if (text.size() == 1 && text[0].kind == TextPiece::TRIMMED) return text;
  TextPieces out(1);
  out[0].kind = TextPiece::TRIMMED;
  out[0].inside = std::move(text);
  return out;
}

TemplateReader::TemplateReader(std::string_view text, std::string bos, std::string eos)
    : parsed_(parse_template(text, &tree_)), bos_(std::move(bos)), eos_(std::move(eos)) {
  met_.resize(tree_.expressions.size());
}

TemplateReader::Outcome TemplateReader::read(const std::vector<std::string>& roles,
                                             TextPieces* text) {
  text->clear();
  if (!parsed_) return Outcome::UNKNOWN;
  Reading reading(tree_, roles, bos_, eos_, &met_);
  try {
    reading.run(tree_.body);
  } catch (const Stop& stop) {
    return stop.outcome;
  }
  *text = reading.take();
  return Outcome::PRINTED;
}

int64_t TemplateReader::numbers() const {
  int64_t sum = 0;
  for (size_t i = 0; i < met_.size(); i++) {
    if (met_[i]) sum += tree_.expressions[i].number;
  }
  return sum;
}

}  // namespace riffle
