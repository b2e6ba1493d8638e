// Turns the messages of a request into a prompt.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

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
// Throws Exit with the template's objection to the unchanged conversation.
Conversation fit_conversation(riffle_model* model, std::vector<Message> messages,
                              const Thinking& thinking);

}  // namespace riffle::cli
