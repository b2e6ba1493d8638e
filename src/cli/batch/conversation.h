// How the messages of a request become a prompt.
#pragma once
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

// What was done to a conversation that the chat template does not take as it is.
enum class Fitted {
  AS_IS,
  JOINED,  // neighbours of one role became one message
  MOVED    // system messages went into the user's messages, too
};
struct Conversation {
  ChatPrompt prompt;
  Fitted fitted = Fitted::AS_IS;
  bool continued = false;  // the answer goes on with the last message
};
// Throws Exit with what the template has against the conversation as it is.
Conversation fit_conversation(riffle_model* model, std::vector<Message> messages,
                              riffle_thinking thinking);

}  // namespace riffle::cli
