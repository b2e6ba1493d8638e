// Conversation formats that riffle has by name, for models without a template of their own: a table
// with an entry for each.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/sourced_text.h"
#include "util/json.h"

namespace riffle {

// A call of a tool in an assistant's message.
struct ChatCall {
  std::string id, name;
  Json arguments;    // an object
  std::string text;  // the arguments as they were written
};

struct ChatMessage {
  std::string role, content;
  std::string reasoning = {};           // an assistant's reasoning, before its content; "": none
  std::vector<ChatCall> calls = {};     // an assistant's
  std::string call_id = {}, name = {};  // a tool's message: the call that it answers, and its tool
};

// Texts around a message's content. trim: white space around the content is removed.
struct ChatFrame {
  const char *before, *after;
  bool trim = false;
};

// In `before` and `after`, {bos} and {eos} stand for these tokens.
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
      default_system;  // the system message if the conversation has none; nullptr: no turn is added
  ChatFrame system, user, assistant;
  bool trim_together;    // user: content and a system message inside it are trimmed as one
  const char* answer;    // text after the last user message, where the model continues
  const char* required;  // control pieces that the vocabulary must have, with spaces between
  const char*
      turn_end;  // control piece that ends the model's turn besides end of sequence; "": none
};

std::span<const ChatFamily> chat_families();
std::string chat_family_names();  // "llama3, llama2, ..."
// Throws RIFFLE_BAD_ARGUMENT, listing the names, if there is none of this name.
const ChatFamily& chat_family_named(std::string_view name);

// Formats messages with the roles [system,] user, assistant, ... in that order, so that the model's
// answer comes next. A last message of an assistant is continued. bos, eos: as the vocabulary
// spells them; "": none. Throws RIFFLE_BAD_ARGUMENT (roles out of order), RIFFLE_UNSUPPORTED (the
// family needs a token that the vocabulary lacks).
SourcedText family_text(const ChatFamily& family, const std::string& bos, const std::string& eos,
                        const std::vector<ChatMessage>& messages);

}  // namespace riffle
