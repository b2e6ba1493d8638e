// Calls between <tool_call> and </tool_call>. Their first character tells the format:
//     {"name": "f", "arguments": {"k": "v"}}                  Hermes, Qwen
//     <function=f><parameter=k>v</parameter></function>       Qwen3-Coder, Qwen3.5
//     f<arg_key>k</arg_key><arg_value>v</arg_value>           GLM
#include <set>

#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"
#include "util/json.h"

namespace riffle::requests {
namespace {

constexpr std::string_view kEnd = "</tool_call>", kFunction = "<function=";

// Texts of parameters have no quotes: the schema says whether they are strings.
bool is_text(const Tool* tool, const std::string& key) {
  const Json* const schema = tool ? tool->parameters() : nullptr;
  const Json* const properties = schema ? schema->find("properties") : nullptr;
  const Json* const property = properties ? properties->find(key) : nullptr;
  const Json* const type = property ? property->find("type") : nullptr;
  return type && type->equals("string");
}

std::string json_value(const std::string& text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  try {
    Json value;
    read_value(text, &value);
    return text;
  } catch (const JsonError&) {
    return "\"" + json_string(text) + "\"";
  }
}

std::string trimmed(std::string_view text) {
  return std::string(without_right(without_left(text)));
}

// Takes a word up to the mark, and the mark. Returns false if it is not there yet.
bool take_to(std::string_view* text, std::string_view mark, std::string* word) {
  const size_t at = text->find(mark);
  if (at == text->npos) return false;
  *word = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return true;
}

std::string twice(const std::string& key) {
  return "found the parameter \"" + json_string(key) + "\" twice, expected it once";
}

// Parameters in tags, as the arguments of a call. Strings are passed on as they are written.
class Parameters {
 public:
  // Line breaks at the ends of a value belong to the tags.
  Parameters(const Tool* tool, bool lines) : tool_(tool), lines_(lines) {}
  bool has(const std::string& key) const { return keys_.contains(key); }
  void key(std::string key, CallSink* out) {
    out->arguments((keys_.empty() ? "{\"" : ", \"") + json_string(key) + "\": ");
    text_ = is_text(tool_, key);
    keys_.insert(std::move(key));
    value_.clear();
    scan_ = {};
    scanned_ = false;
    first_ = true;
    if (text_) out->arguments("\"");
  }
  // Takes text of a value. Returns true at its end. A value that the answer's end cuts is passed on
  // as far as it goes.
  bool value(std::string_view* text, bool over, std::string_view end, CallSink* out) {
    for (;;) {
      if (first_ && lines_ && !text->empty()) {
        if (text->front() == '\n') text->remove_prefix(1);
        first_ = false;
      }
      const size_t at = text->find(end);
      const bool ends = at != text->npos;
      size_t n = ends ? at : text->size() - partial_mark(*text, end);
      if (text_ && lines_ && n > 0 && (*text)[n - 1] == '\n') --n;
      put(text->substr(0, n), out);
      text->remove_prefix(n);
      if (!ends) {
        if (over && !text_) out->arguments(value_);
        return false;
      }
      text->remove_prefix(text->find(end) + end.size());
      if (!text_ && scan_.in_string()) {  // the mark is a part of a string in a JSON value
        put(end, out);
        continue;
      }
      out->arguments(text_ ? "\"" : json_value(trimmed(value_)));
      return true;
    }
  }
  void end(CallSink* out) {
    out->arguments(keys_.empty() ? "{}" : "}");
    out->end();
  }

 private:
  void put(std::string_view part, CallSink* out) {
    if (text_) {
      out->arguments(json_piece(part));
      return;
    }
    value_ += part;
    if (!scanned_ && !scan_.begun()) {
      part = without_left(part);
      // Words such as True are no JSON, and neither is text behind the value.
      if (!part.empty()) scanned_ = part.find_first_of("{[\"") != 0;
    }
    std::string taken;
    if (!scanned_ && !part.empty()) scanned_ = scan_.put(&part, &taken);
  }

  const Tool* tool_;
  bool lines_, text_ = false, first_ = false;
  JsonScan scan_;         // reads a value that begins as JSON
  bool scanned_ = false;  // its end is known
  std::string value_;
  std::set<std::string> keys_;
};

class XmlCall : public CallBody {
 public:
  explicit XmlCall(const ToolUse& tools) : tools_(tools), parameters_(nullptr, true) {}
  Step step(std::string_view* text, bool over, CallSink* out) override {
    constexpr std::string_view key = "<parameter=", end = "</function>";
    for (;;) {
      if (at_ == At::VALUE) {
        if (!parameters_.value(text, over, "</parameter>", out)) return wait(over, "</parameter>");
        at_ = At::PARAMETER;
      }
      *text = without_left(*text);
      std::string word;
      if (at_ == At::FUNCTION) {
        if (!text->starts_with(kFunction.substr(0, text->size())))
          return broken("expected <function=");
        if (!take_to(text, ">", &word)) return wait(over, "the name of a function");
        word = trimmed(std::string_view(word).substr(std::min(kFunction.size(), word.size())));
        if (!is_name(word)) return broken("expected the name of a function");
        out->begin(word);
        parameters_ = Parameters(tools_.find(word), true);
        at_ = At::PARAMETER;
      } else if (text->starts_with(end)) {
        text->remove_prefix(end.size());
        parameters_.end(out);
        return Step::DONE;
      } else if (text->starts_with(key)) {
        std::string_view rest = *text;
        if (!take_to(&rest, ">", &word)) return wait(over, "the name of a parameter");
        word = word.substr(key.size());
        if (parameters_.has(word)) return broken(twice(word));
        *text = rest;
        parameters_.key(std::move(word), out);
        at_ = At::VALUE;
      } else if (key.starts_with(*text) || end.starts_with(*text)) {
        return wait(over, "<parameter= or </function>");
      } else {
        return broken("expected <parameter= or </function>");
      }
    }
  }

