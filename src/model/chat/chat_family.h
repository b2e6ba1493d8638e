// The conversation formats that riffle knows: one entry for each, which says everything about it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/template_reader.h"

namespace riffle {

// What stands around a message's content. trim: the content loses the white space around it.
struct ChatFrame {
  const char *before, *after;
  bool trim = false;
};

// In before and after, {bos} and {eos} are those tokens; everything else is text, in which the
// vocabulary's control pieces (those in markers) are found.
struct ChatFamily {
  const char* name;
  const char* what;  // whose it is, for people
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
  const char* markers;   // control pieces if the vocabulary has them, text otherwise
  const char* turn_end;  // the control piece that ends the model's turn, beside the end-of-sequence
                         // token; "": none
};

std::span<const ChatFamily> chat_families();

// A family as one model uses it.
struct ChatFormat {
  const ChatFamily* family = nullptr;
  bool bos_first = false;
  bool has_default_system = false;
  std::string default_system;
};
ChatFormat chat_format_of(const ChatFamily& family);

// [system,] user, assistant, ..., user: messages of these roles, in that order, as pieces. Trimmed
// pieces as TemplateReader's, LITERAL and BOS and EOS as the family has them.
TextPieces chat_pieces(const ChatFormat& format, bool system, size_t n_user);

// The stand-in for a default system message that is sought: chat_pieces with has_default_system,
// default_system replaced by a CONTENT piece of this number.
inline constexpr int kDefaultSystem = -1;
TextPieces chat_pieces_with_default(const ChatFormat& format, size_t n_user);

}  // namespace riffle
