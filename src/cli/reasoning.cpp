#include "cli/reasoning.h"

#include <unistd.h>

#include <algorithm>

#include "cli/standard_streams.h"

namespace riffle::cli {
namespace {

std::string_view without_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
}

// Returns the length of the longest suffix of text that is a prefix of the tag.
size_t partial_mark(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size()); n > 0; n--) {
    if (text.ends_with(mark.substr(0, n))) return n;
  }
  return 0;
}

// Decodes the token twice, since the space that begins a word is dropped at the beginning of a
// text.
bool is_control(riffle_model* model, int32_t token) {
  return detokenize(model, {token, token}).empty();
}

std::vector<int32_t> mark_tokens(riffle_model* model, const std::string& mark) {
  if (mark.empty()) return {};
  return tokenize(model, mark, RIFFLE_TOKENIZE_SPECIAL);
}

// Returns the id of a tag that is a single token without text; else -1.
int32_t control_token(riffle_model* model, const std::string& mark) {
  const std::vector<int32_t> ids = mark_tokens(model, mark);
  return ids.size() == 1 && is_control(model, ids[0]) ? ids[0] : -1;
}

// If both tags end in the same control token, that token ends a header.
void find_headers(riffle_model* model, ReasoningMarks* marks) {
  const std::vector<int32_t> begin = mark_tokens(model, marks->begin),
                             end = mark_tokens(model, marks->end);
  if (begin.size() < 2 || end.size() < 3 || begin.back() != end.back()) return;
  if (!is_control(model, end.front()) || !is_control(model, end.back())) return;
  if (!is_control(model, begin.front()))
    marks->reasoning_recipient = marks->begin.substr(0, marks->begin.rfind("<|"));
  std::vector<int32_t> name;
  for (size_t i = 0; i + 1 < end.size(); i++) {
    if (is_control(model, end[i])) {
      marks->header_tokens.push_back(end[i]);
      name.clear();
    } else {
      name.push_back(end[i]);
    }
  }
  marks->message_token = end.back();
  marks->answer_channel = detokenize(model, name);
}

}  // namespace

ReasoningMarks reasoning_marks(riffle_model* model) {
  const Facts info = model_info(model);
  ReasoningMarks marks{info.text("reasoning_begin"), info.text("reasoning_end")};
  marks.begin_token = control_token(model, marks.begin);
  marks.end_token = control_token(model, marks.end);
  find_headers(model, &marks);
  return marks;
}

ReasoningSplit::ReasoningSplit(ReasoningMarks marks, bool in_reasoning)
    : marks_(std::move(marks)),
      state_(marks_.end.empty() ? State::ANSWER
             : in_reasoning     ? State::REASONING
                                : State::BEFORE) {}

ReasoningSplit::Parts ReasoningSplit::put(int32_t token, std::string_view text) {
  Parts parts;
  // Text passed along with a control token was held back, and precedes the token.
  held_ += text;
  if (token >= 0 && take_header(token, &parts)) return parts;
  if (token >= 0 && token == marks_.begin_token && state_ == State::BEFORE &&
      without_left(held_).empty()) {
    held_.clear();
    state_ = State::REASONING;
  } else if (token >= 0 && token == marks_.end_token && state_ == State::REASONING) {
    advance(&parts, true);
    held_.clear();
    state_ = State::BETWEEN;
  }
  if (state_ != State::HEADER) advance(&parts, false);
  return parts;
}

// Returns true if the token is a part of a header, and moves to the next state.
bool ReasoningSplit::take_header(int32_t token, Parts* parts) {
  const auto& opening = marks_.header_tokens;
  const std::string& recipient = marks_.reasoning_recipient;
  const bool begun = state_ == State::BEFORE && !recipient.empty();  // the prompt began the header
  if (token == marks_.message_token && (state_ == State::HEADER || begun)) {
    const bool answers =
        recipient.empty() ? held_.starts_with(marks_.answer_channel) : !held_.ends_with(recipient);
    state_ = answers ? State::BETWEEN : State::REASONING;
    if (!answers && said_) parts->reasoning += "\n\n";
  } else if (std::find(opening.begin(), opening.end(), token) != opening.end()) {
    if (state_ != State::HEADER) advance(parts, true);
    state_ = State::HEADER;
  } else {
    return false;
  }
  held_.clear();
  return true;
}

