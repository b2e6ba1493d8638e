// Answers of models that reason: the reasoning, between tags such as <think> and </think>, is kept
// apart from the answer.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

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
};
ReasoningMarks reasoning_marks(riffle_model* model);

// Splits an answer as it arrives into reasoning and text. Reasoning comes first, if there is any.
// Neither part keeps the white space around the tags.
class ReasoningSplit {
 public:
  struct Parts {
    std::string reasoning, answer;
  };
  // in_reasoning: the prompt has begun the reasoning.
  ReasoningSplit(ReasoningMarks marks, bool in_reasoning);
  Parts put(int32_t token, std::string_view text);  // returns the text that is certain by now
  Parts finish();                                   // returns the text that was held back

 private:
  enum class State { BEFORE, HEADER, REASONING, BETWEEN, ANSWER };
  bool take_header(int32_t token, Parts* parts);
  bool may_be_recipient(std::string_view text) const;
  void advance(Parts* parts, bool over);

  ReasoningMarks marks_;
  State state_;
  bool said_ = false;  // some reasoning has been returned
  std::string held_;
};

// Shows reasoning on stderr if that is a terminal, dimmed if colours are on.
class ReasoningView {
 public:
  explicit ReasoningView(bool quiet);
  ~ReasoningView() { end(); }
  ReasoningView(const ReasoningView&) = delete;
  ReasoningView& operator=(const ReasoningView&) = delete;
  void show(std::string_view text);
  void end();  // called before the answer

 private:
  bool shown_, color_, open_ = false;
};

// Handles an answer as it arrives: its reasoning is shown on stderr, the rest is streamed to stdout
// or kept for JSON.
struct StreamedAnswer {
  std::string text, reasoning;
  std::vector<int32_t> tokens;
  std::chrono::steady_clock::time_point first{};  // when the first token arrived
  std::string error;                              // error while it was handled; "": none

  StreamedAnswer(ReasoningMarks marks, bool in_reasoning, bool stream, bool quiet)
      : stream_(stream), split_(std::move(marks), in_reasoning), view_(quiet || !stream) {}
  // A riffle_token_fn; self is a StreamedAnswer.
  static bool on_token(void* self, size_t, const riffle_token* token);
  void finish();  // prints the text that was held back

 private:
  void take(const ReasoningSplit::Parts& parts);

  bool stream_;
  ReasoningSplit split_;
  ReasoningView view_;
};

// Prints one line on stderr, unless quiet, if the reasoning left no tokens for an answer.
void say_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result,
                              bool quiet);
// Prints one line on stderr, unless quiet, if --think or --no-think was given and the model's
// template does not use it.
void say_unread_thinking(const riffle_model* model, const CommonOptions& options);

}  // namespace riffle::cli
