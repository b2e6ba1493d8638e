// Data that riffle's command line keeps in a session's file.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "cli/common.h"

namespace riffle::cli {

struct SavedText {
  bool chat = false;          // a chat; false: a document
  bool message = false;       // document: the question about it becomes a user's message
  std::string document = {};  // the document; chat: the one that waits for its question
  std::string system = {};    // system message of a document
  // Number of tokens of a document, if the session holds only its beginning. 0: it holds all.
  size_t all_tokens = 0;
  std::vector<Message> messages = {};  // messages of a chat
  Tools tools = {};                    // tools of a chat; name: the file that holds this text
};

std::string packed(const SavedText& text);
// Parses data, which is untrusted. Throws Exit, which names path.
SavedText unpacked(const std::string& path, std::string_view data);

}  // namespace riffle::cli