ReasoningSplit::Parts ReasoningSplit::finish() {
  Parts parts;
  if (state_ != State::HEADER) advance(&parts, true);
  return parts;
}

// Tells whether a header that the prompt has begun may go on like this: " to=" and a word.
bool ReasoningSplit::may_be_recipient(std::string_view text) const {
  constexpr size_t kLongest = 100;
  const std::string& recipient = marks_.reasoning_recipient;
  if (recipient.empty()) return false;
  const std::string_view sign = std::string_view(recipient).substr(0, recipient.rfind('=') + 1);
  if (text.size() <= sign.size()) return sign.starts_with(text);
  return text.starts_with(sign) && text.size() <= kLongest &&
         text.find_first_of(kSpaces, sign.size()) == text.npos;
}

// Moves text to the parts, as far as it is certain. over: no more text follows in this state.
void ReasoningSplit::advance(Parts* parts, bool over) {
  if (state_ == State::BEFORE) {
    const std::string_view text = without_left(held_);
    if (text.starts_with(marks_.begin)) {
      held_.erase(0, held_.size() - text.size() + marks_.begin.size());
      state_ = State::REASONING;
    } else if (!over &&
               (std::string_view(marks_.begin).starts_with(text) || may_be_recipient(held_))) {
      return;
    } else {
      state_ = State::ANSWER;
    }
  }
  if (state_ == State::REASONING) {
    if (!said_) {
      const std::string_view text = without_left(held_);
      held_.erase(0, held_.size() - text.size());
      // Some models repeat the tag with which the prompt ended.
      if (held_.starts_with(marks_.begin)) held_.erase(0, marks_.begin.size());
      if (!over && !held_.empty() && marks_.begin.starts_with(held_)) return;
    }
    const size_t end = held_.find(marks_.end);
    const size_t certain = end != held_.npos ? end
                           : over            ? held_.size()
                                             : held_.size() - partial_mark(held_, marks_.end);
    std::string_view text = std::string_view(held_).substr(0, certain);
    // White space is held back, since the reasoning may end with it.
    text = text.substr(0, text.find_last_not_of(kSpaces) + 1);  // npos + 1 is 0
    if (!said_) text = without_left(text);
    said_ = said_ || !text.empty();
    parts->reasoning += text;
    if (end == held_.npos) {
      const size_t used = static_cast<size_t>(text.data() + text.size() - held_.data());
      held_.erase(0, text.empty() ? 0 : used);
      return;
    }
    held_.erase(0, end + marks_.end.size());
    state_ = State::BETWEEN;
  }
  if (state_ == State::BETWEEN) {
    held_.erase(0, held_.size() - without_left(held_).size());
    if (held_.empty()) return;
    state_ = State::ANSWER;
  }
  parts->answer += std::exchange(held_, {});
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

void StreamedAnswer::take(const ReasoningSplit::Parts& parts) {
  reasoning += parts.reasoning;
  view_.show(parts.reasoning);
  if (parts.answer.empty()) return;
  view_.end();
  text += parts.answer;
  if (stream_) write_out(parts.answer);
}

bool StreamedAnswer::on_token(void* self, size_t, const riffle_token* token) {
  auto& a = *static_cast<StreamedAnswer*>(self);
  try {  // no exception may cross the library
    if (token->id >= 0) {
      if (a.tokens.empty()) a.first = std::chrono::steady_clock::now();
      a.tokens.push_back(token->id);
    }
    a.take(a.split_.put(token->id, {token->text, token->text_len}));
    return true;
  } catch (const std::exception& e) {
    a.error = e.what();
    return false;
  }
}

void StreamedAnswer::finish() {
  take(split_.finish());
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
