// Finds calls of tools in the text of an answer, while it is written. Control tokens among the
// markers of a format stand in the text as the vocabulary spells them.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "requests/marks.h"
#include "requests/tools.h"

namespace riffle::requests {

// Takes what a parser finds, in the order of the text.
class CallSink {
 public:
  virtual ~CallSink() = default;
  virtual void content(std::string_view text) = 0;
  virtual void begin(std::string_view name) = 0;      // a call begins
  virtual void arguments(std::string_view json) = 0;  // more arguments of this call
  virtual void end() = 0;                             // this call ends
  // The format is wrong, in the open call if there is one. error: the place and what was expected.
  virtual void broken(const std::string& error) = 0;
};

class CallParser {
 public:
  virtual ~CallParser() = default;
  virtual void put(std::string_view text, CallSink* out) = 0;
  virtual void finish(CallSink* out) = 0;  // the answer has ended
};

// The text of one or more calls behind a begin marker.
class CallBody {
 public:
  enum class Step { MORE, DONE, BROKEN };
  virtual ~CallBody() = default;
  // Takes text from the front of *text and removes it there. over: no more text follows; then the
  // result is not MORE.
  virtual Step step(std::string_view* text, bool over, CallSink* out) = 0;
  const std::string& error() const { return error_; }  // BROKEN: what was expected

 protected:
  Step broken(std::string error) {
    error_ = std::move(error);
    return Step::BROKEN;
  }
  // Takes the marker behind the last call, which a model may leave out. An answer may end inside of
  // it.
  static Step end_mark(std::string_view* text, bool over, std::string_view mark);
  // The answer has ended, or more text is needed.
  Step wait(bool over, const char* expected) {
    return over ? broken(std::string("the answer ended, expected ") + expected) : Step::MORE;
  }

 private:
  std::string error_;
};

// Calls between markers, with content around them. White space around calls is dropped. A call that
// is wrong before its name is known becomes content; in a later one, the rest up to the end marker
// is added to the arguments as it is.
class MarkedCalls : public CallParser {
 public:
  using MakeBody = std::unique_ptr<CallBody> (*)(const ToolUse& tools);
  // begins: markers before a body. kept: the begin marker that is a part of the body, if it is
  // found without another one; "": none. end: the marker after a body, which the body takes itself.
  MarkedCalls(std::vector<std::string> begins, std::string kept, std::string end, MakeBody make,
              const ToolUse& tools)
      : begins_(std::move(begins)),
        kept_(std::move(kept)),
        end_(std::move(end)),
        make_(make),
        tools_(tools) {}
  void put(std::string_view text, CallSink* out) override;
  void finish(CallSink* out) override;

 private:
  bool outside(bool over, CallSink* out);
  bool inside(bool over, CallSink* out);
  bool swallow(bool over, CallSink* out);
  void run(bool over, CallSink* out);

  std::vector<std::string> begins_;
  std::string kept_, end_;
  MakeBody make_;
  const ToolUse& tools_;
  enum class State { OUTSIDE, INSIDE, SWALLOW } state_ = State::OUTSIDE;
  std::unique_ptr<CallBody> body_;
  std::string held_;    // text that has not been taken
  std::string raw_;     // text of the body so far, with its marker
  size_t ended_ = 0;    // text of raw_ up to the end of its last whole call
  std::string error_;   // SWALLOW
  bool open_ = false;   // a call of the body is open
  bool began_ = false;  // the body has had a call
  bool after_ = false;  // a call came last: white space is dropped
};

// Tells whether the text can be a function's name: it is not empty and has no white space, quotes
// or brackets.
bool is_name(std::string_view text);

}  // namespace riffle::requests
