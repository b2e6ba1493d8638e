#include "requests/reasoning.h"

#include <algorithm>

#include "chat/chat_template.h"
#include "requests/marks.h"
#include "text/tokenizer.h"

namespace riffle::requests {
namespace {

bool is_control(const Tokenizer& tokenizer, int32_t token) {
  return tokenizer.bytes(token).empty();
}

std::vector<int32_t> mark_tokens(const Tokenizer& tokenizer, const std::string& mark) {
  return mark.empty() ? std::vector<int32_t>() : tokenizer.encode(mark, false, true);
}

// Returns the id of a tag that is a single token without text; else -1.
int32_t control_token(const Tokenizer& tokenizer, const std::string& mark) {
  const std::vector<int32_t> ids = mark_tokens(tokenizer, mark);
  return ids.size() == 1 && is_control(tokenizer, ids[0]) ? ids[0] : -1;
}

// If both tags end in the same control token, that token ends a header.
void find_headers(const Tokenizer& tokenizer, ReasoningMarks* marks) {
  const std::vector<int32_t> begin = mark_tokens(tokenizer, marks->begin),
                             end = mark_tokens(tokenizer, marks->end);
  if (begin.size() < 2 || end.size() < 3 || begin.back() != end.back()) return;
  if (!is_control(tokenizer, end.front()) || !is_control(tokenizer, end.back())) return;
  if (!is_control(tokenizer, begin.front()))
    marks->reasoning_recipient = marks->begin.substr(0, marks->begin.rfind("<|"));
  std::vector<int32_t> name;
  for (size_t i = 0; i + 1 < end.size(); i++) {
    if (is_control(tokenizer, end[i])) {
      marks->header_tokens.push_back(end[i]);
      name.clear();
    } else {
      name.push_back(end[i]);
    }
  }
  marks->message_token = end.back();
  marks->answer_channel = tokenizer.decode(name.data(), name.size());
}

}  // namespace

ReasoningMarks reasoning_marks(const Model& model) {
  if (!model.chat || !model.tokenizer) return {};
  const Tokenizer& tokenizer = *model.tokenizer;
  const riffle::ReasoningMarks& tags = model.chat->reasoning_marks();
  ReasoningMarks marks{tags.begin, tags.end};
  marks.begin_token = control_token(tokenizer, marks.begin);
  marks.end_token = control_token(tokenizer, marks.end);
  find_headers(tokenizer, &marks);
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
  // A message to a function is a call of it (gpt-oss).
  const bool headed = state_ == State::HEADER || begun || state_ == State::BEFORE;
  const bool opens = std::find(opening.begin(), opening.end(), token) != opening.end();
  if ((opens || token == marks_.message_token) && headed && take_recipient() &&
      state_ == State::BEFORE)
    state_ = State::HEADER;
  if (token == marks_.message_token && state_ == State::HEADER && !function_.empty()) {
    state_ = State::CALL;
    parts->called = std::exchange(function_, {});
  } else if (token == marks_.message_token && (state_ == State::HEADER || begun)) {
    const bool answers =
        recipient.empty() ? held_.starts_with(marks_.answer_channel) : !held_.ends_with(recipient);
    state_ = answers ? State::BETWEEN : State::REASONING;
    if (!answers && said_) parts->reasoning += "\n\n";
  } else if (opens) {
    if (state_ == State::CALL) parts->called = "";
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
  if (state_ == State::CALL) parts.called = "";
  return parts;
}

// Notes the function that the header's text names. Returns false if it names none.
bool ReasoningSplit::take_recipient() {
  constexpr std::string_view sign = "to=functions.";
  const size_t at = held_.find(sign);
  if (!marks_.calls || at == held_.npos) return false;
  const size_t begin = at + sign.size();
  function_ = held_.substr(begin, held_.find_first_of(kSpaces, begin) - begin);
  return !function_.empty();
}

// Tells whether a header that the prompt has begun may go on like this: " to=" and a word.
bool ReasoningSplit::may_be_recipient(std::string_view text) const {
  constexpr size_t kLongest = 100;
  const std::string& recipient = marks_.reasoning_recipient;
  if (recipient.empty()) {
    // gpt-oss may name a function before its channel.
    constexpr std::string_view call = "to=functions.";
    const std::string_view word = without_left(text);
    if (!marks_.calls || marks_.message_token < 0 || word.empty()) return false;
    return call.starts_with(word) || (word.starts_with(call) && word.size() <= kLongest &&
                                      word.find_first_of(kSpaces) == word.npos);
  }
  const std::string_view sign = std::string_view(recipient).substr(0, recipient.rfind('=') + 1);
  if (text.size() <= sign.size()) return sign.starts_with(text);
  return text.starts_with(sign) && text.size() <= kLongest &&
         text.find_first_of(kSpaces, sign.size()) == text.npos;
}

// Moves text to the parts, as far as it is certain. over: no more text follows in this state.
void ReasoningSplit::advance(Parts* parts, bool over) {
  if (state_ == State::CALL) {
    parts->arguments += std::exchange(held_, {});
    return;
  }
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
    text = without_right(text);
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

}  // namespace riffle::requests
