#include "requests/conversation.h"

#include <algorithm>

#include "chat/template_date.h"
#include "text/tokenizer.h"
#include "util/error.h"

namespace riffle::requests {
namespace {

ChatOptions chat_options_of(const ConversationOptions& o) {
  ChatOptions out;
  out.thinking = o.thinking == ThinkingRule::ON    ? Thinking::ON
                 : o.thinking == ThinkingRule::OFF ? Thinking::OFF
                                                   : Thinking::DEFAULT;
  out.reasoning_effort = o.reasoning_effort;
  TemplateDate date;
  if (read_date(o.date, &date)) out.date = date;
  return out;
}

void append(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

std::vector<ChatMessage> joined_neighbours(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> out;
  for (const ChatMessage& m : messages) {
    const bool calls = m.role == "tool" || !m.calls.empty();
    if (out.empty() || out.back().role != m.role || calls || !out.back().calls.empty()) {
      out.push_back(m);
    } else {
      append(out.back().content, m.content);
      append(out.back().reasoning, m.reasoning);
    }
  }
  return out;
}

// Turns system messages into user's messages, joined with their neighbours.
std::vector<ChatMessage> without_system(std::vector<ChatMessage> messages) {
  for (ChatMessage& m : messages) {
    if (m.role == "system") m.role = "user";
  }
  return joined_neighbours(messages);
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

// Returns the message that an answer continues, if there is one. Templates leave out an assistant's
// blank messages at the end.
std::optional<size_t> continued_by_answer(const std::vector<ChatMessage>& messages) {
  const auto answered = [](const ChatMessage& m) { return m.role == "assistant"; };
  size_t last = messages.size() - 1;
  while (last > 0 && answered(messages[last]) && is_blank(messages[last].content) &&
         is_blank(messages[last].reasoning) && messages[last].calls.empty())
    --last;
  if (!answered(messages[last])) return std::nullopt;
  return last;
}

}  // namespace

ChatPrompt chat_prompt(const Model& model, const std::vector<ChatMessage>& messages,
                       const ConversationOptions& options, const std::vector<Json>& tools) {
  if (!model.tokenizer)
    fail(RIFFLE_UNSUPPORTED, "the model has no tokenizer, which this call needs");
  if (!model.chat) {
    fail(RIFFLE_UNSUPPORTED,
         "%s; --chat-template NAME (option chat-template of riffle_model_load) sets one: %s",
         model.chat_template.empty() ? "the model carries no chat template"
                                     : model.chat_error.c_str(),
         chat_family_names().c_str());
  }
  ChatOptions chat = chat_options_of(options);
  chat.tools = &tools;
  const SourcedText text = model.chat->text(*model.tokenizer, messages, chat);
  return {model.chat->tokens(*model.tokenizer, text), model.chat->begins_reasoning(text, messages)};
}

Conversation fit_conversation(const Model& model, const std::vector<ChatMessage>& messages,
                              const ConversationOptions& options, const std::vector<Json>& tools) {
  Conversation out;
  out.continued = continued_by_answer(messages);
  std::optional<Error> refused;
  for (const Fitted fitted : {Fitted::AS_IS, Fitted::JOINED, Fitted::MOVED}) {
    std::vector<ChatMessage> changed = fitted == Fitted::JOINED  ? joined_neighbours(messages)
                                       : fitted == Fitted::MOVED ? without_system(messages)
                                                                 : messages;
    const bool system = std::any_of(messages.begin(), messages.end(),
                                    [](const ChatMessage& m) { return m.role == "system"; });
    if (fitted == Fitted::JOINED && changed.size() == messages.size()) continue;
    if (fitted == Fitted::MOVED && !system) continue;
    try {
      out.prompt = chat_prompt(model, changed, options, tools);
      out.fitted = fitted;
      if (const auto last = continued_by_answer(changed)) out.begun = changed[*last].content;
      return out;
    } catch (const Error& e) {
      if (e.status() == RIFFLE_OUT_OF_MEMORY) throw;
      if (!refused) refused = e;
    }
  }
  throw *refused;
}

}  // namespace riffle::requests
