// Gemma 4's calls: keys without quotes, and texts between the control token <|"|> twice:
//     <|tool_call>call:f{k:<|"|>text<|"|>,n:3,list:[true,{a:1}]}<tool_call|>
#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"

namespace riffle::requests {
namespace {

constexpr std::string_view kQuote = "<|\"|>", kCall = "call:", kEnd = "<tool_call|>";

class GemmaCall : public ConvertedCalls {
 public:
  Step step(std::string_view* text, bool over, CallSink* out) override {
    for (;;) {
      if (at_ == At::TEXT) {
        const size_t at = text->find(kQuote);
        const size_t n = at == text->npos ? text->size() - partial_mark(*text, kQuote) : at;
        put(json_piece(text->substr(0, n)), out);
        text->remove_prefix(n);
        if (at == text->npos) return wait(over, "<|\"|>");
        text->remove_prefix(kQuote.size());
        put("\"", out);
        at_ = At::AFTER;
        continue;
      }
      *text = without_left(*text);
      if (at_ == At::END) {
        if (text->starts_with(kCall)) at_ = At::NAME;  // another call
        else if (!over && kCall.starts_with(*text)) return Step::MORE;
        else return end_mark(text, over, kEnd);
      }
      if (text->empty()) return wait(over, "<tool_call|>");
      const Step step = at_ == At::NAME    ? name(text, over, out)
                        : at_ == At::KEY   ? key(text, over, out)
                        : at_ == At::VALUE ? value(text, over, out)
                                           : after(text, out);
      if (step != Step::DONE) return step;
    }
  }

 private:
  Step name(std::string_view* text, bool over, CallSink* out) {
    if (!text->starts_with(kCall.substr(0, text->size()))) return broken("expected call:");
    const size_t end = text->find('{');
    if (end == text->npos) return wait(over, "{");
    std::string_view name =
        text->substr(std::min(kCall.size(), end), end - std::min(kCall.size(), end));
    name = without_left(without_right(name));
    if (!is_name(name)) return broken("expected the name of a function");
    begin(name, '{', out);
    text->remove_prefix(end + 1);
    at_ = At::KEY;
    return Step::DONE;
  }

  Step key(std::string_view* text, bool over, CallSink* out) {
    if (text->starts_with('}') && json_.ends_with('{')) {
      at_ = At::AFTER;
      return Step::DONE;
    }
    std::string_view key;
    size_t end;
    if (text->starts_with(kQuote)) {
      end = text->find(kQuote, kQuote.size());
      if (end == text->npos) return wait(over, "<|\"|>");
      key = text->substr(kQuote.size(), end - kQuote.size());
      end = text->find(':', end);
    } else {
      end = text->find_first_of(":,}");
      if (end != text->npos && (*text)[end] != ':') return broken("expected a key and a colon");
      key = text->substr(0, end);
    }
    if (end == text->npos) return wait(over, "a colon");
    put("\"" + json_string(key) + "\":", out);
    text->remove_prefix(end + 1);
    at_ = At::VALUE;
    return Step::DONE;
  }

  Step value(std::string_view* text, bool over, CallSink* out) {
    if (text->starts_with(kQuote)) {
      text->remove_prefix(kQuote.size());
      put("\"", out);
      at_ = At::TEXT;
      return Step::DONE;
    }
    if (kQuote.starts_with(*text)) return wait(over, "a value");
    const char c = text->front();
    if (c == '{' || c == '[') {
      open(text, out);
      at_ = c == '{' ? At::KEY : At::VALUE;
      return Step::DONE;
    }
    if (c == ']' && json_.ends_with('[')) {
      at_ = At::AFTER;
      return Step::DONE;
    }
    const size_t end = text->find_first_of(",]}");
    if (end == text->npos) return wait(over, "the end of a value");
    const std::string_view word = without_right(text->substr(0, end));
    if (word.empty()) return broken("expected a value");
    bool json = true;
    try {
      (void)parse_json(word, {.depth = 2, .values = 2});
    } catch (const JsonError&) {
      json = false;
    }
    put(json ? std::string(word) : "\"" + json_string(word) + "\"", out);
    text->remove_prefix(end);
    at_ = At::AFTER;
    return Step::DONE;
  }

  Step after(std::string_view* text, CallSink* out) {
    const char c = text->front(), close = open_.back() == '{' ? '}' : ']';
    if (c == ',') {
      at_ = close == '}' ? At::KEY : At::VALUE;
    } else if (c == close) {
      open_.pop_back();
    } else {
      return broken(std::string("expected , or ") + close);
    }
    put(text->substr(0, 1), out);
    text->remove_prefix(1);
    if (!open_.empty()) return Step::DONE;
    at_ = At::END;
    return end(out);
  }

  enum class At { NAME, KEY, VALUE, TEXT, AFTER, END } at_ = At::NAME;
};

}  // namespace

std::unique_ptr<CallParser> gemma_calls(const ToolUse& tools) {
  return std::make_unique<MarkedCalls>(
      std::vector<std::string>{"<|tool_call>"}, "", std::string(kEnd),
      [](const ToolUse&) -> std::unique_ptr<CallBody> { return std::make_unique<GemmaCall>(); },
      tools);
}

}  // namespace riffle::requests
