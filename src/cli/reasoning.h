// Answers of models that reason: the reasoning, between tags such as <think> and </think>, is kept
// apart from the answer.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common.h"
#include "riffle_request.h"

namespace riffle::cli {

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
  std::vector<ToolCall> calls;  // whole calls, after finish()
  std::string tool_error;       // "", or the place of the first call that the model wrote wrongly
  std::vector<std::string> broken;  // text of the calls that are not whole
  std::vector<int32_t> tokens;
  std::chrono::steady_clock::time_point first{};  // when the first token arrived
  std::string error;                              // error while it was handled; "": none

  // request: of the conversation, which must outlive this; null: the answer is one text.
  StreamedAnswer(riffle_request* request, bool stream, bool quiet)
      : stream_(stream), request_(request), view_(quiet || !stream) {}
  // A riffle_token_fn; self is a StreamedAnswer.
  static bool on_token(void* self, size_t, const riffle_token* token);
  // Prints the text that was held back, and collects the calls of tools.
  void finish(const riffle_result& result);

 private:
  void put_part();
  void put(std::string_view more_reasoning, std::string_view more_text);

  bool stream_;
  riffle_request* request_;
  ReasoningView view_;
};

// Tells whether the reasoning left no tokens for an answer.
bool is_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result);
// Prints a notice with the flags that help, unless quiet, if is_unfinished_reasoning.
void say_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result,
                              bool quiet);
// Returns the reason why the model's template ignores these settings; "" if it uses them. advice:
// the words before the levels in the text, such as "use --think=".
std::string unread_thinking(const riffle_model* model, const Thinking& thinking,
                            const std::string& advice);
// Prints one line on stderr, unless quiet, if --think or --no-think was given and the model's
// template does not use it.
void say_unread_thinking(const riffle_model* model, const CommonOptions& options);

}  // namespace riffle::cli
