#include "chat/template_interpreter.h"

#include <algorithm>
#include <map>
#include <new>

#include "chat/python_text.h"
#include "chat/template_calls.h"
#include "chat/template_lexer.h"
#include "chat/template_macros.h"
#include "util/error.h"

namespace riffle {

// A macro refers to the scope around it. The scope does not own the macro.
struct TemplateScope;
struct TemplateMacro {
  const TemplateStatement* statement = nullptr;
  std::weak_ptr<TemplateScope> around;
};
struct TemplateScope {
  std::shared_ptr<TemplateScope> outer;
  std::map<std::string, Value, std::less<>> variables;
};

namespace {

using Depth = TemplateDepth;
using Expression = TemplateExpression;
using Statement = TemplateStatement;

constexpr size_t kMaxOutput = size_t{64} << 20;  // plus 8 times the conversation
constexpr int64_t kMaxRange = 100000;            // Jinja's own
constexpr const char* kFunctions[] = {"range", "namespace", "dict", "raise_exception"};
enum class Flow { ON, BREAK, CONTINUE };

// One evaluation of a template.
class Rendering {
 public:
  Rendering(const TemplateTree& tree, const TemplateInput& input)
      : tree_(tree),
        input_(input),
        budget_(input.bytes),
        max_output_(kMaxOutput + 8 * input.bytes),
        scope_(std::make_shared<TemplateScope>()) {
    for (const auto& [name, value] : input.variables) scope_->variables[name] = value;
    push_scope();  // variables of the template hide the given ones
  }

  SourcedText run() {
    run(tree_.body);
    return std::move(out_);
  }
  int line() const { return line_; }

 private:
  // A scope that lasts as long as this object.
  struct Inner {
    explicit Inner(Rendering& r) : r(r), before(r.scope_) { r.push_scope(); }
    ~Inner() { r.scope_ = std::move(before); }
    Rendering& r;
    std::shared_ptr<TemplateScope> before;
  };

  void push_scope() {
    auto inner = std::make_shared<TemplateScope>();
    inner->outer = scope_;
    scope_ = std::move(inner);
  }

  const Expression& at(int index) const { return tree_.expressions[static_cast<size_t>(index)]; }

  void print(const SourcedText& text) {
    budget_.bytes(text.size());
    if (out_.size() + text.size() > max_output_)
      template_stop(TemplateStop::LIMIT, "it is stopped, since it prints more than 64 MiB");
    out_.append(text);
  }

  // ---- statements

  Flow run(const std::vector<int>& body) {
    for (const int index : body) {
      const Flow flow = run(tree_.statements[static_cast<size_t>(index)]);
      if (flow != Flow::ON) return flow;
    }
    return Flow::ON;
  }

  Flow run(const Statement& s) {
    const Depth depth(depth_);
    budget_.step();
    line_ = s.line;
    switch (s.kind) {
      case Statement::TEXT: print(SourcedText(s.text)); return Flow::ON;
      case Statement::OUTPUT: {
        const Value value = evaluate(s.expression);
        if (value.is(Value::STRING)) print(value.text());
        else print(to_text(value, budget_).text());
        return Flow::ON;
      }
      case Statement::SET: {
        assign(s, evaluate(s.expression));
        return Flow::ON;
      }
      case Statement::SET_BLOCK: {
        assign(s, filtered(s, printed(s.bodies[0])));
        return Flow::ON;
      }
      case Statement::FILTER_BLOCK: {
        print(to_text(filtered(s, printed(s.bodies[0])), budget_).text());
        return Flow::ON;
      }
      case Statement::IF:
        for (size_t i = 0; i < s.bodies.size(); i++) {
          if (i == s.conditions.size() || truth(evaluate(s.conditions[i]))) return run(s.bodies[i]);
        }
        return Flow::ON;
      case Statement::FOR: loop(s); return Flow::ON;
      case Statement::MACRO: {
        scope_->variables[s.text] = macro_of(s);
        return Flow::ON;
      }
      case Statement::CALL_BLOCK: call_block(s); return Flow::ON;
      case Statement::SCOPE: {
        std::vector<Value> values;
        for (const int value : s.conditions) values.push_back(evaluate(value));
        const Inner inner(*this);
        for (size_t i = 0; i < values.size(); i++) scope_->variables[s.targets[i]] = values[i];
        return run(s.bodies[0]);
      }
      case Statement::BREAK: return Flow::BREAK;
      case Statement::CONTINUE: return Flow::CONTINUE;
    }
    return Flow::ON;
  }

