#include "requests/response.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <span>

#include "requests/json_text.h"
#include "requests/seed.h"
#include "util/utf8.h"

namespace riffle::requests {
namespace {

void calls_json(const std::vector<ToolCall>& calls, JsonText* out) {
  out->begin('[');
  for (const ToolCall& call : calls) {
    out->begin('{').key("id").string(call.id).key("type").string("function");
    out->key("function").begin('{').key("name").string(call.name);
    out->key("arguments").string(call.arguments).end('}').end('}');
  }
  out->end(']');
}

// Clients join the arguments of all deltas of a call.
void delta_json(const CallDelta& delta, const ToolCall& call, JsonText* out) {
  out->begin('{').key("index").whole(delta.index);
  if (delta.begins) out->key("id").string(call.id).key("type").string("function");
  out->key("function").begin('{');
  if (delta.begins) out->key("name").string(call.name);
  out->key("arguments").string(delta.arguments).end('}').end('}');
}

// Returns n letters and digits.
std::string random_word(size_t n) {
  constexpr char kLetters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string word;
  for (uint64_t bits = 0; word.size() < n; bits /= 62) {
    if (word.size() % 8 == 0) bits = draw_seed();
    word += kLetters[bits % 62];
  }
  return word;
}

}  // namespace

std::string Choice::finish_reason() const {
  if (!ended) return "";
  if (result.finish != RIFFLE_FINISH_STOP) return "length";
  return calls.empty() || !tool_error.empty() ? "stop" : "tool_calls";
}

Response::Response(const Request& request, const Tokenizer& tokenizer, const AnswerForm& form,
                   bool in_reasoning, std::vector<size_t> prompt_tokens)
    : model(request.model),
      chat_(request.chat),
      stream_usage_(request.include_usage),
      with_logprobs_(request.answer.sampling.logprobs),
      short_ids_(form.format && std::string_view(form.format->name).starts_with("mistral")),
      n_(request.n),
      tokenizer_(tokenizer),
      prompt_tokens_(std::move(prompt_tokens)) {
  for (size_t i = 0; i < request.n_answers(); ++i) choices_.emplace_back(form, in_reasoning);
}

// Templates of Mistral's first models refuse other ids than 9 letters and digits.
std::vector<CallDelta> Response::take(Choice* choice, const AnswerPart& part) {
  choice->content += part.content;
  choice->reasoning += part.reasoning;
  std::vector<ToolCall>& calls = choice->calls;
  std::vector<CallDelta> deltas;
  for (const auto& [kind, text] : part.calls) {
    if (kind == CallEvent::BEGIN) {
      calls.push_back({short_ids_ ? random_word(9) : "call_" + random_word(24), text, "", ""});
      deltas.push_back({calls.size() - 1, true, ""});
    } else if (kind == CallEvent::ARGUMENTS) {
      calls.back().arguments += text;
      if (deltas.empty() || deltas.back().index + 1 != calls.size())
        deltas.push_back({calls.size() - 1, false, ""});
      deltas.back().arguments += text;
    } else if (kind == CallEvent::BROKEN) {
      const std::string error =
          format("tool_calls[%zu]: %s", calls.size() - (choice->open ? 1 : 0), text.c_str());
      if (choice->open) calls.back().error = error;
      if (choice->tool_error.empty()) choice->tool_error = error;
    }
    choice->open = kind == CallEvent::BEGIN || (choice->open && kind == CallEvent::ARGUMENTS);
  }
  return deltas;
}

std::string Response::token(size_t i, const riffle_token& token, bool chunk) {
  Choice& choice = choices_[i];
  last_ = choice.split.put(token.id, {token.text, token.text_len});
  const std::vector<CallDelta> calls = take(&choice, last_);
  if (with_logprobs_ && token.id >= 0)
    choice.logprobs.push_back({token.id, token.logprob, {token.top, token.top + token.n_top}});
  return chunk && (!choice.begun || !last_.empty()) ? chunk_of(i, last_, calls) : "";
}

std::string Response::end(size_t i, const riffle_result& result, size_t cached_tokens, bool chunk) {
  Choice& choice = choices_[i];
  last_ = choice.split.finish();
  const std::vector<CallDelta> calls = take(&choice, last_);
  choice.result = result;
  choice.cached_tokens = cached_tokens;
  choice.ended = true;
  return chunk ? chunk_of(i, last_, calls) : "";
}

bool Response::all_ended() const {
  return std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.ended; });
}

