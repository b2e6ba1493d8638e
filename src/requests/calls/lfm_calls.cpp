// LFM2's calls: a list of calls in Python, or the same as JSON:
//     <|tool_call_start|>[f(k="v", n=3, on=True), g()]<|tool_call_end|>
#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"

namespace riffle::requests {
namespace {

constexpr std::string_view kEnd = "<|tool_call_end|>";

class LfmCall : public ConvertedCalls {
 public:
  Step step(std::string_view* text, bool over, CallSink* out) override {
    for (;;) {
      if (at_ == At::TEXT) {
        const Step step = string(text, over, out);
        if (step != Step::DONE) return step;
        continue;
      }
      if (at_ == At::OBJECT) {
        const Step step = object_->step(text, over, out);
        if (step == Step::BROKEN) return broken(object_->error());
        if (step == Step::MORE) return step;
        at_ = At::NEXT;
      }
      *text = without_left(*text);
      if (at_ == At::END) return end_mark(text, over, kEnd);
      if (text->empty()) return wait(over, "]");
      const Step step = part(text, over, out);
      if (step != Step::DONE) return step;
    }
  }

 private:
  Step part(std::string_view* text, bool over, CallSink* out) {
    const char c = text->front();
    const auto go = [&](At at) {
      text->remove_prefix(1);
      at_ = at;
      return Step::DONE;
    };
    switch (at_) {
      case At::LIST: return c == '[' ? go(At::CALL) : broken("expected [");
      case At::NEXT:
        if (c == ',') return go(At::CALL);
        return c == ']' ? go(At::END) : broken("expected , or ]");
      case At::CALL:
        if (c == '{') {
          object_ = std::make_unique<CallObject>();
          at_ = At::OBJECT;
          return Step::DONE;
        }
        if (c == ']') return go(At::END);
        return name(text, over, out);
      case At::KEY: return key(text, over, out);
      case At::VALUE: return value(text, over, out);
      default: return after(text, out);
    }
  }

  Step name(std::string_view* text, bool over, CallSink* out) {
    const size_t end = text->find('(');
    if (end == text->npos) return wait(over, "(");
    const std::string_view name = without_right(text->substr(0, end));
    if (!is_name(name)) return broken("expected the name of a function");
    begin(name, '(', out);
    text->remove_prefix(end + 1);
    at_ = At::KEY;
    return Step::DONE;
  }

  // A keyword of a call, or the key of a dict, which is a value.
  Step key(std::string_view* text, bool over, CallSink* out) {
    const bool call = open_.back() == '(';
    if (text->front() == (call ? ')' : '}')) {
      at_ = At::AFTER;
      return Step::DONE;
    }
    if (!call) return value(text, over, out);
    const size_t end = text->find_first_of("=,)");
    if (end == text->npos) return wait(over, "=");
    if ((*text)[end] != '=') return broken("expected a keyword and =");
    const std::string_view key = without_right(text->substr(0, end));
    if (key.empty() || key.find_first_of(kNotInKeyword) != key.npos)
      return broken("expected a keyword and =");
    put("\"" + json_string(key) + "\": ", out);
    text->remove_prefix(end + 1);
    at_ = At::VALUE;
    return Step::DONE;
  }

  Step value(std::string_view* text, bool over, CallSink* out) {
    const char c = text->front();
    if (c == '"' || c == '\'') {
      quote_ = c;
      put("\"", out);
      text->remove_prefix(1);
      at_ = At::TEXT;
      return Step::DONE;
    }
    if (c == '{' || c == '[') {
      open(text, out);
      at_ = c == '{' ? At::KEY : At::VALUE;
      return Step::DONE;
    }
    if (c == ']' && open_.back() == '[') {
      at_ = At::AFTER;
      return Step::DONE;
    }
    const size_t end = text->find_first_of(",)]}:");
    if (end == text->npos) return wait(over, "the end of a value");
    const std::string_view word = without_right(text->substr(0, end));
    put(word == "True" ? "true" : word == "False" ? "false" : word == "None" ? "null" : word, out);
    if (word.empty()) return broken("expected a value");
    text->remove_prefix(end);
    at_ = At::AFTER;
    return Step::DONE;
  }

  // Python's escapes that JSON lacks: \' and \xHH; all others are JSON's own. \/ is JSON's alone,
  // and the grammar of strings has it.
  Step string(std::string_view* text, bool over, CallSink* out) {
    while (!text->empty()) {
      const char c = text->front();
      if (c == quote_) {
        text->remove_prefix(1);
        put("\"", out);
        at_ = At::AFTER;
        return Step::DONE;
      }
      if (c != '\\') {
        const char stops[] = {quote_, '\\', '\0'};
        const size_t end = std::min(text->find_first_of(stops), text->size());
        put(json_piece(text->substr(0, end)), out);
        text->remove_prefix(end);
        continue;
      }
      if (text->size() < 2) return wait(over, "an escape");
      const char e = (*text)[1];
      const size_t n = e == 'x' ? 4 : e == 'u' ? 6 : 2;
      if (text->size() < n) return wait(over, "an escape");
      const std::string_view digits = text->substr(2, n - 2);
      if (digits.find_first_not_of("0123456789abcdefABCDEF") != digits.npos)
        return broken("expected hexadecimal digits");
      if (e == '\'') put("'", out);
      else if (e == 'x') put("\\u00" + std::string(digits), out);
      else if (std::string_view("nrtbf\\\"u/").find(e) != std::string_view::npos)
        put(text->substr(0, n), out);
      else put(json_string(text->substr(0, 2)), out);  // Python keeps unknown escapes
      text->remove_prefix(n);
    }
    return wait(over, "a quotation mark");
  }

  Step after(std::string_view* text, CallSink* out) {
    const char c = text->front(), open = open_.back();
    const char close = open == '(' ? ')' : open == '{' ? '}' : ']';
    text->remove_prefix(1);
    if (c == ':' && open == '{') {
      put(": ", out);
      at_ = At::VALUE;
      return Step::DONE;
    }
    if (c == ',') {
      put(", ", out);
      at_ = open == '[' ? At::VALUE : At::KEY;
      return Step::DONE;
    }
    if (c != close) return broken(std::string("expected , or ") + close);
    open_.pop_back();
    put(open == '[' ? "]" : "}", out);
    if (!open_.empty()) return Step::DONE;
    at_ = At::NEXT;
    return end(out);
  }

  enum class At { LIST, CALL, OBJECT, KEY, VALUE, TEXT, AFTER, NEXT, END } at_ = At::LIST;
  std::unique_ptr<CallObject> object_;
  char quote_ = '"';
};

}  // namespace

std::unique_ptr<CallParser> lfm_calls(const ToolUse& tools) {
  return std::make_unique<MarkedCalls>(
      std::vector<std::string>{"<|tool_call_start|>"}, "", std::string(kEnd),
      [](const ToolUse&) -> std::unique_ptr<CallBody> { return std::make_unique<LfmCall>(); },
      tools);
}

}  // namespace riffle::requests
