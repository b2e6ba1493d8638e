#include "cli/reasoning.h"

#include <unistd.h>

#include <new>

#include "cli/standard_streams.h"

namespace riffle::cli {

AnswerParts answer_parts(riffle_model* model, bool in_reasoning) {
  char err[512];
  riffle_answer* made = nullptr;
  const riffle_status status = riffle_answer_create(model, in_reasoning, &made, err, sizeof err);
  if (status != RIFFLE_OK) throw Exit(exit_code_of(status), err);
  return AnswerParts(made);
}

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

// token: null: the answer has ended.
void StreamedAnswer::put(const riffle_token* token) {
  riffle_answer_part part{};
  if (!parts_) {
    if (token) part = {nullptr, 0, token->text, token->text_len};
  } else if (riffle_answer_token(parts_.get(), token, &part) != RIFFLE_OK) {
    throw std::bad_alloc();
  }
  reasoning.append(part.reasoning ? part.reasoning : "", part.reasoning_len);
  view_.show({part.reasoning, part.reasoning_len});
  if (part.content_len == 0) return;
  view_.end();
  text.append(part.content, part.content_len);
  if (stream_) write_out({part.content, part.content_len});
}

bool StreamedAnswer::on_token(void* self, size_t, const riffle_token* token) {
  auto& a = *static_cast<StreamedAnswer*>(self);
  try {  // no exception may cross the library
    if (token->id >= 0) {
      if (a.tokens.empty()) a.first = std::chrono::steady_clock::now();
      a.tokens.push_back(token->id);
    }
    a.put(token);
    return true;
  } catch (const std::exception& e) {
    a.error = e.what();
    return false;
  }
}

void StreamedAnswer::finish() {
  put(nullptr);
  view_.end();
}

void say_unfinished_reasoning(const StreamedAnswer& answer, const riffle_result& result,
                              bool quiet) {
  const bool length = result.finish == RIFFLE_FINISH_LENGTH;
  if ((length || result.finish == RIFFLE_FINISH_CONTEXT) && answer.text.empty() &&
      !answer.reasoning.empty())
    notice(quiet, "[all of these tokens are reasoning: %s allows more, --no-think asks for none]",
           length ? "-n" : "-c");
}

void say_unread_thinking(const riffle_model* model, const CommonOptions& options) {
  const auto& [enabled, effort] = options.thinking;
  const Facts info = model_info(model);
  if (effort && !info.on("chat_effort")) {
    notice(options.quiet,
           "[the reasoning effort %s has no effect: the chat template does not use "
           "reasoning_effort]",
           effort);
  }
  // --think=high sets both; a template that uses either one is enough.
  if (enabled == "default" || info.on("chat_thinking") || effort) return;
  notice(options.quiet, "[%s has no effect: the chat template does not use enable_thinking%s]",
         enabled == "on" ? "--think" : "--no-think",
         !info.on("chat_effort") ? ""
         : enabled == "on"       ? "; it uses reasoning_effort: --think=low, medium or high"
                                 : "; it uses reasoning_effort: --think=low reasons least");
}

}  // namespace riffle::cli
