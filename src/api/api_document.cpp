// Functions of riffle_text.h: documents, which are read once and asked about often.
#include <algorithm>

#include "api/api_handles.h"
#include "requests/conversation.h"
#include "text/tokenizer.h"

using namespace riffle;

namespace {

std::string joined(std::string_view document, std::string_view question) {
  const size_t last = document.find_last_not_of("\r\n");
  std::string text(document.substr(0, last == document.npos ? 0 : last + 1));
  text += '\n';
  text += question;
  return text;
}

struct Document {
  std::string_view text, system;
  bool message;
};

std::vector<int32_t> prompt_of(const riffle_model& model, const Document& document,
                               std::string_view question, const ConversationOptions& options) {
  const std::string text = joined(document.text, question);
  if (!document.message) return tokenizer_of(model).encode(text, true, false);
  std::vector<ChatMessage> messages;
  if (!document.system.empty()) messages.push_back({"system", std::string(document.system)});
  messages.push_back({"user", text});
  return requests::fit_conversation(*model.model, messages, options, {}).prompt.tokens;
}

// No two of these questions begin with the same token, so that only tokens of the document are
// common.
std::vector<int32_t> common_tokens(const riffle_model& model, const Document& document,
                                   const ConversationOptions& options) {
  std::vector<int32_t> same = prompt_of(model, document, "What", options);
  for (const char* const question : {"1", "\xC2\xBF", "the"}) {
    const std::vector<int32_t> other = prompt_of(model, document, question, options);
    const auto end = std::mismatch(same.begin(), same.end(), other.begin(), other.end()).first;
    same.erase(end, same.end());
  }
  return same;
}

}  // namespace

extern "C" {

riffle_status riffle_document_question(const char* document, size_t document_len,
                                       const char* question, size_t question_len, char* text,
                                       size_t capacity, size_t* text_len) {
  return guarded(nullptr, 0, [&] {
    require(document || !document_len, "document");
    require(question || !question_len, "question");
    require(text_len, "text_len");
    const std::string out =
        joined({document ? document : "", document_len}, {question ? question : "", question_len});
    hand_out(out.data(), out.size(), text, capacity, text_len);
  });
}

riffle_status riffle_document_tokens(riffle_model* model, const char* document, size_t document_len,
                                     const char* system, bool message,
                                     const riffle_options* options, int32_t* tokens,
                                     size_t capacity, size_t* n_tokens) {
  return on_model(model, [&] {
    require(document || !document_len, "document");
    require(n_tokens, "n_tokens");
    const Document given{{document ? document : "", document_len}, system ? system : "", message};
    if (!given.system.empty() && !message)
      fail(RIFFLE_BAD_ARGUMENT, "a system message is given with plain text, expected none");
    const size_t nul = given.text.find('\0');
    if (message && nul != given.text.npos)
      fail(RIFFLE_BAD_ARGUMENT, "byte %zu of the document is NUL, expected text without it", nul);
    const auto ids = common_tokens(*model, given, options_or_defaults(options).chat);
    hand_out(ids.data(), ids.size(), tokens, capacity, n_tokens);
  });
}

}  // extern "C"
