// Answers of models that think: what they write between marks (<think> and </think>) before the
// answer is kept apart from it.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

// Marks that a model writes around its reasoning. A mark that is a control token does not show in
// the text of an answer: its id tells.
struct ReasoningMarks {
  std::string begin, end;                    // "": the model has none
  int32_t begin_token = -1, end_token = -1;  // control tokens; -1: the mark is text

  // Marks of several control tokens (gpt-oss, Muse Glimmer): an answer is made of messages, each
  // with a header (a role, a channel or a recipient) between control tokens.
  std::vector<int32_t> header_tokens = {};  // begin a header or go on with it
  int32_t message_token = -1;               // ends it; -1: there are no headers
  std::string answer_channel = {};          // all other channels are reasoning
  // Set if prompts end inside of a header, so that the answer begins with its rest: a message whose
  // header ends with this is reasoning, all others are answers. "": the answer begins its header.
  std::string reasoning_recipient = {};
};
ReasoningMarks reasoning_marks(riffle_model* model);

// Parts an answer as it comes. Reasoning is at its beginning or nowhere. Neither part keeps the
// white space around the marks.
class ReasoningSplit {
 public:
  struct Parts {
    std::string reasoning, answer;
  };
  // in_reasoning: the prompt has begun it.
  ReasoningSplit(ReasoningMarks marks, bool in_reasoning);
  Parts put(int32_t token, std::string_view text);  // parts that are certain by now
  Parts finish();                                   // parts that were held back

 private:
  enum class State { BEFORE, HEADER, REASONING, BETWEEN, ANSWER };
  bool take_header(int32_t token, Parts* parts);
  bool may_be_recipient(std::string_view text) const;
  void advance(Parts* parts, bool over);

  ReasoningMarks marks_;
  State state_;
  bool said_ = false;  // some reasoning is out
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
  void end();  // before the answer

 private:
  bool shown_, color_, open_ = false;
};

// An answer as it comes: its reasoning is shown on stderr, the rest is streamed to stdout or kept
// for JSON.
struct StreamedAnswer {
  std::string text, reasoning;
  std::vector<int32_t> tokens;
  std::chrono::steady_clock::time_point first{};  // when the first token came
  std::string error;                              // error that stopped it here; "": none

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

// One line on stderr, unless quiet, if reasoning left no tokens for an answer.
void say_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result,
                              bool quiet);
// One line on stderr, unless quiet, if --think or --no-think was given and the model's template
// does not ask for it.
void say_unread_thinking(const riffle_model* model, const CommonOptions& options);

}  // namespace riffle::cli
