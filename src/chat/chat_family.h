// The conversation formats that riffle has by name, for models that carry no template of their own:
// one entry for each, which says everything about it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/sourced_text.h"

namespace riffle {

struct ChatMessage {
  std::string role, content;
  std::string reasoning;  // an assistant's reasoning, before its content; "": none
};

// Texts around a message's content. trim: the content loses the white space around it.
struct ChatFrame {
  const char *before, *after;
  bool trim = false;
};

// In before and after, {bos} and {eos} are those tokens.
struct ChatFamily {
  const char* name;
  const char* what;  // name of the format, for people
  bool bos_first;    // {bos} before everything
  enum System {
    NONE,        // no system message
    OWN,         // a turn of its own, before the others
    FIRST_USER,  // framed, inside the first user message's frame, before its content
    LAST_USER    // likewise in the last user message
  } system_place;
  const char*
      default_system;  // the system message where there is none; nullptr: no turn is made up
  ChatFrame system, user, assistant;
  bool trim_together;    // user: content and a system message inside it are trimmed as one
  const char* answer;    // after the last user message, where the model goes on
  const char* required;  // control pieces that the vocabulary must have, with spaces between
  const char*
      turn_end;  // control piece that ends the model's turn besides end of sequence; "": none
};

std::span<const ChatFamily> chat_families();
std::string chat_family_names();  // "llama3, llama2, ..."
// Throws RIFFLE_BAD_ARGUMENT, listing the names, if there is none of this name.
const ChatFamily& chat_family_named(std::string_view name);

// [system,] user, assistant, ...: messages of these roles, in that order, so that the model's
// answer comes next. An assistant's message that comes last is continued. bos, eos: as the
// vocabulary spells them; "": none. Throws RIFFLE_BAD_ARGUMENT (roles out of order),
// RIFFLE_UNSUPPORTED (the family needs a token that there is not).
SourcedText family_text(const ChatFamily& family, const std::string& bos, const std::string& eos,
                        const std::vector<ChatMessage>& messages);

}  // namespace riffle
