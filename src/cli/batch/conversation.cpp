#include "cli/batch/conversation.h"

#include <algorithm>

namespace riffle::cli {

namespace {

void append(std::string& text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

std::vector<Message> joined_neighbours(const std::vector<Message>& messages) {
  std::vector<Message> out;
  for (const Message& m : messages) {
    if (out.empty() || out.back().role != m.role) {
      out.push_back(m);
    } else {
      append(out.back().content, m.content);
      append(out.back().reasoning, m.reasoning);
    }
  }
  return out;
}

// Turns system messages into user's messages, joined with their neighbours.
std::vector<Message> without_system(std::vector<Message> messages) {
  for (Message& m : messages) {
    if (m.role == "system") m.role = "user";
  }
  return joined_neighbours(messages);
}

bool is_blank(const std::string& text) { return text.find_first_not_of(kSpaces) == text.npos; }

// Returns the message that an answer continues, if there is one. Templates leave out an assistant's
// blank messages at the end.
std::optional<size_t> continued_by_answer(const std::vector<Message>& messages) {
  const auto answered = [](const Message& m) { return m.role == "assistant"; };
  size_t last = messages.size() - 1;
  while (last > 0 && answered(messages[last]) && is_blank(messages[last].content) &&
         is_blank(messages[last].reasoning))
    --last;
  if (!answered(messages[last])) return std::nullopt;
  return last;
}

}  // namespace

Conversation fit_conversation(riffle_model* model, std::vector<Message> messages,
                              const Thinking& thinking) {
  Conversation out;
  out.continued = continued_by_answer(messages);
  std::optional<Exit> refused;
  for (const Fitted fitted : {Fitted::AS_IS, Fitted::JOINED, Fitted::MOVED}) {
    std::vector<Message> changed = fitted == Fitted::JOINED  ? joined_neighbours(messages)
                                   : fitted == Fitted::MOVED ? without_system(messages)
                                                             : messages;
    const bool system = std::any_of(messages.begin(), messages.end(),
                                    [](const Message& m) { return m.role == "system"; });
    if (fitted == Fitted::JOINED && changed.size() == messages.size()) continue;
    if (fitted == Fitted::MOVED && !system) continue;
    try {
      out.prompt = chat_prompt(model, changed, thinking);
      out.fitted = fitted;
      if (const auto last = continued_by_answer(changed)) out.begun = changed[*last].content;
      return out;
    } catch (const Exit& e) {
      if (e.code() == EXIT_MEMORY) throw;
      if (!refused) refused = e;
    }
  }
  throw *refused;
}

}  // namespace riffle::cli
