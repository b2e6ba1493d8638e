// Llama 3's calls: an answer that is one object, or several with semicolons between them, maybe
// behind the control token <|python_tag|>:
//     {"name": "f", "parameters": {"k": "v"}}
// Any other answer is content, and so is an object without the name of one of the tools.
#include "requests/calls/formats.h"
#include "requests/calls/json_scan.h"
#include "util/error.h"

namespace riffle::requests {
namespace {

constexpr std::string_view kTag = "<|python_tag|>";

class LlamaCalls : public CallParser, private CallSink {
 public:
  explicit LlamaCalls(const ToolUse& tools) : tools_(tools) {}
  void put(std::string_view text, CallSink* out) override {
    held_ += text;
    run(false, out);
  }
  void finish(CallSink* out) override { run(true, out); }

 private:
  // A CallSink between the object and the parser's: notes whether a call has begun.
  void content(std::string_view text) override { out_->content(text); }
  void begin(std::string_view name) override { out_->begin(name), begun_ = true; }
  void arguments(std::string_view json) override { out_->arguments(json); }
  void end() override { out_->end(); }
  void broken(const std::string& error) override { out_->broken(error); }

  void run(bool over, CallSink* out) {
    out_ = out;
    while (more(over)) {
    }
  }

  bool more(bool over) {
    if (state_ == State::CONTENT) {
      if (!held_.empty()) out_->content(held_);
      held_.clear();
      return false;
    }
    if (state_ == State::BROKEN) {
      if (!held_.empty()) out_->arguments(held_);
      held_.clear();
      if (over) out_->broken(error_);
      return false;
    }
    if (state_ == State::BETWEEN) {
      std::string_view rest = without_left(held_);
      const bool tagged = rest.starts_with(kTag);
      if (tagged) rest = without_left(rest.substr(kTag.size()));
      if (!tagged && any_ && rest.starts_with(';')) rest = without_left(rest.substr(1));
      if (rest.empty() || (!over && kTag.starts_with(rest))) {
        if (over && (!any_ || rest != without_left(held_))) return to_content();
        return false;
      }
      if (rest[0] != '{') return to_content();
      raw_ = held_.substr(0, held_.size() - rest.size());
      held_.erase(0, raw_.size());
      begun_ = false;
      object_ = std::make_unique<CallObject>(
          [this](std::string_view name) { return tools_.find(name) != nullptr; });
      state_ = State::OBJECT;
    }
    std::string_view text = held_;
    const CallBody::Step step = object_->step(&text, over, this);
    const size_t used = held_.size() - text.size();
    raw_.append(held_, 0, used);
    held_.erase(0, used);
    if (step == CallBody::Step::MORE) return false;
    if (step == CallBody::Step::DONE) {
      any_ = true;
      state_ = State::BETWEEN;
      return true;
    }
    error_ = format("byte %zu of the call: %s", raw_.size() + 1, object_->error().c_str());
    if (begun_) {
      state_ = State::BROKEN;
      return true;
    }
    held_ = raw_ + held_;
    return to_content();
  }

  bool to_content() {
    state_ = State::CONTENT;
    return true;
  }

  const ToolUse& tools_;
  CallSink* out_ = nullptr;
  enum class State { BETWEEN, OBJECT, CONTENT, BROKEN } state_ = State::BETWEEN;
  std::unique_ptr<CallObject> object_;
  std::string held_, raw_, error_;
  bool begun_ = false, any_ = false;
};

}  // namespace

std::unique_ptr<CallParser> llama_calls(const ToolUse& tools) {
  return std::make_unique<LlamaCalls>(tools);
}

}  // namespace riffle::requests
