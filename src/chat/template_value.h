// The values that a chat template computes with: Python's, as far as Jinja shows them.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/sourced_text.h"

namespace riffle {

inline constexpr int kDeepestValue = 64;  // depth of nested lists and dictionaries

// Ends a rendering. RAISED: the template refuses the conversation, in its own words. FAILED: Python
// would raise an exception. UNKNOWN: riffle does not support it. LIMIT: a bound was exceeded.
struct TemplateStop {
  enum Kind { RAISED, FAILED, UNKNOWN, LIMIT } kind;
  std::string text;
};
[[noreturn]] void template_stop(TemplateStop::Kind kind, const std::string& text);

// Limits of one rendering. Throws TemplateStop of kind LIMIT.
class TemplateBudget {
 public:
  explicit TemplateBudget(size_t input_bytes);
  void step() {
    if (--steps_ < 0) steps_ended();
  }
  // Called before memory is taken, and for work that grows with the length of a text. Nothing is
  // returned to the budget: the sum bounds the memory held at one time, and the time spent copying.
  void bytes(size_t n) {
    if (n > bytes_) bytes_ended();
    bytes_ -= n;
  }

  // Counts filters that call filters, to bound the stack of a thread.
  class Nested {
   public:
    explicit Nested(TemplateBudget& budget);
    ~Nested() { budget_.nested_--; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    TemplateBudget& budget_;
  };

 private:
  [[noreturn]] static void steps_ended();
  [[noreturn]] static void bytes_ended();
  int64_t steps_;
  size_t bytes_;
  int nested_ = 0;
};

class Value;
using Entries = std::vector<std::pair<Value, Value>>;

// Items of a list. Their form matters where Python's types differ: a generator has no length and
// can be read once.
struct TemplateList {
  enum Form { LIST, TUPLE, GENERATOR, VIEW } form = LIST;
  int depth = 1;
  std::vector<Value> items;
  mutable bool consumed = false;  // GENERATOR
};
struct TemplateDict {
  int depth = 1;
  Entries entries;  // in order of insertion; all keys differ
};
struct TemplateLoop {
  std::vector<Value> items;
  size_t index = 0;
  int depth = 1;                 // depth of its items' nesting
  std::vector<Value> last_seen;  // for loop.changed(); no loops: they would own themselves
  bool seen = false;
};
struct TemplateNamespace;
struct TemplateMacro;

class Value {
 public:
  enum Kind : uint8_t {
    UNDEFINED,  // text: its name, for errors
    NONE,
    BOOL,
    INTEGER,
    REAL,
    STRING,
    LIST,
    DICT,
    LOOP,
    NAMESPACE,
    MACRO,     // a macro; the rendering owns it, not the value
    FUNCTION,  // text: a global's name
    METHOD     // the pair of an object and a name
  };

  Value() = default;
  static Value none() { return Value(NONE); }
  static Value boolean(bool flag);
  static Value integer(int64_t number);
  static Value real(double number);
  static Value string(SourcedText text, bool markup = false);
  static Value string(std::string_view text) { return string(SourcedText(text)); }
  static Value undefined(std::string name);
  static Value function(std::string name);
  // Throws TemplateStop if values are nested too deep.
  static Value list(std::vector<Value> items, TemplateList::Form form = TemplateList::LIST);
  static Value dict(Entries entries);
  static Value loop(std::shared_ptr<TemplateLoop> state);  // sets the state's depth
  static Value name_space(std::shared_ptr<TemplateNamespace> state);
  static Value macro(std::shared_ptr<TemplateMacro> state);
  static Value method(Value of, std::string name);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == BOOL || kind_ == INTEGER || kind_ == REAL; }
  bool is_whole() const { return kind_ == BOOL || kind_ == INTEGER; }
  bool is_list(TemplateList::Form form) const { return kind_ == LIST && list().form == form; }
  bool flag() const { return number_ != 0; }
  int64_t integer() const { return number_; }  // for a BOOL: 0 or 1
  double real() const { return kind_ == REAL ? real_ : static_cast<double>(number_); }
  bool markup() const { return markup_; }  // STRING: counts as escaped (filter safe)
  const SourcedText& text() const { return as<SourcedText>(); }
  const std::string& str() const { return text().str(); }
  const TemplateList& list() const { return as<TemplateList>(); }
  const TemplateDict& dict() const { return as<TemplateDict>(); }
  TemplateLoop& loop() const { return as<TemplateLoop>(); }
  TemplateNamespace& name_space() const { return as<TemplateNamespace>(); }
  TemplateMacro& macro() const { return as<TemplateMacro>(); }
  std::shared_ptr<TemplateLoop> shared_loop() const {
    return std::static_pointer_cast<TemplateLoop>(data_);
  }
  const std::pair<Value, std::string>& method() const {
    return as<std::pair<Value, std::string>>();
  }
  const void* identity() const { return data_.get(); }

  const Value* find(const Value& key) const;  // DICT: the entry's value, or nullptr
  const Value* find(std::string_view key) const;
  int depth() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  template <class T>
  T& as() const {
    return *static_cast<T*>(data_.get());
  }

  Kind kind_ = UNDEFINED;
  bool markup_ = false;
  union {
    int64_t number_ = 0;
    double real_;
  };
  std::shared_ptr<void> data_;
};

// ns = namespace(...): the only object that a template can change. The rendering owns it, values do
// not, so that no cycle of owners can arise.
struct TemplateNamespace {
  Entries attributes;  // keys are strings
};
// Throws TemplateStop for a name that begins with an underscore: transformers refuses such
// attributes.
void check_attribute(const std::string& name);

const char* type_name(const Value& value);  // its type's name in Python
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, TemplateBudget& budget);
// Returns a number below, equal to or above 0. Fails for types that Python does not order.
int compare(const Value& a, const Value& b, TemplateBudget& budget);
// Evaluates Python's `in`.
bool contains(const Value& item, const Value& of, TemplateBudget& budget);
// Returns the items that a for loop goes through; a generator is consumed. Fails for a value that
// cannot be iterated.
std::vector<Value> items_of(const Value& value, TemplateBudget& budget);

// Append str(value) and repr(value).
void append_text(const Value& value, SourcedText* out, TemplateBudget& budget);
void append_repr(const Value& value, SourcedText* out, TemplateBudget& budget);
Value to_text(const Value& value, TemplateBudget& budget);

// json.dumps with the settings that filter tojson takes.
struct JsonStyle {
  bool ascii = false;
  bool sort_keys = false;
  bool lines = false;  // indent is set
  std::string indent;
  std::string between, colon;
};
void append_json(const Value& value, const JsonStyle& style, SourcedText* out,
                 TemplateBudget& budget);

}  // namespace riffle
