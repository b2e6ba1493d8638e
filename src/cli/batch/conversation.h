// Turns the messages of a request into a prompt.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

// Change of a conversation that the chat template does not take unchanged.
enum class Fitted {
  AS_IS,
  JOINED,  // neighbours of one role became one message
  MOVED    // system messages went into the user's messages, too
};
struct Conversation {
  ChatPrompt prompt;
  Fitted fitted = Fitted::AS_IS;
  // The answer goes on with this message, whose text in the prompt this is; none: it is a message
  // of its own.
  std::optional<size_t> continued{};
  std::string begun{};
};
// Throws Exit with the template's objection to the unchanged conversation.
Conversation fit_conversation(riffle_model* model, std::vector<Message> messages,
                              const Thinking& thinking);

}  // namespace riffle::cli
