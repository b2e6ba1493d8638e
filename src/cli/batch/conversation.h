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
  // continued: the message that the answer continues; none: it is a new one. begun: its text in the
  // prompt.
  std::optional<size_t> continued{};
  std::string begun{};
};
// Throws Exit with the template's objection to the unchanged conversation.
Conversation fit_conversation(riffle_model* model, std::vector<Message> messages,
                              const Thinking& thinking);

}  // namespace riffle::cli