  // Returns a body's output as a value. A break or continue in the body ends here.
  Value printed(const std::vector<int>& body) {
    budget_.bytes(sizeof(TemplateScope));
    const Inner inner(*this);
    SourcedText before = std::exchange(out_, {});
    run(body);
    return Value::string(std::exchange(out_, std::move(before)));
  }

  Value filtered(const Statement& s, Value text) {
    const Inner inner(*this);
    scope_->variables[kPrinted] = std::move(text);
    return evaluate(s.expression);
  }

  void assign(const Statement& s, Value value) {
    if (s.targets.empty()) {
      const Value target = variable(s.text);
      if (!target.is(Value::NAMESPACE)) {
        template_stop(TemplateStop::FAILED,
                      "it sets an attribute of '" + s.text + "', which is not a namespace");
      }
      check_attribute(s.attribute);
      set_entry(&target.name_space().attributes, s.attribute, std::move(value));
      return;
    }
    unpack(s, value);
  }

  void set_entry(Entries* entries, const std::string& name, Value value) {
    for (auto& [key, old] : *entries) {
      if (key.str() != name) continue;
      old = std::move(value);
      return;
    }
    budget_.bytes(2 * sizeof(Value) + sizeof(SourcedText));
    entries->emplace_back(Value::string(name), std::move(value));
  }

  void unpack(const Statement& s, const Value& value) {
    budget_.bytes(sizeof(Value));
    auto& variables = scope_->variables;
    if (s.targets.size() == 1 && !s.unpack) {
      variables[s.targets[0]] = value;
      return;
    }
    const std::vector<Value> parts = items_of(value, budget_);
    if (parts.size() != s.targets.size()) {
      template_stop(TemplateStop::FAILED, "it unpacks " + std::to_string(parts.size()) +
                                              " values into " + std::to_string(s.targets.size()));
    }
    for (size_t i = 0; i < parts.size(); i++) variables[s.targets[i]] = parts[i];
  }

  void loop(const Statement& s) {
    auto state = std::make_shared<TemplateLoop>();
    state->items = items_of(evaluate(s.expression), budget_);
    if (s.condition >= 0) {
      std::vector<Value> kept;
      for (Value& item : state->items) {
        budget_.bytes(sizeof(TemplateScope));
        const Inner inner(*this);
        unpack(s, item);
        if (truth(evaluate(s.condition))) kept.push_back(std::move(item));
      }
      state->items = std::move(kept);
    }
    if (state->items.empty()) {
      const Inner inner(*this);
      run(s.bodies[1]);
      return;
    }
    const Value self = Value::loop(state);
    for (; state->index < state->items.size(); state->index++) {
      budget_.bytes(sizeof(TemplateScope));
      const Inner inner(*this);
      unpack(s, state->items[state->index]);
      scope_->variables["loop"] = self;
      if (run(s.bodies[0]) == Flow::BREAK) break;
    }
  }

  Value macro_of(const Statement& s) {
    budget_.bytes(sizeof(TemplateMacro));
    auto macro = std::make_shared<TemplateMacro>();
    macro->statement = &s;
    macro->around = scope_;
    macros_.push_back(macro);
    return Value::macro(macros_.back());
  }

  void call_block(const Statement& s) {
    const Expression& call = at(s.expression);
    const Value callee = evaluate(call.operands[0]);
    TemplateArguments given = arguments(call);
    given.keywords.emplace_back("caller", macro_of(s));
    print(to_text(this->call(callee, given), budget_).text());
  }

  // ---- expressions

  Value variable(const std::string& name) {
    for (const TemplateScope* scope = scope_.get(); scope; scope = scope->outer.get()) {
      budget_.step();
      if (const auto it = scope->variables.find(name); it != scope->variables.end())
        return it->second;
    }
    for (const char* function : kFunctions) {
      if (name == function) return Value::function(name);
    }
    if (name == "strftime_now") {
      return input_.date_is_defined ? Value::function(name) : Value::undefined(name);
    }
    for (const char* function : {"lipsum", "cycler", "joiner"}) {
      if (name == function)
        template_stop(TemplateStop::UNKNOWN, "it has the function '" + name + "'");
    }
    return Value::undefined(name);
  }

