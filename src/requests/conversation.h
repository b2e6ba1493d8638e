// Turns the messages of a request into a prompt.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "model/model.h"
#include "util/options.h"

namespace riffle::requests {

struct ChatPrompt {
  std::vector<int32_t> tokens;
  bool in_reasoning = false;  // the chat template has begun the model's reasoning
};

// Throws the errors of riffle_chat_prompt.
ChatPrompt chat_prompt(const Model& model, const std::vector<ChatMessage>& messages,
                       const ConversationOptions& options, const std::vector<Json>& tools = {});

// The change to a conversation that the chat template does not accept unchanged.
enum class Fitted {
  AS_IS,
  JOINED,  // adjacent messages of one role became one
  MOVED    // also, system messages went into the user's messages
};
struct Conversation {
  ChatPrompt prompt;
  Fitted fitted = Fitted::AS_IS;
  // continued: the message that the answer continues; none: the answer is a new message. begun: the
  // text of that message in the prompt.
  std::optional<size_t> continued{};
  std::string begun{};
};
// Throws Error with the template's objection to the unchanged conversation.
Conversation fit_conversation(const Model& model, const std::vector<ChatMessage>& messages,
                              const ConversationOptions& options, const std::vector<Json>& tools);

}  // namespace riffle::requests
