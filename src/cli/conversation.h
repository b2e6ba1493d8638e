// Conversations as the library forms them: the prompt, the options of its answer, calls of tools.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/thinking.h"
#include "riffle_request.h"

namespace riffle::cli {

struct RequestDeleter {
  void operator()(riffle_request* p) const { riffle_request_free(p); }
};
using RequestHandle = std::unique_ptr<riffle_request, RequestDeleter>;

struct ToolCall {
  std::string id, name, arguments;  // arguments: the text of a JSON object
};

struct Message {
  std::string role, content;
  std::string reasoning = {};        // an assistant's reasoning; "": none
  std::vector<ToolCall> calls = {};  // an assistant's
  std::string call_id = {};          // a tool's: the call that it answers
};

// Functions that the model may call, as texts of JSON; "": none is given.
struct Tools {
  std::string name = {};  // the file that has them, for errors
  std::string list = {}, choice = {}, parallel = {};
};

// A prompt. request: null for plain text; else the conversation's request, which splits its answer.
struct ChatPrompt {
  std::vector<int32_t> tokens;
  RequestHandle request = {};
  std::string fitted = {};  // as of riffle_request_info: "", "joined" or "moved"

  // Returns the options of the answer. plain: those for plain text.
  const riffle_options* options(const Options& plain) const {
    return request ? riffle_request_options(request.get(), 0) : plain.get();
  }
};

std::string today();  // the local date: "2026-11-23"

// Returns the options of an answer with those of its conversation.
Options conversation_options(const Thinking& thinking, const Options& answer = {});

// Forms the prompt of a conversation that the model answers next. answer: options of the answer.
// Throws Exit; an error about the tools names their file.
ChatPrompt chat_prompt(riffle_model* model, const std::vector<Message>& messages,
                       const Thinking& thinking, const Options& answer = {},
                       const Tools& tools = {});
std::vector<int32_t> chat_tokens(riffle_model* model, const std::vector<Message>& messages);

// Returns the library's error of a refused request, without the paths of a body, which the user of
// the command line has not written.
std::string refusal_text(const riffle_request* request);

// Returns what was changed in a conversation that the chat template refuses unchanged; "": nothing.
const char* fitted_text(const std::string& fitted);

}  // namespace riffle::cli