  Value evaluate(int index) {
    const Depth depth(depth_);
    budget_.step();
    const Expression& e = at(index);
    switch (e.kind) {
      case Expression::STRING:
        budget_.bytes(e.text.size() + sizeof(SourcedText));
        return Value::string(e.text);
      case Expression::INTEGER: return Value::integer(e.number);
      case Expression::REAL: return Value::real(e.real);
      case Expression::BOOL: return Value::boolean(e.number != 0);
      case Expression::NONE: return Value::none();
      case Expression::NAME: return variable(e.text);
      case Expression::LIST: return Value::list(values(e.operands));
      case Expression::TUPLE: return Value::list(values(e.operands), TemplateList::TUPLE);
      case Expression::DICT: return dict(e);
      case Expression::ATTRIBUTE: return get_attribute(evaluate(e.operands[0]), e.text, budget_);
      case Expression::ITEM: {
        const Value of = evaluate(e.operands[0]);
        return get_item(of, evaluate(e.operands[1]), budget_);
      }
      case Expression::SLICE: return slice(e);
      case Expression::CALL: return call(e);
      case Expression::FILTER: {
        const Value of = evaluate(e.operands[0]);
        return apply_filter(e.text, of, arguments(e), budget_);
      }
      case Expression::TEST: return test(e);
      case Expression::NOT: return Value::boolean(!truth(evaluate(e.operands[0])));
      case Expression::MINUS: return negative(evaluate(e.operands[0]));
      case Expression::PLUS: return negative(negative(evaluate(e.operands[0])));
      case Expression::AND: {
        Value left = evaluate(e.operands[0]);
        return truth(left) ? evaluate(e.operands[1]) : left;
      }
      case Expression::OR: {
        Value left = evaluate(e.operands[0]);
        return truth(left) ? left : evaluate(e.operands[1]);
      }
      case Expression::BINARY: {
        const Value left = evaluate(e.operands[0]);
        return binary(e.text, left, evaluate(e.operands[1]), budget_);
      }
      case Expression::COMPARE: return comparison(e);
      case Expression::CHOICE:
        if (truth(evaluate(e.operands[1]))) return evaluate(e.operands[0]);
        return e.operands[2] < 0 ? Value::undefined("the other branch") : evaluate(e.operands[2]);
    }
    return Value();
  }

  std::vector<Value> values(const std::vector<int>& operands) {
    budget_.bytes(operands.size() * sizeof(Value) + sizeof(TemplateList));
    std::vector<Value> out;
    for (const int operand : operands) out.push_back(evaluate(operand));
    return out;
  }

  Value dict(const Expression& e) {
    budget_.bytes(e.operands.size() * sizeof(Value) + sizeof(TemplateDict));
    Entries entries;
    for (size_t i = 0; i < e.operands.size(); i += 2) {
      const Value key = evaluate(e.operands[i]);
      if (key.is(Value::DICT) || key.is_list(TemplateList::LIST))
        wrong_type("a dict", key, "a key");
      Value value = evaluate(e.operands[i + 1]);
      const auto same = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
        return equal(entry.first, key, budget_);
      });
      if (same != entries.end()) same->second = std::move(value);
      else entries.emplace_back(key, std::move(value));
    }
    return Value::dict(std::move(entries));
  }

  Value slice(const Expression& e) {
    const Value of = evaluate(e.operands[0]);
    Value bounds[3];
    for (size_t i = 0; i < 3; i++) {
      bounds[i] = e.operands[i + 1] < 0 ? Value::none() : evaluate(e.operands[i + 1]);
      if (bounds[i].is(Value::UNDEFINED)) wrong_type("a slice", bounds[i], "whole numbers");
    }
    return get_slice(of, bounds, budget_);
  }

  Value test(const Expression& e) {
    const Value of = evaluate(e.operands[0]);
    return Value::boolean(apply_test(e.text, of, arguments(e), budget_));
  }

  Value comparison(const Expression& e) {
    Value left = evaluate(e.operands[0]);
    for (size_t i = 0; i < e.names.size(); i++) {
      Value right = evaluate(e.operands[i + 1]);
      if (!holds(e.names[i], left, right)) return Value::boolean(false);
      left = std::move(right);
    }
    return Value::boolean(true);
  }