// Ids are random and differ everywhere. "created" is the time of the first chunk or of the whole.
void Response::head(const char* object, JsonText* out) {
  if (id_.empty()) {
    id_ = (chat_ ? "chatcmpl-" : "cmpl-") + random_id();
    created_ = static_cast<int64_t>(std::time(nullptr));
  }
  out->begin('{').key("id").string(id_).key("object").string(object);
  out->key("created").whole(created_).key("model").string(model);
  if (fingerprinted) out->key("system_fingerprint").string(fingerprint);
}

std::string Response::chunk_of(size_t i, const AnswerPart& part,
                               const std::vector<CallDelta>& calls) {
  Choice& choice = choices_[i];
  JsonText out;
  head(chat_ ? "chat.completion.chunk" : "text_completion", &out);
  out.key("choices").begin('[').begin('{').key("index").whole(i);
  if (chat_) {
    out.key("delta").begin('{');
    const bool first = !choice.begun;
    if (first) out.key("role").string("assistant");
    if (!part.content.empty() || (first && part.empty())) out.key("content").string(part.content);
    if (!part.reasoning.empty()) out.key("reasoning_content").string(part.reasoning);
    if (!calls.empty()) {
      out.key("tool_calls").begin('[');
      for (const CallDelta& delta : calls) delta_json(delta, choice.calls[delta.index], &out);
      out.end(']');
    }
    out.end('}');
  } else {
    out.key("text").string(part.content);
  }
  choice.begun = true;
  out.key("logprobs");
  // Tokens whose text is still held back come with their text.
  if (part.empty() && !choice.ended) out.raw("null");
  else logprobs(&choice, &out);
  out.key("finish_reason");
  if (choice.ended) out.string(choice.finish_reason());
  else out.raw("null");
  if (choice.ended && !choice.tool_error.empty()) out.key("tool_error").string(choice.tool_error);
  out.end('}').end(']');
  if (stream_usage_) out.key("usage").raw("null");
  return out.end('}').take();
}

std::string Response::usage_chunk() {
  if (!stream_usage_ || !all_ended()) return "";
  JsonText out;
  head(chat_ ? "chat.completion.chunk" : "text_completion", &out);
  out.key("choices").raw("[]").key("usage");
  usage(&out);
  return out.end('}').take();
}

std::string Response::whole() {
  JsonText out;
  head(chat_ ? "chat.completion" : "text_completion", &out);
  out.key("choices").begin('[');
  for (size_t i = 0; i < choices_.size(); ++i) choice_json(i, &out);
  out.end(']').key("usage");
  usage(&out);
  return out.end('}').take();
}

// A prompt counts once, however many answers it has.
void Response::usage(JsonText* out) const {
  size_t prompt = 0, cached = 0;
  int64_t answer = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    answer += choices_[i].result.n_tokens;
    if (i % n_ != 0) continue;
    prompt += prompt_tokens_[i / n_];
    cached += choices_[i].cached_tokens;
  }
  out->begin('{').key("prompt_tokens").whole(prompt).key("completion_tokens").whole(answer);
  out->key("total_tokens").whole(static_cast<int64_t>(prompt) + answer);
  out->key("prompt_tokens_details").begin('{').key("cached_tokens").whole(cached);
  out->end('}').end('}');
}

