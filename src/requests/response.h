// The answers to a request in OpenAI's form: chunks while they are written, and the whole.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "requests/answer.h"
#include "requests/request.h"
#include "text/tokenizer.h"

namespace riffle::requests {

class JsonText;

// A token of an answer, with its log-probability and those of the most probable tokens in its
// place.
struct TokenLogprobs {
  int32_t token;
  float logprob;
  std::vector<riffle_logprob> top;
};

struct ToolCall {
  std::string id, name, arguments, error;
};

// The text that a part of an answer adds to a call.
struct CallDelta {
  size_t index;
  bool begins;
  std::string arguments;
};

// One answer so far.
struct Choice {
  Choice(const AnswerForm& form, bool in_reasoning) : split(form, in_reasoning) {}
  AnswerSplit split;
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  std::string tool_error;               // "": none
  bool open = false;                    // the last call has not ended
  std::vector<TokenLogprobs> logprobs;  // if asked for; also of the reasoning's tokens
  size_t logprobs_sent = 0;             // those that chunks have
  size_t offset = 0;                    // completions: characters of these tokens' text
  std::optional<bool> trimmed{};        // chats: as of the next token that is sent
  bool begun = false;                   // a chunk has been made
  bool ended = false;
  riffle_result result{};
  size_t cached_tokens = 0;

  std::string finish_reason() const;
};

class Response {
 public:
  // tokenizer: must outlive this. prompt_tokens: of each prompt.
  Response(const Request& request, const Tokenizer& tokenizer, const AnswerForm& form,
           bool in_reasoning, std::vector<size_t> prompt_tokens);

  std::string model, fingerprint;
  bool fingerprinted = false;

  bool knows(int32_t token) const { return tokenizer_.piece(token) != nullptr; }
  size_t size() const { return choices_.size(); }
  Choice& choice(size_t i) { return choices_[i]; }
  const Choice& choice(size_t i) const { return choices_[i]; }

  // Return a chunk; "": there is nothing to send.
  std::string token(size_t i, const riffle_token& token, bool chunk);
  std::string end(size_t i, const riffle_result& result, size_t cached_tokens, bool chunk);
  // Returns what the last call of these two has added.
  const AnswerPart& last() const { return last_; }
  std::string usage_chunk();
  bool all_ended() const;
  // Returns the whole answer. Requires: all_ended().
  std::string whole();

 private:
  std::vector<CallDelta> take(Choice* choice, const AnswerPart& part);
  std::string chunk_of(size_t i, const AnswerPart& part, const std::vector<CallDelta>& calls);
  void head(const char* object, JsonText* out);
  void usage(JsonText* out) const;
  void choice_json(size_t i, JsonText* out);
  void logprobs(Choice* choice, JsonText* out) const;
  void chat_logprobs(Choice* choice, JsonText* out) const;
  void prompt_logprobs(Choice* choice, JsonText* out) const;
  void logprob(int32_t token, float logprob, bool trimmed, JsonText* out) const;

  bool chat_, stream_usage_, with_logprobs_, short_ids_;
  size_t n_;  // choices of a prompt
  const Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
  std::vector<size_t> prompt_tokens_;
  AnswerPart last_;
  std::string id_;
  int64_t created_ = 0;
};

}  // namespace riffle::requests
