// Mistral's calls, behind the control token [TOOL_CALLS]:
//     [TOOL_CALLS][{"name": "f", "arguments": {"k": "v"}}, ...]
//     [TOOL_CALLS]f[ARGS]{"k": "v"}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}
#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"

namespace riffle::requests {
namespace {

constexpr std::string_view kArgs = "[ARGS]", kId = "[CALL_ID]";

class MistralCall : public CallBody {
 public:
  Step step(std::string_view* text, bool over, CallSink* out) override {
    for (;;) {
      if (at_ == At::ARGUMENTS) {
        std::string taken;
        const bool ended = scan_.put(text, &taken);
        value_ += taken;
        out->arguments(taken);
        if (!ended) return wait(over, "the end of the arguments");
        const std::string error = arguments_error(value_);
        if (!error.empty()) return broken(error);
        out->end();
        return Step::DONE;
      }
      if (at_ == At::OBJECT) {
        const Step step = object_->step(text, over, out);
        if (step == Step::BROKEN) return broken(object_->error());
        if (step == Step::MORE) return step;
        if (!list_) return Step::DONE;
        at_ = At::COMMA;
      }
      *text = without_left(*text);
      if (text->empty()) return wait(over, "a call");
      if (at_ == At::COMMA) {
        const char c = text->front();
        if (c != ',' && c != ']') return broken("expected a comma or the end of the list");
        text->remove_prefix(1);
        if (c == ']') return Step::DONE;
        at_ = At::ITEM;
      } else if (at_ == At::ITEM || text->front() == '{') {
        object_ = std::make_unique<CallObject>();
        at_ = At::OBJECT;
      } else if (text->starts_with('[')) {
        text->remove_prefix(1);
        list_ = true;
        at_ = At::ITEM;
      } else {
        const Step step = name(text, over, out);
        if (step != Step::DONE) return step;
      }
    }
  }

 private:
  // Takes the name and the markers behind it.
  Step name(std::string_view* text, bool over, CallSink* out) {
    const size_t end = text->find_first_of("[{");
    if (end == text->npos) return wait(over, "[ARGS]");
    std::string_view rest = text->substr(end);
    if (rest.starts_with(kId)) {
      const size_t args = rest.find(kArgs);
      if (args == rest.npos) return wait(over, "[ARGS]");
      rest.remove_prefix(args);
    }
    if (rest != kArgs && (kArgs.starts_with(rest) || kId.starts_with(rest)))
      return wait(over, "[ARGS]");
    if (!rest.starts_with(kArgs) && !rest.starts_with('{')) return broken("expected [ARGS]");
    const std::string_view name = without_right(text->substr(0, end));
    if (!is_name(name)) return broken("expected the name of a function");
    out->begin(name);
    *text = rest.starts_with(kArgs) ? rest.substr(kArgs.size()) : rest;
    at_ = At::ARGUMENTS;
    return Step::DONE;
  }

  enum class At { NAME, ITEM, OBJECT, COMMA, ARGUMENTS } at_ = At::NAME;
  std::unique_ptr<CallObject> object_;
  JsonScan scan_;
  std::string value_;
  bool list_ = false;
};

}  // namespace

std::unique_ptr<CallParser> mistral_calls(const ToolUse& tools) {
  return std::make_unique<MarkedCalls>(
      std::vector<std::string>{"[TOOL_CALLS]"}, "", "[TOOL_CALLS]",
      [](const ToolUse&) -> std::unique_ptr<CallBody> { return std::make_unique<MistralCall>(); },
      tools);
}

}  // namespace riffle::requests
