#include "requests/answer.h"

#include "requests/calls/json_scan.h"
#include "text/tokenizer.h"

namespace riffle::requests {
namespace {

class Collect : public CallSink {
 public:
  explicit Collect(AnswerPart* part) : part_(*part) {}
  void content(std::string_view text) override { part_.content += text; }
  void begin(std::string_view name) override { add(CallEvent::BEGIN, name); }
  void arguments(std::string_view json) override {
    const bool more = !part_.calls.empty() && part_.calls.back().kind == CallEvent::ARGUMENTS;
    if (more) part_.calls.back().text += json;
    else if (!json.empty()) add(CallEvent::ARGUMENTS, json);
  }
  void end() override { add(CallEvent::END, ""); }
  void broken(const std::string& error) override { add(CallEvent::BROKEN, error); }

 private:
  void add(CallEvent::Kind kind, std::string_view text) {
    part_.calls.push_back({kind, std::string(text)});
  }
  AnswerPart& part_;
};

}  // namespace

AnswerForm answer_form(const Model& model, const CallFormat* format, const ToolUse* tools) {
  AnswerForm form{reasoning_marks(model), format, {}, tools};
  if (!format) return form;
  form.marks.calls = !format->parser;
  if (!format->parser) return form;  // ReasoningSplit knows the tokens of headers
  for (const std::string_view marker : format->markers)
    if (const int32_t id = model.tokenizer->control_id(marker); id >= 0)
      form.markers.emplace(id, marker);
  return form;
}

AnswerSplit::AnswerSplit(const AnswerForm& form, bool in_reasoning)
    : reasoning_(form.marks, in_reasoning), markers_(form.markers) {
  if (form.format && form.format->parser) parser_ = form.format->parser(*form.tools);
}

AnswerPart AnswerSplit::put(int32_t token, std::string_view text) {
  const auto marker = markers_.find(token);
  if (marker == markers_.end()) return part_of(reasoning_.put(token, text), false);
  // Text passed along with a control token was held back, and precedes the token.
  return part_of(reasoning_.put(token, std::string(text) + marker->second), false);
}

AnswerPart AnswerSplit::finish() { return part_of(reasoning_.finish(), true); }

AnswerPart AnswerSplit::part_of(ReasoningSplit::Parts parts, bool over) {
  AnswerPart part;
  part.reasoning = std::move(parts.reasoning);
  Collect out(&part);
  if (parser_) {
    if (!parts.answer.empty()) parser_->put(parts.answer, &out);
    if (over) parser_->finish(&out);
  } else {
    part.content = std::move(parts.answer);
  }
  if (parts.called && !parts.called->empty()) {
    out.begin(*parts.called);
    arguments_.clear();
  }
  out.arguments(parts.arguments);
  arguments_ += parts.arguments;
  if (parts.called && parts.called->empty()) {
    const std::string error = arguments_error(arguments_);
    if (error.empty()) out.end();
    else out.broken(error);
  }
  return part;
}

}  // namespace riffle::requests
