// An answer while it is written: reasoning, content and calls of tools, kept apart.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "requests/calls/formats.h"
#include "requests/reasoning.h"

namespace riffle::requests {

struct CallEvent {
  enum Kind { BEGIN, ARGUMENTS, END, BROKEN } kind;
  std::string text;  // BEGIN: the name; ARGUMENTS: more of them; BROKEN: the error
};

struct AnswerPart {
  std::string reasoning, content;
  std::vector<CallEvent> calls;
  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

// The way in which a model writes the answers to one request.
struct AnswerForm {
  ReasoningMarks marks = {};
  const CallFormat* format = nullptr;           // null: no tools
  std::map<int32_t, std::string> markers = {};  // control tokens among the format's markers
  const ToolUse* tools = nullptr;               // must outlive the answers
};
// format: null: no tools.
AnswerForm answer_form(const Model& model, const CallFormat* format, const ToolUse* tools);

class AnswerSplit {
 public:
  AnswerSplit(const AnswerForm& form, bool in_reasoning);
  AnswerPart put(int32_t token, std::string_view text);  // returns the text that is certain by now
  AnswerPart finish();                                   // returns the text that was held back

 private:
  AnswerPart part_of(ReasoningSplit::Parts parts, bool over);

  ReasoningSplit reasoning_;
  std::map<int32_t, std::string> markers_;
  std::unique_ptr<CallParser> parser_;
  std::string arguments_;  // arguments of an open call in a message of its own
};

}  // namespace riffle::requests