void Response::choice_json(size_t i, JsonText* out) {
  Choice& choice = choices_[i];
  out->begin('{').key("index").whole(i);
  if (chat_) {
    out->key("message").begin('{').key("role").string("assistant").key("content");
    if (choice.content.empty() && !choice.calls.empty()) out->raw("null");
    else out->string(choice.content);
    out->key("refusal").raw("null");
    if (!choice.reasoning.empty()) out->key("reasoning_content").string(choice.reasoning);
    if (!choice.calls.empty()) {
      out->key("tool_calls");
      calls_json(choice.calls, out);
    }
    out->end('}');
  } else {
    out->key("text").string(choice.content);
  }
  choice.logprobs_sent = 0;
  choice.offset = 0;
  choice.trimmed.reset();
  out->key("logprobs");
  logprobs(&choice, out);
  out->key("finish_reason").string(choice.finish_reason());
  if (!choice.tool_error.empty()) out->key("tool_error").string(choice.tool_error);
  out->end('}');
}

// Writes the logprobs that no chunk has yet.
void Response::logprobs(Choice* choice, JsonText* out) const {
  if (!with_logprobs_) out->raw("null");
  else if (chat_) chat_logprobs(choice, out);
  else prompt_logprobs(choice, out);
  choice->logprobs_sent = choice->logprobs.size();
}

// trimmed: leaves out white space at the beginning.
void Response::logprob(int32_t token, float logprob, bool trimmed, JsonText* out) const {
  std::string bytes = tokenizer_.bytes(token);
  if (trimmed) bytes.erase(0, bytes.find_first_not_of(kSpaces));
  out->begin('{').key("token").string(bytes).key("logprob").raw(json_number(logprob));
  out->key("bytes").begin('[');
  for (const char c : bytes) out->whole(static_cast<unsigned>(static_cast<unsigned char>(c)));
  out->end(']');
}

// Writes logprobs in the form of OpenAI's chat completions, where the tokens together spell the
// text. So white space dropped at the beginning of the text is dropped here too.
void Response::chat_logprobs(Choice* choice, JsonText* out) const {
  if (!choice->trimmed)
    choice->trimmed = choice->reasoning.empty() &&
                      (choice->content.empty() || !std::strchr(kSpaces, choice->content[0]));
  out->begin('{').key("content").begin('[');
  for (size_t i = choice->logprobs_sent; i < choice->logprobs.size(); ++i) {
    const TokenLogprobs& one = choice->logprobs[i];
    const bool trimmed = *choice->trimmed;
    logprob(one.token, one.logprob, trimmed, out);
    out->key("top_logprobs").begin('[');
    for (const riffle_logprob& top : one.top) {
      logprob(top.token, top.logprob, trimmed, out);
      out->end('}');
    }
    out->end(']').end('}');
    choice->trimmed =
        trimmed && tokenizer_.bytes(one.token).find_first_not_of(kSpaces) == std::string::npos;
  }
  out->end(']').key("refusal").raw("null").end('}');
}

// Writes logprobs in the form of OpenAI's completions.
void Response::prompt_logprobs(Choice* choice, JsonText* out) const {
  const std::span<const TokenLogprobs> all =
      std::span(choice->logprobs).subspan(choice->logprobs_sent);
  out->begin('{').key("tokens").begin('[');
  for (const TokenLogprobs& one : all) out->string(tokenizer_.bytes(one.token));
  out->end(']').key("token_logprobs").begin('[');
  for (const TokenLogprobs& one : all) out->raw(json_number(one.logprob));
  out->end(']').key("top_logprobs").begin('[');
  for (const TokenLogprobs& one : all) {
    std::vector<std::pair<std::string, float>> tops;  // tokens of equal bytes share an entry
    for (const riffle_logprob& t : one.top) {
      const std::string bytes = tokenizer_.bytes(t.token);
      const auto known = std::find_if(tops.begin(), tops.end(),
                                      [&](const auto& top) { return top.first == bytes; });
      if (known == tops.end()) tops.emplace_back(bytes, t.logprob);
      else known->second = t.logprob;
    }
    out->begin('{');
    for (const auto& [bytes, value] : tops) out->key(bytes).raw(json_number(value));
    out->end('}');
  }
  out->end(']').key("text_offset").begin('[');
  for (const TokenLogprobs& one : all) {
    out->whole(choice->offset);  // in characters of the text
    choice->offset += char_count(tokenizer_.bytes(one.token));
  }
  out->end(']').end('}');
}

}  // namespace riffle::requests