  bool holds(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "==") return equal(a, b, budget_);
    if (sign == "!=") return !equal(a, b, budget_);
    if (sign == "in") return contains(a, b, budget_);
    if (sign == "not in") return !contains(a, b, budget_);
    const int order = compare(a, b, budget_);
    if (sign == "<") return order < 0;
    if (sign == "<=") return order <= 0;
    if (sign == ">") return order > 0;
    return order >= 0;
  }

  // ---- calls

  TemplateArguments arguments(const Expression& e) {
    TemplateArguments given;
    for (size_t i = 1; i < e.operands.size(); i++) given.list.push_back(evaluate(e.operands[i]));
    for (const auto& [name, operand] : e.keywords) given.add(name, evaluate(operand), budget_);
    return given;
  }

  Value call(const Expression& e) {
    const Value callee = evaluate(e.operands[0]);
    line_ = e.line;
    if (callee.is(Value::UNDEFINED) && callee.str() == "strftime_now")
      return function("strftime_now", arguments(e));
    if (callee.is(Value::UNDEFINED)) {
      template_stop(TemplateStop::UNKNOWN, "it calls '" + callee.str() + "', which is not defined");
    }
    return call(callee, arguments(e));
  }

  Value call(const Value& callee, const TemplateArguments& given) {
    switch (callee.kind()) {
      case Value::FUNCTION: return function(callee.str(), given);
      case Value::METHOD: return call_method(callee, given, budget_);
      case Value::MACRO: return call_macro(callee.macro(), given);
      default: wrong_type("a call", callee, "a function");
    }
  }

  Value function(const std::string& name, const TemplateArguments& given) {
    if (name == "raise_exception") {
      const BoundArguments bound(name, given, {"message"}, 1);
      template_stop(TemplateStop::RAISED, to_text(bound[0], budget_).str());
    }
    if (name == "strftime_now") {
      const BoundArguments bound(name, given, {"format"}, 1);
      const SourcedText* const format = bound.text(0);
      if (!format) wrong_type(name, bound[0], "a format");
      if (!input_.date) {
        template_stop(TemplateStop::UNKNOWN,
                      "it uses today's date, which is not given (option date)");
      }
      return Value::string(date_text(*input_.date, format->view()));
    }
    if (name == "range") return range(given);
    return named_values(name, given);
  }

  // Evaluates namespace(...) and dict(...).
  Value named_values(const std::string& name, const TemplateArguments& given) {
    Entries entries;
    if (given.list.size() > 1) template_stop(TemplateStop::FAILED, name + " is given two values");
    if (!given.list.empty()) {
      const Value& first = given.list[0];
      if (first.is(Value::UNDEFINED)) wrong_type(name, first, "a dict");
      if (first.is(Value::DICT)) {
        entries = first.dict().entries;
      } else {
        for (const Value& item : items_of(first, budget_)) {
          const std::vector<Value> pair = items_of(item, budget_);
          if (pair.size() != 2) template_stop(TemplateStop::FAILED, name + " is given no pairs");
          if (!pair[0].is(Value::STRING)) wrong_type(name, pair[0], "a name");
          set_entry(&entries, pair[0].str(), pair[1]);
        }
      }
    }
    for (const auto& [key, value] : entries) {
      if (!key.is(Value::STRING)) wrong_type(name, key, "names");
    }
    for (const auto& [key, value] : given.keywords) set_entry(&entries, key, value);
    budget_.bytes(entries.size() * 2 * sizeof(Value));
    if (name == "dict") return Value::dict(std::move(entries));
    for (const auto& [key, value] : entries) check_attribute(key.str());
    namespaces_.push_back(std::make_shared<TemplateNamespace>());
    namespaces_.back()->attributes = std::move(entries);
    return Value::name_space(namespaces_.back());
  }

  Value range(const TemplateArguments& given) {
    const BoundArguments bound("range", given, {"start", "stop", "step"}, 1);
    if (!given.keywords.empty()) template_stop(TemplateStop::FAILED, "range is given names");
    const int64_t start = bound.has(1) ? bound.whole(0, 0) : 0;
    const int64_t stop = bound.has(1) ? bound.whole(1, 0) : bound.whole(0, 0);
    const int64_t step = bound.whole(2, 1);
    if (step == 0) template_stop(TemplateStop::FAILED, "range has step 0");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      budget_.bytes(sizeof(Value));
      items.push_back(Value::integer(i));
      if (static_cast<int64_t>(items.size()) > kMaxRange)
        template_stop(TemplateStop::FAILED, "range has more than 100000 numbers");
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return Value::list(std::move(items));
  }

  Value call_macro(const TemplateMacro& macro, const TemplateArguments& given) {
    const Depth depth(depth_);
    const Statement& s = *macro.statement;
    const std::shared_ptr<TemplateScope> around = macro.around.lock();
    if (!around) template_stop(TemplateStop::UNKNOWN, "it calls a macro whose scope has ended");
    budget_.bytes(sizeof(TemplateScope));
    const std::shared_ptr<TemplateScope> before = std::exchange(scope_, around);
    struct Back {
      Rendering& r;
      std::shared_ptr<TemplateScope> scope;
      int line;
      ~Back() {
        r.scope_ = std::move(scope);
        r.line_ = line;
      }
    } back{*this, before, line_};
    push_scope();
    bind(s, given);
    SourcedText output = std::exchange(out_, {});
    run(s.bodies[0]);
    return Value::string(std::exchange(out_, std::move(output)));
  }

  void bind(const Statement& s, const TemplateArguments& given) {
    const std::string what = s.text.empty() ? "caller" : "macro " + s.text;
    std::vector<bool> bound(s.parameters.size());
    auto& variables = scope_->variables;
    std::vector<Value> more;
    Entries others;
    for (size_t i = 0; i < given.list.size(); i++) {
      if (i >= s.parameters.size()) {
        more.push_back(given.list[i]);
        continue;
      }
      variables[s.parameters[i].first] = given.list[i];
      bound[i] = true;
    }
    for (const auto& keyword : given.keywords) {
      const std::string& name = keyword.first;
      const auto at = std::find_if(s.parameters.begin(), s.parameters.end(),
                                   [&](const auto& parameter) { return parameter.first == name; });
      const size_t i = static_cast<size_t>(at - s.parameters.begin());
      if (at == s.parameters.end()) {
        if (name == "caller" && uses(s, "caller")) variables[name] = keyword.second;
        else if (name != "caller" && uses(s, "kwargs")) set_entry(&others, name, keyword.second);
        else template_stop(TemplateStop::FAILED, what + " is given the unknown argument " + name);
        continue;
      }
      if (bound[i]) template_stop(TemplateStop::FAILED, what + " is given " + name + " twice");
      variables[name] = keyword.second;
      bound[i] = true;
    }
    if (!more.empty() && !uses(s, "varargs"))
      template_stop(TemplateStop::FAILED, what + " is given too many arguments");
    if (uses(s, "varargs"))
      variables["varargs"] = Value::list(std::move(more), TemplateList::TUPLE);
    if (uses(s, "kwargs")) variables["kwargs"] = Value::dict(std::move(others));
    for (size_t i = 0; i < s.parameters.size(); i++) {
      if (bound[i]) continue;
      const auto& [name, value] = s.parameters[i];
      Value otherwise = value < 0 ? Value::undefined(name) : evaluate(value);
      variables[name] = std::move(otherwise);
    }
  }

  bool uses(const Statement& macro, std::string_view name) {
    return macro_uses({tree_, budget_, depth_}, macro, name);
  }

  const TemplateTree& tree_;
  const TemplateInput& input_;
  TemplateBudget budget_;
  size_t max_output_;
  // Values point to these without owning them.
  std::vector<std::shared_ptr<TemplateNamespace>> namespaces_;
  std::vector<std::shared_ptr<TemplateMacro>> macros_;
  std::shared_ptr<TemplateScope> scope_;
  SourcedText out_;
  int depth_ = 0, line_ = 1;
};

