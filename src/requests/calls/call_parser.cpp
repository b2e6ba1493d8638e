#include "requests/calls/call_parser.h"

#include <algorithm>
#include <optional>

#include "util/error.h"

namespace riffle::requests {
namespace {

// Passes on what a body says, and notes whether a call is open, and how much text is left behind
// the last call that has ended.
class Watch : public CallSink {
 public:
  Watch(CallSink* out, const std::string_view* text) : out_(out), text_(text) {}
  void content(std::string_view text) override { out_->content(text); }
  void begin(std::string_view name) override { out_->begin(name), began = open = true; }
  void arguments(std::string_view json) override { out_->arguments(json); }
  void end() override { out_->end(), open = false, left = text_->size(); }
  void broken(const std::string& error) override { out_->broken(error); }
  bool began = false, open = false;
  std::optional<size_t> left;

 private:
  CallSink* out_;
  const std::string_view* text_;
};

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_of(" \t\r\n\"'`,:;=()[]{}<>|") == text.npos;
}

CallBody::Step CallBody::end_mark(std::string_view* text, bool over, std::string_view mark) {
  const std::string_view rest = without_left(*text);
  const bool part = rest.size() < mark.size() && mark.starts_with(rest);
  if (part && !over) return Step::MORE;
  if (part) text->remove_prefix(text->size());
  else if (rest.starts_with(mark)) *text = rest.substr(mark.size());
  return Step::DONE;
}

void MarkedCalls::put(std::string_view text, CallSink* out) {
  held_ += text;
  run(false, out);
}

void MarkedCalls::finish(CallSink* out) { run(true, out); }

void MarkedCalls::run(bool over, CallSink* out) {
  for (bool more = true; more;)
    more = state_ == State::OUTSIDE  ? outside(over, out)
           : state_ == State::INSIDE ? inside(over, out)
                                     : swallow(over, out);
}

// The functions of the three states return true if another state has text to take.
bool MarkedCalls::outside(bool over, CallSink* out) {
  size_t at = held_.npos;
  const std::string* found = nullptr;
  for (const std::string& mark : begins_) {
    const size_t place = held_.find(mark);
    if (place < at) at = place, found = &mark;
  }
  std::string_view text = std::string_view(held_).substr(0, at);
  if (!found && !over) {
    size_t held = 0;
    for (const std::string& mark : begins_) held = std::max(held, partial_mark(text, mark));
    text.remove_suffix(held);
  }
  // White space is held back, since a call may follow.
  if (found || !over) text = without_right(text);
  const size_t used = text.size();
  if (after_) text = without_left(text);
  if (!text.empty()) {
    out->content(text);
    after_ = false;
  }
  if (!found) {
    if (over) held_.clear();
    else held_.erase(0, used);
    return false;
  }
  const bool keep = *found == kept_;
  raw_ = held_.substr(at, keep ? 0 : found->size());
  held_.erase(0, at + raw_.size());
  body_ = make_(tools_);
  state_ = State::INSIDE;
  return true;
}

bool MarkedCalls::inside(bool over, CallSink* out) {
  std::string_view text = held_;
  Watch watch(out, &text);
  watch.open = open_;
  const CallBody::Step step = body_->step(&text, over, &watch);
  const size_t used = held_.size() - text.size();
  open_ = watch.open;
  began_ = began_ || watch.began;
  if (watch.left) ended_ = raw_.size() + held_.size() - *watch.left;
  raw_.append(held_, 0, used);
  held_.erase(0, used);
  if (step == CallBody::Step::MORE) return false;
  state_ = State::OUTSIDE;
  after_ = true;
  if (step == CallBody::Step::BROKEN) {
    const std::string error =
        format("byte %zu of the call: %s", raw_.size() + 1, body_->error().c_str());
    if (open_) {
      error_ = error;
      state_ = State::SWALLOW;
    } else {
      // A marker that is a part of the body is not looked at again.
      if (raw_.empty()) {
        raw_ = held_.substr(0, kept_.size());
        held_.erase(0, raw_.size());
      }
      // Text of earlier calls of the body has been taken.
      std::string_view rest = std::string_view(raw_).substr(std::min(ended_, raw_.size()));
      if (began_) rest = without_left(rest);
      if (!rest.empty()) out->content(rest);
      out->broken(error);
      after_ = began_ && rest.empty();
    }
  }
  began_ = false;
  ended_ = 0;
  return true;
}

bool MarkedCalls::swallow(bool over, CallSink* out) {
  const size_t at = held_.find(end_);
  size_t n = at != held_.npos ? at : held_.size();
  if (at == held_.npos && !over) n -= partial_mark(held_, end_);
  if (n > 0) out->arguments(std::string_view(held_).substr(0, n));
  held_.erase(0, n);
  if (at == held_.npos && !over) return false;
  if (at != held_.npos) held_.erase(0, end_.size());
  out->broken(error_);
  open_ = false;
  state_ = State::OUTSIDE;
  return true;
}

}  // namespace riffle::requests
