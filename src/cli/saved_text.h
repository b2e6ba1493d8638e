// What riffle keeps in a session's file beside the session.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

struct SavedText {
  bool chat = false;          // else a document
  bool message = false;       // a document: the question about it is to be a user's message
  std::string document = {};  // of a chat: loaded, waiting for its question
  std::string system = {};    // of a document
  // Of a document: the tokens of all of it, if the session holds only a beginning of them. 0: it
  // holds all.
  size_t all_tokens = 0;
  std::vector<Message> messages = {};  // of a chat
};

std::string packed(const SavedText& text);
// data is hostile. Throws Exit, which names path.
SavedText unpacked(const std::string& path, std::string_view data);

}  // namespace riffle::cli