// Shortens text of a template or message to one line of an error.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (out.size() >= 300) break;
    out += static_cast<uint8_t>(c) < 0x20 || c == 0x7F ? ' ' : c;
  }
  if (out.size() < text.size()) {
    while (!out.empty() && (static_cast<uint8_t>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty()) out.pop_back();
    out += "...";
  }
  return out;
}

}  // namespace

SourcedText JinjaTemplate::render(const TemplateInput& input) const {
  Rendering rendering(tree_, input);
  try {
    return rendering.run();
  } catch (const TemplateStop& stop) {
    const std::string text = one_line(stop.text);
    switch (stop.kind) {
      case TemplateStop::RAISED:
        fail(RIFFLE_BAD_ARGUMENT, "the model's chat template refuses the conversation: %s",
             text.c_str());
      case TemplateStop::UNKNOWN:
        fail(RIFFLE_UNSUPPORTED,
             "the model's chat template, line %d: %s, which riffle does not support",
             rendering.line(), text.c_str());
      case TemplateStop::FAILED:
      case TemplateStop::LIMIT: break;
    }
    fail(RIFFLE_UNSUPPORTED, "the model's chat template, line %d: %s", rendering.line(),
         text.c_str());
  }
}

bool JinjaTemplate::mentions(std::string_view name) const {
  return std::any_of(tree_.expressions.begin(), tree_.expressions.end(), [&](const Expression& e) {
    return e.kind == Expression::NAME && e.text == name;
  });
}

}  // namespace riffle
