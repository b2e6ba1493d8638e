// A request in OpenAI's form, and the error of one that is refused. Requests are untrusted.
// Reading: json_body.h (JSON), fields.h (a table of all fields), messages.h. Forming prompts:
// prepare.h. Writing answers: response.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_family.h"
#include "requests/tools.h"
#include "riffle_request.h"
#include "util/error.h"
#include "util/options.h"

namespace riffle::requests {

// Names of the fields that riffle does not read, each once.
struct IgnoredFields {
  std::vector<std::string> without_effect;  // no answer depends on them
  std::vector<std::string> unknown;         // riffle does not know them
};
constexpr size_t kMaxIgnoredNames = 32;  // names of each kind that are kept

struct Prompt {
  std::string text;
  std::vector<int32_t> tokens;  // instead of text
};

// The grammar of an answer. field: the field that asks for it, with its path.
struct AnswerGrammar {
  riffle_grammar_kind kind;
  std::string text, field;
};

struct Request {
  riffle_request_kind kind = RIFFLE_REQUEST_CHAT;
  std::string custom_id, model;
  bool chat = false;  // messages, not prompts
  bool stream = false, include_usage = false;
  std::vector<Prompt> prompts;  // the answer has `n` choices for each
  std::vector<ChatMessage> messages;
  ToolUse tools;
  size_t n = 1;
  GenerateOptions answer;  // options of its answers
  ConversationOptions conversation;
  // True if the body itself sets a level of reasoning, and if it turns reasoning on or off.
  bool asks_effort = false, asks_thinking = false;
  std::optional<AnswerGrammar> grammar;
  IgnoredFields ignored;

  size_t n_prompts() const { return chat ? 1 : prompts.size(); }
  size_t n_answers() const { return n_prompts() * n; }
};

constexpr size_t kMaxNameBytes = 1024;  // bytes of custom_id (which records repeat) and of model
constexpr size_t kMaxPrompts = 4096;    // in a request
constexpr size_t kMaxChoices = 128;     // answers to a prompt
constexpr int kMaxNesting = 128;        // a request needs 5, and the depth of its schema
constexpr size_t kMaxValues =
    1000000;  // values and keys in a text: parsed, a text of nothing but [] takes 20 times its size

// The reason why a request is refused. name: as riffle_request_refusal has it; code: OpenAI's.
struct Reason {
  const char *name, *code;
  riffle_status status = RIFFLE_BAD_ARGUMENT;
};
inline constexpr Reason kWrongValue{"bad_request", "invalid_value"},
    kMissing{"bad_request", "missing_required_parameter"},
    kUnsupported{"bad_request", "unsupported_parameter"},
    kUnsupportedValue{"bad_request", "unsupported_value"},
    kUnknown{"unknown_field", "unknown_parameter"}, kEmptyPrompt{"empty_prompt", "invalid_value"},
    kMissingId{"missing_id", "missing_required_parameter"}, kBadJson{"bad_json", ""},
    kBadUtf8{"bad_utf8", "", RIFFLE_BAD_TEXT}, kTooDeep{"too_deep", "", RIFFLE_UNSUPPORTED},
    kTooManyValues{"too_many_values", "", RIFFLE_UNSUPPORTED};

// Thrown for a request that is refused. field: its path, such as "body.messages[0].role"; "": none.
class Refused : public Error {
 public:
  Refused(const Reason& reason, const std::string& field, const std::string& text)
      : Error(reason.status, text), reason_(reason), field_(field) {}
  const Reason& reason() const { return reason_; }
  // Returns the field as OpenAI names it: without "body.".
  std::string param() const {
    return field_.starts_with("body.") ? field_.substr(5) : field_ == "body" ? "" : field_;
  }

 private:
  Reason reason_;
  std::string field_;
};

// Parses a request. options: values of the fields that it leaves out. Throws Refused. request gets
// what was read, also if it is refused.
void parse_request(riffle_request_kind kind, std::string_view text, uint32_t flags,
                   const GenerateOptions& answer, const ConversationOptions& conversation,
                   Request* request);

}  // namespace riffle::requests