 private:
  const ToolUse& tools_;
  Parameters parameters_;
  enum class At { FUNCTION, PARAMETER, VALUE } at_ = At::FUNCTION;
};

class GlmCall : public CallBody {
 public:
  explicit GlmCall(const ToolUse& tools) : tools_(tools), parameters_(nullptr, false) {}
  Step step(std::string_view* text, bool over, CallSink* out) override {
    constexpr std::string_view key = "<arg_key>", value = "<arg_value>";
    for (;;) {
      if (at_ == At::VALUE) {
        if (!parameters_.value(text, over, "</arg_value>", out)) return wait(over, "</arg_value>");
        at_ = At::KEY;
      }
      *text = without_left(*text);
      std::string word;
      if (at_ == At::NAME) {
        const size_t end = text->find('<');
        if (end == text->npos) return wait(over, "<arg_key> or </tool_call>");
        word = trimmed(text->substr(0, end));
        if (!is_name(word)) return broken("expected the name of a function");
        text->remove_prefix(end);
        out->begin(word);
        parameters_ = Parameters(tools_.find(word), false);
        at_ = At::KEY;
      } else if (at_ == At::KEY && text->starts_with(kEnd)) {
        parameters_.end(out);
        return Step::DONE;
      } else if (at_ == At::KEY && text->starts_with(key)) {
        std::string_view rest = text->substr(key.size());
        if (!take_to(&rest, "</arg_key>", &word)) return wait(over, "</arg_key>");
        word = trimmed(word);
        if (parameters_.has(word)) return broken(twice(word));
        *text = rest;
        parameters_.key(std::move(word), out);
        at_ = At::BETWEEN;
      } else if (at_ == At::BETWEEN && text->starts_with(value)) {
        text->remove_prefix(value.size());
        at_ = At::VALUE;
      } else if (at_ == At::KEY ? key.starts_with(*text) || kEnd.starts_with(*text)
                                : value.starts_with(*text)) {
        return wait(over, at_ == At::KEY ? "<arg_key> or </tool_call>" : "<arg_value>");
      } else {
        return broken(at_ == At::KEY ? "expected <arg_key> or </tool_call>"
                                     : "expected <arg_value>");
      }
    }
  }

 private:
  const ToolUse& tools_;
  Parameters parameters_;
  enum class At { NAME, KEY, BETWEEN, VALUE } at_ = At::NAME;
};

// Calls of one of the formats, and the end marker, which some models leave out at the end.
class TagCall : public CallBody {
 public:
  explicit TagCall(const ToolUse& tools) : tools_(tools) {}
  Step step(std::string_view* text, bool over, CallSink* out) override {
    for (;;) {
      if (call_) {
        const Step step = call_->step(text, over, out);
        if (step == Step::BROKEN) return broken(call_->error());
        if (step == Step::MORE) return step;
        call_.reset();
        any_ = true;
      }
      const std::string_view rest = without_left(*text);
      const bool another = rest.starts_with('{') || rest.starts_with(kFunction);
      if (any_ && !another) {
        if (!over && kFunction.starts_with(rest)) return Step::MORE;
        return end_mark(text, over, kEnd);
      }
      if (rest.empty()) return wait(over, "a call");
      *text = rest;
      if (rest[0] == '{') call_ = std::make_unique<CallObject>();
      else if (rest[0] == '<') call_ = std::make_unique<XmlCall>(tools_);
      else call_ = std::make_unique<GlmCall>(tools_);
    }
  }

 private:
  const ToolUse& tools_;
  std::unique_ptr<CallBody> call_;
  bool any_ = false;
};

}  // namespace

std::unique_ptr<CallParser> tag_calls(const ToolUse& tools) {
  // Qwen3-Coder sometimes leaves out <tool_call>.
  return std::make_unique<MarkedCalls>(
      std::vector<std::string>{"<tool_call>", std::string(kFunction)}, std::string(kFunction),
      std::string(kEnd),
      [](const ToolUse& all) -> std::unique_ptr<CallBody> {
        return std::make_unique<TagCall>(all);
      },
      tools);
}

}  // namespace riffle::requests
