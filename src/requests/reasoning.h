// Answers of models that reason: the reasoning, between tags such as <think> and </think>, is kept
// apart from the answer.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/model.h"

namespace riffle::requests {

// Tags that a model writes around its reasoning. A tag that is a control token does not appear in
// the text of an answer and is recognised by its id.
struct ReasoningMarks {
  std::string begin, end;                    // "": the model has none
  int32_t begin_token = -1, end_token = -1;  // control tokens; -1: the tag is text

  // Tags of several control tokens (gpt-oss, Muse Glimmer): an answer is made of messages, each
  // with a header (a role, a channel or a recipient) between control tokens.
  std::vector<int32_t> header_tokens = {};  // begin or continue a header
  int32_t message_token = -1;               // ends a header; -1: there are no headers
  std::string answer_channel = {};          // all other channels are reasoning
  // Set if prompts end inside a header, so that the answer begins with the rest of that header: a
  // message whose header ends with this text is reasoning, all others are answers. "": the answer
  // begins with its own header.
  std::string reasoning_recipient = {};
  bool calls = false;  // messages to functions are calls
};
ReasoningMarks reasoning_marks(const Model& model);

// Splits an answer as it arrives into reasoning and text. Reasoning comes first, if there is any.
// Neither part keeps the white space around the tags.
class ReasoningSplit {
 public:
  // called: the function that a message calls begins, or has ended (""); its arguments are in
  // `arguments`.
  struct Parts {
    std::string reasoning, answer, arguments = {};
    std::optional<std::string> called = {};
  };
  // in_reasoning: the prompt has begun the reasoning.
  ReasoningSplit(ReasoningMarks marks, bool in_reasoning);
  Parts put(int32_t token, std::string_view text);  // returns the text that is certain by now
  Parts finish();                                   // returns the text that was held back

 private:
  enum class State { BEFORE, HEADER, REASONING, BETWEEN, ANSWER, CALL };
  bool take_recipient();
  bool take_header(int32_t token, Parts* parts);
  bool may_be_recipient(std::string_view text) const;
  void advance(Parts* parts, bool over);

  ReasoningMarks marks_;
  State state_;
  bool said_ = false;     // some reasoning has been returned
  std::string function_;  // the function that the header names as the recipient
  std::string held_;
};

}  // namespace riffle::requests
