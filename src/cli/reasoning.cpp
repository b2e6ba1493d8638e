#include "cli/reasoning.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/standard_streams.h"

namespace riffle::cli {

ReasoningView::ReasoningView(bool quiet)
    : shown_(!quiet && is_terminal(STDERR_FILENO)), color_(color_ok(STDERR_FILENO)) {}

void ReasoningView::show(std::string_view text) {
  if (!shown_ || text.empty()) return;
  if (!open_ && color_) put_controls("\033[2m");
  open_ = true;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void ReasoningView::end() {
  if (!std::exchange(open_, false)) return;
  if (color_) put_controls("\033[0m");
  std::fputs("\n\n", stderr);
  std::fflush(stderr);
}

void StreamedAnswer::put(std::string_view more_reasoning, std::string_view more_text) {
  reasoning += more_reasoning;
  view_.show(more_reasoning);
  if (more_text.empty()) return;
  view_.end();
  text += more_text;
  if (stream_) write_out(more_text);
}

// Calls are collected when they are whole.
void StreamedAnswer::put_part() {
  riffle_answer_part part{};
  if (riffle_request_part(request_, &part) == RIFFLE_OK)
    put({part.reasoning, part.reasoning_len}, {part.content, part.content_len});
}

bool StreamedAnswer::on_token(void* self, size_t, const riffle_token* token) {
  auto& a = *static_cast<StreamedAnswer*>(self);
  try {  // no exception may cross the library
    if (token->id >= 0) {
      if (a.tokens.empty()) a.first = std::chrono::steady_clock::now();
      a.tokens.push_back(token->id);
    }
    if (!a.request_) a.put("", {token->text, token->text_len});
    else if (riffle_request_token(a.request_, 0, token, nullptr) == RIFFLE_OK) a.put_part();
    else a.error = riffle_request_error(a.request_);
    return a.error.empty();
  } catch (const std::exception& e) {
    a.error = e.what();
    return false;
  }
}

void StreamedAnswer::finish(const riffle_result& result) {
  if (request_) {
    if (riffle_request_end(request_, 0, &result, 0, nullptr) != RIFFLE_OK)
      throw Exit(EXIT_RUN, riffle_request_error(request_));
    put_part();
    tool_error = Facts(riffle_request_answer(request_, 0)).text("tool_error");
    riffle_tool_call call{};
    for (size_t i = 0; riffle_request_call(request_, 0, i, &call); ++i) {
      if (*call.error) broken.push_back(std::string(call.name) + " " + call.arguments);
      else calls.push_back({call.id, call.name, call.arguments});
    }
  }
  view_.end();
}

bool is_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result) {
  return (result.finish == RIFFLE_FINISH_LENGTH || result.finish == RIFFLE_FINISH_CONTEXT) &&
         answer.text.empty() && !answer.reasoning.empty();
}

void say_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result,
                              bool quiet) {
  if (is_unfinished_reasoning(answer, result))
    notice(quiet, "[all of these tokens are reasoning: %s allows more, --no-think asks for none]",
           result.finish == RIFFLE_FINISH_LENGTH ? "-n" : "-c");
}

std::string unread_thinking(const riffle_model* model, const Thinking& thinking,
                            const std::string& advice) {
  const auto& [enabled, effort] = thinking;
  const Facts info = model_info(model);
  // A level also sets enable_thinking. A template that uses reasoning_effort alone is enough.
  if (effort)
    return info.on("chat_effort") ? "" : "the chat template does not use reasoning_effort";
  if (enabled == "default" || info.on("chat_thinking")) return "";
  const std::string why = "the chat template does not use enable_thinking";
  if (!info.on("chat_effort")) return why;
  return why + " but reasoning_effort; " + advice +
         (enabled == "on" ? "low, medium or high" : "low for the shortest reasoning");
}

void say_unread_thinking(const riffle_model* model, const CommonOptions& options) {
  const Thinking& thinking = options.thinking;
  const std::string why = unread_thinking(model, thinking, "use --think=");
  if (why.empty()) return;
  const std::string name = thinking.effort ? std::string("the reasoning effort ") + thinking.effort
                           : thinking.enabled == "on" ? "--think"
                                                      : "--no-think";
  notice(options.quiet, "[%s has no effect: %s]", name.c_str(), why.c_str());
}

}  // namespace riffle::cli
